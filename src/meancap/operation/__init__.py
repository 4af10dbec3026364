"""One operation under every guided step: lengths, cap, result.

    x             the state, in the host's own units
    out_c         what the network said under the condition; the posterior mean is m = a x + k out_c
    other         what it said without (d = out_c - other), or with `direct` the direction d itself
    a, k, c       numbers: the two of the mean, and the coefficient that is asked for, g = c k d
    gamma, floor  the cap; gamma = inf is none, floor = 0 no floor
    ball          True for |m + g| <= gamma |m|, False for |g| <= (gamma - 1) |m|; see `fraction`

`capped` measures each sample, solves its cap and writes out_c + c' d (or, with `mean`, the guided mean
itself) in two passes over the tensors; `measured` and `combined` are its two halves. There are three
implementations with these signatures, and no flag to choose one: `host` (numba, float32 and bfloat16 on the
CPU), `cuda` (Triton), `reference` (plain PyTorch: everything else, and whatever autograd, a transform or a
tracer follows). Inside `torch.compile` the fast ones are single nodes of the graph.
"""

from . import registered as registered  # torch's operators, for compiled graphs
from .dispatch import Lengths, calls, capped, combined, lengths, mean_of, measured
from .fraction import kept, largest_fraction, margin_of, room_of

__all__ = [
    "Lengths",
    "calls",
    "capped",
    "combined",
    "kept",
    "largest_fraction",
    "lengths",
    "margin_of",
    "mean_of",
    "measured",
    "room_of",
]
