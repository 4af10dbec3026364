# mypy: allow-untyped-calls
"""The operation as an operator of torch, so that a compiled graph holds one opaque node for a step."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..tensors import transformed
from .dispatch import served
from .request import Request, need_one_shape

_SIGNATURE = (
    "step(Tensor x, Tensor out_c, Tensor other, Tensor numbers, bool ball, float margin, bool direct, "
    "bool mean, ScalarType? dtype, bool lengths) -> (Tensor, Tensor)"
)


def _step(
    x: Tensor, out_c: Tensor, other: Tensor, numbers: Tensor,
    ball: bool, margin: float, direct: bool, mean: bool, dtype: torch.dtype | None, lengths: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """A capped step, from its numbers in one tensor."""
    need_one_shape(x, out_c, other)
    if numbers.dtype != torch.float64 or numbers.shape not in ((5, 1), (5, len(x))):
        given = f"{numbers.dtype}, {tuple(numbers.shape)}"
        raise ValueError(f"the numbers of a step are float64, (5, 1) or (5, {len(x)}); got {given}")
    request = Request(x, out_c, other, numbers, ball, margin, direct, mean, dtype, lengths=lengths)
    result, found = served(request)  # whatever mode wants to see the step has seen the operator
    if isinstance(found, tuple):
        found = torch.stack(found)
    # An operator may not return its own input: without a dtype nothing is written.
    return x.new_empty(0) if dtype is None else result.contiguous(), found if lengths else x.new_empty(0)


def _shapes(
    x: Tensor, out_c: Tensor, other: Tensor, numbers: Tensor,
    ball: bool, margin: float, direct: bool, mean: bool, dtype: torch.dtype | None, lengths: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    result = x.new_empty(0) if dtype is None else torch.empty(x.shape, dtype=dtype, device=x.device)
    return result, numbers.new_empty(4, x.shape[0]) if lengths else x.new_empty(0)


def _followed(x: Tensor, out_c: Tensor, other: Tensor, numbers: Tensor, *how: Any) -> tuple[Tensor, Tensor]:
    """Where derivatives may follow: the reference where they do, and what lies below where they do not."""
    if type(x) is Tensor or transformed(x, out_c, other, numbers):
        return _step(x, out_c, other, numbers, *how)
    with torch._C._AutoDispatchBelowAutograd():  # a tracer wants to see the operator; no public way down
        done: tuple[Tensor, Tensor] = torch.ops.meancap.step(x, out_c, other, numbers, *how)
    return done


def _define() -> torch.library.Library:
    # In the plain form: torch.library.custom_op takes longer to call than a small step does.
    ours = torch.library.Library("meancap", "FRAGMENT")
    ours.define(_SIGNATURE)
    for device in ("CPU", "CUDA"):
        ours.impl("step", _step, device)
    ours.impl("step", _shapes, "Meta")
    ours.impl("step", _followed, "Autograd")
    return ours


# ComfyUI loads the package by its path, perhaps beside an installed one: two copies share the operator.
if not hasattr(torch.ops.meancap, "step"):
    _OPERATORS = _define()  # kept, because torch forgets what a library defined when it goes
