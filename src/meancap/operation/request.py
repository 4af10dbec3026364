"""The request that all implementations take, and the lengths that they answer with."""

from __future__ import annotations

import os
from typing import NamedTuple

import torch
from torch import Tensor

from ..tensors import Number

PROCESS = os.getpid()  # that imported this; a forked one has another, and no threads of OpenMP
Numbers = tuple[Number, Number, Number, Number, Number]
Found = tuple[Tensor, ...] | Tensor  # |m|, |k d|, the component of m along k d, and c' of each sample


class Request(NamedTuple):
    """One guided step of a batch: what to measure, what to cap, what to write.

    x, out_c   the state in the host's own units, and what the network said under the condition
    other      what it said without (d = out_c - other), or with `direct` the direction d itself
    numbers    a, k, c, gamma, floor: each a float or one for each sample, or all in a tensor, (5, batch) or
               (5, 1). The posterior mean is m = a x + k out_c, and k d moves it; c is the coefficient that is
               asked for; gamma = inf is no cap, floor = 0 no floor
    ball       True for |m + g| <= gamma |m|, False for |g| <= (gamma - 1) |m|; see `fraction`
    margin     the part of a share below 1 that is given up to rounding
    mean       write the guided mean a x + k w instead of the guided output w = out_c + c' d
    dtype      of the result; None writes nothing
    capped     measure the samples and solve the cap; without, c' = c
    lengths    answer with the lengths and with c'; without, only the result is worth looking at
    """

    x: Tensor
    out_c: Tensor
    other: Tensor
    numbers: Numbers | Tensor
    ball: bool = True
    margin: float = 0.0
    direct: bool = False
    mean: bool = False
    dtype: torch.dtype | None = None
    capped: bool = True
    lengths: bool = True


class Lengths(NamedTuple):
    """Two vectors per sample, reduced to what a cap needs to know of them; one float64 entry each."""

    m: Tensor  # |m|
    d: Tensor  # |d|
    along: Tensor  # component of m along d, that is <m, d> / |d|; 0 where d = 0


def need_one_shape(x: Tensor, out_c: Tensor, other: Tensor) -> None:
    """Kernels read all three element by element: another shape would be somebody else's memory."""
    if not x.shape == out_c.shape == other.shape or out_c.dtype != other.dtype:
        shapes = [f"{tuple(v.shape)} {v.dtype}" for v in (x, out_c, other)]
        raise ValueError(f"the state and both outputs need one shape, the outputs one dtype; got {shapes}")
