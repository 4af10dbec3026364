"""Scales that depend on time: frozen callables t -> value, with data at t = 1.

A scale in a rule may be a number or one of these. They take a float or one time per sample.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from .notation import write
from .tensors import Number


class Schedule:
    """A function of time; subclasses are frozen dataclasses, so they print, compare, hash and parse."""

    def __call__(self, t: Number) -> Number:
        raise NotImplementedError(f"{type(self).__name__} must define __call__(t)")

    def __str__(self) -> str:
        return write(self)


Scale = float | Schedule


@dataclass(frozen=True)
class Constant(Schedule):
    """The same value at every time."""

    value: float

    def __post_init__(self) -> None:
        finite(self, "value")

    def __call__(self, t: Number) -> Number:
        return self.value


@dataclass(frozen=True)
class Linear(Schedule):
    """From `start` at t = 0 to `stop` at t = 1 on a straight line."""

    start: float
    stop: float

    def __post_init__(self) -> None:
        finite(self, "start", "stop")

    def __call__(self, t: Number) -> Number:
        return self.start + (self.stop - self.start) * t


@dataclass(frozen=True)
class Cosine(Schedule):
    """From `start` to `stop` as (1 - cos pi t) / 2: flat at both ends."""

    start: float
    stop: float

    def __post_init__(self) -> None:
        finite(self, "start", "stop")

    def __call__(self, t: Number) -> Number:
        return self.start + (self.stop - self.start) * (1 - _of(math.cos, torch.cos, math.pi * t)) / 2


@dataclass(frozen=True)
class Exponential(Schedule):
    """`start` at t = 0, growing as exp(rate t); with a positive rate this is C2FG's schedule."""

    start: float
    rate: float

    def __post_init__(self) -> None:
        finite(self, "start", "rate")

    def __call__(self, t: Number) -> Number:
        return self.start * _of(math.exp, torch.exp, self.rate * t)


@dataclass(frozen=True)
class Piecewise(Schedule):
    """Straight lines through (times[i], values[i]); constant before the first knot and after the last."""

    times: tuple[float, ...]
    values: tuple[float, ...]

    def __post_init__(self) -> None:
        for name in ("times", "values"):
            object.__setattr__(self, name, tuple(float(v) for v in getattr(self, name)))
        knots = self.times
        if len(knots) != len(self.values) or not knots:
            raise ValueError(
                f"Piecewise needs one value per time, at least one; got {len(knots)} and {len(self.values)}"
            )
        if any(b <= a for a, b in pairwise(knots)):
            raise ValueError(f"Piecewise needs increasing times; got {list(knots)}")
        if not all(map(math.isfinite, knots + self.values)):
            raise ValueError("Piecewise needs finite times and values")

    def __call__(self, t: Number) -> Number:
        if not isinstance(t, Tensor):
            i = bisect_right(self.times, t)
            if i == 0 or i == len(self.times):
                return self.values[max(i - 1, 0)]
            left, right = self.times[i - 1], self.times[i]
            share = (t - left) / (right - left)
            return self.values[i - 1] + share * (self.values[i] - self.values[i - 1])
        times, values = t.new_tensor(self.times), t.new_tensor(self.values)
        right_i = torch.searchsorted(times, t.contiguous(), right=True).clamp(1, max(len(self.times) - 1, 1))
        right_i = right_i.clamp(max=len(self.times) - 1)
        left_i = (right_i - 1).clamp(min=0)
        width = (times[right_i] - times[left_i]).clamp(min=torch.finfo(t.dtype).tiny)
        share_t = ((t - times[left_i]) / width).clamp(0, 1)
        return values[left_i] + share_t * (values[right_i] - values[left_i])


def at(scale: Scale, t: Number) -> Number:
    """The value of a scale, number or schedule, at time t."""
    return scale(t) if isinstance(scale, Schedule) else scale


def finite(self: object, *names: str) -> None:
    """Refuses fields that are not finite numbers; integers become floats."""
    for name in names:
        value = getattr(self, name)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            raise ValueError(f"{type(self).__name__} needs a finite number for {name}; got {value!r}")
        object.__setattr__(self, name, float(value))


def finite_scale(self: object, name: str) -> None:
    """Refuses a scale that is neither a finite number nor a schedule."""
    if not isinstance(getattr(self, name), Schedule):
        finite(self, name)


def _of(one: Callable[[float], float], many: Callable[[Tensor], Tensor], v: Number) -> Number:
    return many(v) if isinstance(v, Tensor) else one(v)
