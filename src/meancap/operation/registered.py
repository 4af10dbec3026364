# mypy: allow-untyped-calls
"""The operation as two operators of torch, so that a compiled graph holds one opaque node for each."""

from __future__ import annotations

import torch
from torch import Tensor

from .dispatch import capped, measured


def _measured(x: Tensor, out_c: Tensor, other: Tensor, numbers: Tensor, direct: bool) -> Tensor:
    a, k = numbers.unbind(0)
    table: Tensor = torch.stack(measured(x, out_c, other, a, k, direct=direct))
    return table


def _capped(
    x: Tensor,
    out_c: Tensor,
    other: Tensor,
    numbers: Tensor,
    ball: bool,
    margin: float,
    direct: bool,
    mean: bool,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    return capped(
        x, out_c, other, *numbers.unbind(0), ball=ball, margin=margin, direct=direct, mean=mean, dtype=dtype
    )


def _define() -> torch.library.Library:
    # In the plain form: torch.library.custom_op takes longer to call than a small step does.
    ours = torch.library.Library("meancap", "FRAGMENT")
    ours.define("measured(Tensor x, Tensor out_c, Tensor other, Tensor numbers, bool direct) -> Tensor")
    ours.define(
        "capped(Tensor x, Tensor out_c, Tensor other, Tensor numbers, bool ball, float margin, bool direct, "
        "bool mean, ScalarType dtype) -> (Tensor, Tensor)"
    )
    for device in ("CPU", "CUDA"):
        ours.impl("measured", _measured, device)
        ours.impl("capped", _capped, device)
    ours.impl("measured", lambda x, out_c, other, numbers, direct: numbers.new_empty(3, x.shape[0]), "Meta")
    ours.impl(
        "capped",
        lambda x, out_c, other, numbers, *options: (
            torch.empty_like(out_c, dtype=options[-1], memory_format=torch.contiguous_format),
            numbers.new_empty(4, x.shape[0]),
        ),
        "Meta",
    )
    return ours


# ComfyUI loads the package by its path, perhaps beside an installed one: two copies share the operators.
if not hasattr(torch.ops.meancap, "capped"):
    _OPERATORS = _define()  # kept, because torch forgets what a library defined when it goes
