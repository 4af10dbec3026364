# mypy: allow-untyped-calls
"""The operation as an operator of torch, so that a compiled graph holds one opaque node for a step."""

from __future__ import annotations

import torch
from torch import Tensor

from ..tensors import transformed
from .dispatch import from_table

_SIGNATURE = (
    "step(Tensor x, Tensor out_c, Tensor other, Tensor numbers, bool ball, float margin, bool direct, "
    "bool mean, ScalarType? dtype) -> (Tensor, Tensor)"
)


def _shapes(
    x: Tensor, out_c: Tensor, other: Tensor, numbers: Tensor, *how: bool | float | torch.dtype | None
) -> tuple[Tensor, Tensor]:
    if isinstance(dtype := how[-1], torch.dtype):
        result = torch.empty_like(out_c, dtype=dtype, memory_format=torch.contiguous_format)
    else:
        result = x.new_empty(0)
    return result, numbers.new_empty(4, x.shape[0])


def _followed(
    x: Tensor, out_c: Tensor, other: Tensor, numbers: Tensor, *how: bool | float | torch.dtype | None
) -> tuple[Tensor, Tensor]:
    """Where derivatives may follow: the reference where they do, and what lies below where they do not."""
    if type(x) is Tensor or transformed(x, out_c, other, numbers):
        return from_table(x, out_c, other, numbers, *how)
    with torch._C._AutoDispatchBelowAutograd():  # a tracer wants to see the operator; no public way down
        done: tuple[Tensor, Tensor] = torch.ops.meancap.step(x, out_c, other, numbers, *how)
    return done


def _define() -> torch.library.Library:
    # In the plain form: torch.library.custom_op takes longer to call than a small step does.
    ours = torch.library.Library("meancap", "FRAGMENT")
    ours.define(_SIGNATURE)
    for device in ("CPU", "CUDA"):
        ours.impl("step", from_table, device)
    ours.impl("step", _shapes, "Meta")
    ours.impl("step", _followed, "Autograd")
    return ours


# ComfyUI loads the package by its path, perhaps beside an installed one: two copies share the operator.
if not hasattr(torch.ops.meancap, "step"):
    _OPERATORS = _define()  # kept, because torch forgets what a library defined when it goes
