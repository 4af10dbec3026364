"""One operation under every guided step: lengths, cap, result.

`run` takes a `Request`, measures each sample, solves its cap (`fraction`, the one statement of it) and writes
out_c + c' d or the guided mean, in two passes over the tensors. There are three implementations of that one
function, and no flag to choose one: `host` (numba, float32 and bfloat16 on the CPU), `cuda` (Triton),
`reference` (plain PyTorch: everything else, and whatever autograd, a transform or a tracer follows). Inside
`torch.compile` the fast ones are single nodes of the graph.
"""

from . import registered as registered  # torch's operator, for compiled graphs
from .dispatch import calls, lengths, mean_of, measured, run
from .fraction import kept, largest_fraction, margin_of, room_of
from .request import Found, Lengths, Request

__all__ = [
    "Found",
    "Lengths",
    "Request",
    "calls",
    "kept",
    "largest_fraction",
    "lengths",
    "margin_of",
    "mean_of",
    "measured",
    "room_of",
    "run",
]
