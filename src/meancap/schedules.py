"""Scales that depend on time: frozen callables t -> value, with data at t = 1.

A scale in a rule may be a number or one of these. They take a float or one time per sample. A tensor or list
given as a scale becomes `Values`: one number per sample.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from numbers import Real

import torch
from torch import Tensor

from .notation import write
from .tensors import Number, on_host, scalar_dtype


class Schedule:
    """A function of time; subclasses are frozen dataclasses, so they print, compare, hash and parse."""

    def __call__(self, t: Number) -> Number:
        """The value at time t: a float for a float, one value per sample for one time per sample."""
        if isinstance(t, Tensor):
            return self.curve(t)
        return float(self.curve(torch.tensor(t, dtype=torch.float64, device="cpu")))

    def curve(self, t: Tensor) -> Tensor:
        """The values at the times in a tensor: the formula, which a subclass defines."""
        raise NotImplementedError(f"{type(self).__name__} must define curve(t)")

    def __str__(self) -> str:
        return write(self)


Scale = float | Schedule | Tensor


class _Numbers(Schedule):
    """A schedule whose fields are all finite numbers."""

    def __post_init__(self) -> None:
        finite(self, *vars(self))


class Values(Schedule):
    """Numbers in a tensor, as a value that prints, compares and hashes: a part of a rule.

    As a scale: one number for all samples, or one for each. As an anchor or a weight of a cap: one for each
    channel or element of a sample, or a matrix. A compiled graph reads the tensor at each call, so another
    tensor needs no new graph.
    """

    def __init__(self, values: Tensor | Sequence[float] | float, *, endless: bool = False) -> None:
        """`endless` allows inf among them, for a gamma."""
        if not isinstance(values, Tensor):
            try:
                values = torch.tensor(values, dtype=torch.float64)
            except (TypeError, ValueError) as error:
                raise ValueError(f"Values needs numbers in a regular (nested) list; {error}") from None
        if not values.is_floating_point() or values.numel() == 0:
            given = f"{values.dtype}, shape {tuple(values.shape)}"
            raise ValueError(f"Values needs floating-point numbers, at least one; got {given}")
        if on_host(values) and not bool((values == values if endless else values.isfinite()).all()):
            raise ValueError("Values needs finite numbers")
        self._tensor = values

    def __call__(self, t: Number) -> Number:
        """The numbers as a scale, at any time."""
        if self._tensor.numel() == 1 and on_host(self._tensor):
            return float(self._tensor)
        return self._tensor.reshape(-1).to(scalar_dtype(self._tensor.device))

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self._tensor.shape)

    def tensor(self, like: Tensor) -> Tensor:
        """The numbers in the precision and on the device of `like`."""
        return self._tensor.to(like.device, like.dtype)

    def __eq__(self, other: object) -> bool:
        """Equal numbers are equal values; one number equals the float."""
        return self._tensor.tolist() == (other._tensor.tolist() if isinstance(other, Values) else other)

    def __hash__(self) -> int:
        return hash(str(self._tensor.tolist()) if self._tensor.dim() else float(self._tensor))

    def __str__(self) -> str:
        return write(self._tensor.tolist())

    __repr__ = __str__


@dataclass(frozen=True)
class Linear(_Numbers):
    """From `start` at t = 0 to `stop` at t = 1 on a straight line."""

    start: float
    stop: float

    def curve(self, t: Tensor) -> Tensor:
        return self.start + (self.stop - self.start) * t


@dataclass(frozen=True)
class Cosine(_Numbers):
    """From `start` to `stop` as (1 - cos pi t) / 2: flat at both ends."""

    start: float
    stop: float

    def curve(self, t: Tensor) -> Tensor:
        return self.start + (self.stop - self.start) * (1 - torch.cos(math.pi * t)) / 2


@dataclass(frozen=True)
class Exponential(_Numbers):
    """`start` at t = 0, growing as exp(rate t); with a positive rate this is C2FG's schedule."""

    start: float
    rate: float

    def curve(self, t: Tensor) -> Tensor:
        return self.start * torch.exp(self.rate * t)


@dataclass(frozen=True)
class Piecewise(Schedule):
    """Straight lines through (times[i], values[i]); constant before the first knot and after the last."""

    times: tuple[float, ...]
    values: tuple[float, ...]

    def __post_init__(self) -> None:
        for field in ("times", "values"):
            object.__setattr__(self, field, tuple(float(v) for v in getattr(self, field)))
        knots, name = self.times, type(self).__name__
        if len(knots) != len(self.values) or not knots:
            raise ValueError(
                f"{name} needs one value per time, at least one; got {len(knots)} and {len(self.values)}"
            )
        if any(b <= a for a, b in pairwise(knots)):
            raise ValueError(f"{name} needs increasing times; got {list(knots)}")
        if not all(map(math.isfinite, knots + self.values)):
            raise ValueError(f"{name} needs finite times and values")

    def curve(self, t: Tensor) -> Tensor:
        passed, times, values = self.place(t)
        right = passed.clamp(1, len(times) - 1)  # 0 for a single knot
        left = (right - 1).clamp(min=0)
        width = (times[right] - times[left]).clamp(min=torch.finfo(t.dtype).tiny)
        return torch.lerp(values[left], values[right], ((t - times[left]) / width).clamp(0, 1))

    def place(self, t: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """How many knots each time has passed, and the knots as tensors: their times and values."""
        times, values = (torch.tensor(v, dtype=t.dtype, device=t.device) for v in (self.times, self.values))
        return torch.searchsorted(times, t.contiguous(), right=True), times, values


def at(scale: Scale, t: Number) -> Number:
    """The value of a scale, number or schedule, at time t."""
    return scale(t) if isinstance(scale, Schedule) else scale


def finite(self: object, *names: str) -> None:
    """Raises an error for fields that are not finite numbers; integers and NumPy's numbers become floats."""
    for name in names:
        value = getattr(self, name)
        usual = isinstance(value, Real) and not isinstance(value, bool)
        if not usual or not -math.inf < value < math.inf:  # math.isfinite would break a compiled graph
            raise ValueError(f"{type(self).__name__} needs a finite number for {name}; got {value!r}")
        object.__setattr__(self, name, float(value))


def finite_scale(self: object, name: str) -> None:
    """Raises an error for a scale that is neither finite numbers nor a schedule."""
    owner, value = type(self).__name__, getattr(self, name)
    if isinstance(value, (Tensor, list, tuple)):
        value = Values(value)
        object.__setattr__(self, name, value)
    if isinstance(value, Values) and len(value.shape) > 1:
        raise ValueError(f"{owner} needs one number for {name}, or one per sample; got shape {value.shape}")
    if callable(value) and not isinstance(value, Schedule):
        raise ValueError(
            f"{owner} needs a number or a schedule for {name}, which can be printed, such as "
            f"Linear(1, 7) or Piecewise(times, values); got a function"
        )
    if not isinstance(value, Schedule):
        finite(self, name)
