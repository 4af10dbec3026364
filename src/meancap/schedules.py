"""Scales that depend on time: frozen callables t -> value, with data at t = 1.

A scale in a rule may be a number or one of these. They take a float or one time per sample. A tensor given as
a scale becomes `Given`.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import torch
from torch import Tensor

from .notation import write
from .tensors import Number, compiling, exp, on_host, scalar_dtype


class Fields:
    """What rules and schedules share: numbers that a compiled graph reads from tensors."""

    tensors: ClassVar[Mapping[str, Tensor]] = {}  # by field; each object that holds numbers has its own


class Schedule(Fields):
    """A function of time; subclasses are frozen dataclasses, so they print, compare, hash and parse."""

    def __call__(self, t: Number) -> Number:
        raise NotImplementedError(f"{type(self).__name__} must define __call__(t)")

    def __str__(self) -> str:
        return write(self)


Scale = float | Schedule | Tensor


class _Numbers(Schedule):
    """A schedule whose fields are all finite numbers."""

    __dataclass_fields__: ClassVar[Mapping[str, object]]

    def __post_init__(self) -> None:
        names = tuple(self.__dataclass_fields__)
        finite(self, *names)
        hold(self, *names)


@dataclass(frozen=True)
class Constant(_Numbers):
    """The same value at every time."""

    value: float

    def __call__(self, t: Number) -> Number:
        return value_of(self, "value", t)


@dataclass(frozen=True, eq=False)
class Given(Schedule):
    """A value held in a tensor, one for all samples or one for each.

    A compiled graph reads the tensor anew at each call, so changing the value makes no new graph.
    """

    value: Tensor

    def __post_init__(self) -> None:
        value = self.value
        if not isinstance(value, Tensor):
            value = torch.tensor(value, dtype=torch.float64)
        if value.dim() > 1 or not value.is_floating_point():
            given = f"{value.dtype}, shape {tuple(value.shape)}"
            raise ValueError(f"Given needs one floating-point number, or one per sample; got {given}")
        if on_host(value) and not bool(value.isfinite().all()):
            raise ValueError(f"Given needs finite numbers; got {value.tolist()}")
        object.__setattr__(self, "value", value)

    def __call__(self, t: Number) -> Number:
        if self.value.numel() == 1 and on_host(self.value):
            return float(self.value)
        return self.value.to(scalar_dtype(self.value.device))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Given) and self.value.tolist() == other.value.tolist()

    def __hash__(self) -> int:
        return hash(str(self.value.tolist()))


@dataclass(frozen=True)
class Linear(_Numbers):
    """From `start` at t = 0 to `stop` at t = 1 on a straight line."""

    start: float
    stop: float

    def __call__(self, t: Number) -> Number:
        start, stop = value_of(self, "start", t), value_of(self, "stop", t)
        return start + (stop - start) * t


@dataclass(frozen=True)
class Cosine(_Numbers):
    """From `start` to `stop` as (1 - cos pi t) / 2: flat at both ends."""

    start: float
    stop: float

    def __call__(self, t: Number) -> Number:
        start, stop = value_of(self, "start", t), value_of(self, "stop", t)
        return start + (stop - start) * (1 - _of(math.cos, torch.cos, math.pi * t)) / 2


@dataclass(frozen=True)
class Exponential(_Numbers):
    """`start` at t = 0, growing as exp(rate t); with a positive rate this is C2FG's schedule."""

    start: float
    rate: float

    def __call__(self, t: Number) -> Number:
        start, rate = value_of(self, "start", t), value_of(self, "rate", t)
        return start * exp(rate * t)


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
        hold(self, "times", "values")

    def __call__(self, t: Number) -> Number:
        if not isinstance(t, Tensor):
            i = bisect_right(self.times, t)
            if i == 0 or i == len(self.times):
                return self.values[max(i - 1, 0)]
            left, right = self.times[i - 1], self.times[i]
            share = (t - left) / (right - left)
            return self.values[i - 1] + share * (self.values[i] - self.values[i - 1])
        times, values = (
            torch.as_tensor(value_of(self, name, t), dtype=t.dtype, device=t.device)
            for name in ("times", "values")
        )
        right_i = torch.searchsorted(times, t.contiguous(), right=True).clamp(1, max(len(self.times) - 1, 1))
        right_i = right_i.clamp(max=len(self.times) - 1)
        left_i = (right_i - 1).clamp(min=0)
        width = (times[right_i] - times[left_i]).clamp(min=torch.finfo(t.dtype).tiny)
        share_t = ((t - times[left_i]) / width).clamp(0, 1)
        return values[left_i] + share_t * (values[right_i] - values[left_i])


def at(scale: Scale, t: Number) -> Number:
    """The value of a scale, number or schedule, at time t."""
    return scale(t) if isinstance(scale, Schedule) else scale


def value_of(rule: Fields, name: str, t: Number) -> Number:
    """The field `name` of a rule or schedule, number or schedule, at time t.

    In a compiled graph a number is read from a tensor: as a number it would be part of the graph, and another
    value need another graph.
    """
    if compiling() and name in rule.tensors:
        return rule.tensors[name]
    return at(getattr(rule, name), t)


def hold(rule: Fields, *names: str) -> None:
    """Keeps numbers of a rule or schedule in tensors as well, for `value_of` to read in a compiled graph."""
    hold_values(rule, **{name: getattr(rule, name) for name in names})


def hold_values(rule: Fields, **numbers: Number | Sequence[Number]) -> None:
    """Keeps these numbers in tensors of the rule, for a compiled graph to read.

    As parameters, because torch reads any other tensor with one float64 as a number too: it traces each graph
    twice then, and may mistake the name of that number for the one of the time, and freeze the time.
    """
    if compiling():
        return
    with torch.inference_mode(False):  # a rule made there may be used elsewhere
        values = {
            name: torch.nn.Parameter(
                torch.tensor(value, dtype=torch.float64, device="cpu"), requires_grad=False
            )
            for name, value in numbers.items()
        }
    object.__setattr__(rule, "tensors", {**rule.tensors, **values})


def finite(self: Fields, *names: str) -> None:
    """Refuses fields that are not finite numbers; integers become floats."""
    for name in names:
        value = getattr(self, name)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not _within(value):
            raise ValueError(f"{type(self).__name__} needs a finite number for {name}; got {value!r}")
        object.__setattr__(self, name, float(value))


def _within(value: float) -> bool:
    return -math.inf < value < math.inf  # math.isfinite would break a compiled graph


def finite_scale(self: Fields, name: str) -> None:
    """Refuses a scale that is neither a finite number nor a schedule; a tensor becomes `Given`."""
    value = getattr(self, name)
    if isinstance(value, Tensor):
        object.__setattr__(self, name, Given(value))
    elif not isinstance(value, Schedule):
        finite(self, name)
        hold(self, name)


def _of(one: Callable[[float], float], many: Callable[[Tensor], Tensor], v: Number) -> Number:
    return many(v) if isinstance(v, Tensor) else one(v)
