"""The request that all implementations take, and the lengths that they answer with."""

from __future__ import annotations

import math
import os
from typing import NamedTuple

import torch
from torch import Tensor

from ..tensors import Number

PROCESS = os.getpid()  # that imported this; a forked one has another, and no threads of OpenMP


class Request(NamedTuple):
    """One guided step of a batch: what to measure, what to cap, what to write.

    x, out_c      the state in the host's own units, and what the network said under the condition
    other         what it said without (d = out_c - other), or with `direct` the direction d itself
    a, k          numbers: the posterior mean is m = a x + k out_c, and k d moves it
    c             the coefficient that is asked for: the displacement of the mean is c k d
    gamma, floor  the cap; gamma = inf is none, floor = 0 is no floor
    ball          True for |m + g| <= gamma |m|, False for |g| <= (gamma - 1) |m|; see `fraction`
    margin        the part of a share below 1 that is given up to rounding
    mean          write the guided mean a x + k w instead of the guided output w = out_c + c' d
    dtype         of the result; None writes nothing
    capped        measure the lengths and solve the cap; without, c' = c
    """

    x: Tensor
    out_c: Tensor
    other: Tensor
    a: Number = 0.0
    k: Number = 1.0
    c: Number = 0.0
    gamma: Number = math.inf
    floor: Number = 0.0
    ball: bool = True
    margin: float = 0.0
    direct: bool = False
    mean: bool = False
    dtype: torch.dtype | None = None
    capped: bool = True


class Lengths(NamedTuple):
    """Two vectors per sample, reduced to what a cap needs to know of them; one float64 entry each."""

    m: Tensor  # |m|
    d: Tensor  # |d|
    along: Tensor  # component of m along d, that is <m, d> / |d|; 0 where d = 0
