"""Published weight schedules, as functions of the time t (noise at 0, data at 1).

    Ramp    the shapes of Wang et al. 2024, times the scale or times scale - 1
    Decay   scale (1 - t)^power, but not below `least`   (AdaMaG)
    Beta    scale times the density of a Beta law        (beta-CFG)
    Temper  the score's factor that samples at another temperature (TSR, Xu et al. 2025)
    DG      the analytic schedule for variance-preserving models (Jiang & Ma 2026)
    Steps   one value from each time on: what a schedule by step index becomes on a grid

Papers that count progress in steps mean t on a uniform grid; `by_step` states their schedule on any other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import torch
from torch import Tensor

from ...schedules import Schedule, finite, hold, value_of
from ...tensors import Number, exp, greater, lesser, magnitude, power

_SHAPES: dict[str, Callable[[Number], Number]] = {
    "linear": lambda t: 2 * t,
    "cosine": lambda t: 1 - _cos(math.pi * t),
    "inverse-linear": lambda t: 2 * (1 - t),
    "sine": lambda t: 1 + _cos(math.pi * t),
    "V": lambda t: 2 * magnitude(1 - 2 * t),
    "Lambda": lambda t: 2 * (1 - magnitude(1 - 2 * t)),
    "powered-cosine": lambda t: (1 - _cos(math.pi * t)) / 2,
}
# A time that a host rounds to float32 still finds its step.
_ROUNDING = 2.0**-20
_INTERVALS = 1000


@dataclass(frozen=True)
class Ramp(Schedule):
    """A weight schedule of Wang et al. 2024: shapes of mean 1 on [0, 1], except 'powered-cosine'.

    shape  'linear', 'cosine' (rising), 'inverse-linear', 'sine' (falling), 'V', 'Lambda', 'powered-cosine'
    on     'scale': scale * shape, from the unconditional model on; 'gain': 1 + (scale - 1) * shape, from the
           conditional one on. Their text allows both readings
    least  the weight never falls below this ('clamp-linear' is linear with a least)
    power  of the time, for 'powered-cosine'
    """

    scale: float
    shape: str = "linear"
    on: str = "scale"
    least: float | None = None
    power: float = 1.0

    def __post_init__(self) -> None:
        finite(self, "scale", "power")
        if self.least is not None:
            finite(self, "least")
        if self.shape not in _SHAPES:
            raise ValueError(f"Ramp has the shapes {', '.join(_SHAPES)}; got {self.shape!r}")
        if self.on not in ("scale", "gain"):
            raise ValueError(f"Ramp is on the 'scale' or on the 'gain' scale - 1; got {self.on!r}")
        if self.power <= 0:
            raise ValueError(f"Ramp needs a power above 0; got {self.power}")

    def __call__(self, t: Number) -> Number:
        shape = _SHAPES[self.shape](power(t, self.power) if self.power != 1 else t)
        weight = self.scale * shape if self.on == "scale" else 1 + (self.scale - 1) * shape
        return weight if self.least is None else greater(weight, self.least)


@dataclass(frozen=True)
class Decay(Schedule):
    """scale (1 - t)^power, but at least `least`."""

    scale: float
    power: float = 4.0
    least: float = 1.0

    def __post_init__(self) -> None:
        finite(self, "scale", "power", "least")

    def __call__(self, t: Number) -> Number:
        return greater(self.scale * power(1 - t, self.power), self.least)


@dataclass(frozen=True)
class Beta(Schedule):
    """scale times the density of the Beta(a, b) law at t; 0 at both ends for a, b > 1."""

    scale: float
    a: float = 2.0
    b: float = 2.0

    def __post_init__(self) -> None:
        finite(self, "scale", "a", "b")
        if min(self.a, self.b) < 1:
            raise ValueError(f"Beta needs a and b of at least 1, to stay finite; got {self.a} and {self.b}")

    def __call__(self, t: Number) -> Number:
        total = math.exp(math.lgamma(self.a + self.b) - math.lgamma(self.a) - math.lgamma(self.b))
        return self.scale * total * power(t, self.a - 1) * power(1 - t, self.b - 1)


@dataclass(frozen=True)
class Temper(Schedule):
    """(r s^2 + 1) / (r s^2 / k + 1) with r = t^2 / (1 - t)^2: 1 at the noise, k at the data.

    For data of variance s^2 it is the score of variance s^2 / k over that of s^2: k > 1 sharpens.
    """

    k: float = 0.95
    sigma: float = 1.0

    def __post_init__(self) -> None:
        finite(self, "k", "sigma")
        if not (self.k > 0 and self.sigma > 0):
            raise ValueError(f"Temper needs k and sigma above 0; got {self.k} and {self.sigma}")

    def __call__(self, t: Number) -> Number:
        signal, rest = self.sigma * self.sigma * t * t, (1 - t) * (1 - t)
        return (signal + rest) / (signal / self.k + rest)


@dataclass(frozen=True)
class DG(Schedule):
    """1 + C (scale - 1) f with f = (1 - A) sqrt(A) / beta, for a VP process with diffusion time u.

    beta runs linearly from `low` at the data, u = 0, to `high` at the noise, u = 1, and A = exp(-integral of
    beta). C makes the mean weight over u the scale. Our t is the u with sqrt(A / (1 - A)) = t / (1 - t).
    """

    scale: float
    low: float = 0.1
    high: float = 20.0
    _mean: ClassVar[float]  # of the density over u, worked out once

    def __post_init__(self) -> None:
        finite(self, "scale", "low", "high")
        if not 0 < self.low <= self.high:
            raise ValueError(f"DG needs 0 < low <= high; got {self.low} and {self.high}")
        object.__setattr__(self, "_mean", _average(self.low, self.high))

    def __call__(self, t: Number) -> Number:
        # -log A = log(1 + (1 - t)^2 / t^2), but regular at t = 0.
        signal, rest = t * t, (1 - t) * (1 - t)
        share = signal / (signal + rest)
        u = self._diffusion_time(_log(greater(share, 1e-30)))
        return 1 + (self.scale - 1) * _density(u, self.low, self.high) / self._mean

    def _diffusion_time(self, log_a: Number) -> Number:
        """u in [0, 1] with low u + (high - low) u^2 / 2 = -log A."""
        slope = self.high - self.low
        root = power(self.low * self.low - 2 * slope * log_a, 0.5)
        u = -2 * log_a / (self.low + root)
        return lesser(u, 1.0)


def _density(u: Number, low: float, high: float) -> Number:
    """(1 - A) sqrt(A) / beta at diffusion time u."""
    a = exp(-(low * u + (high - low) * u * u / 2))
    return (1 - a) * power(a, 0.5) / (low + (high - low) * u)


def _average(low: float, high: float) -> float:
    """Its mean over u, by the trapezoid rule; it vanishes at u = 0."""
    inner = sum(float(_density(i / _INTERVALS, low, high)) for i in range(1, _INTERVALS))
    return (inner + float(_density(1.0, low, high)) / 2) / _INTERVALS


@dataclass(frozen=True)
class Steps(Schedule):
    """values[i] from times[i] until the next time; the first value before the first time."""

    times: tuple[float, ...]
    values: tuple[float, ...]

    def __post_init__(self) -> None:
        for name in ("times", "values"):
            object.__setattr__(self, name, tuple(float(v) for v in getattr(self, name)))
        if len(self.times) != len(self.values) or not self.times:
            raise ValueError(
                f"Steps needs one value per time, one at least; got {len(self.times)} and {len(self.values)}"
            )
        if any(b <= a for a, b in pairwise(self.times)):
            raise ValueError(f"Steps needs increasing times; got {list(self.times)}")
        if not all(map(math.isfinite, self.times + self.values)):
            raise ValueError("Steps needs finite times and values")
        hold(self, "times", "values")

    def __call__(self, t: Number) -> Number:
        if not isinstance(t, Tensor):
            passed = sum(knot <= t + _ROUNDING for knot in self.times)
            return self.values[max(passed - 1, 0)]
        times, values = (
            torch.as_tensor(value_of(self, name, t), dtype=t.dtype, device=t.device)
            for name in ("times", "values")
        )
        place = torch.searchsorted(times, (t + _ROUNDING).contiguous(), right=True)
        return values[(place - 1).clamp(min=0)]


def by_step(schedule: Schedule, times: Sequence[float]) -> Steps:
    """A schedule of progress i / (N - 1) by step, on the grid of N steps with these N + 1 times."""
    count = len(times) - 1
    if count < 2:
        raise ValueError(f"a schedule by step needs a grid of two steps or more; got {len(times)} times")
    return Steps(times[:-1], [float(schedule(i / (count - 1))) for i in range(count)])  # type: ignore[arg-type]


def triangle(scale: float, times: Sequence[float], *, slope: str = "paper") -> Steps:
    """TV-CFG: from 1 up to 2 scale - 1 at the middle step and down again, with time average `scale`.

    After the peak, with M = ceil(N / 2), the paper goes down as (N - n) / (N - M); the repository of
    PMC-CFG's authors ('repo') as (N - n) / M, which differs where N is odd.
    """
    if slope not in ("paper", "repo"):
        raise ValueError(f"triangle has the slope of the 'paper' or of the 'repo'; got {slope!r}")
    count = len(times) - 1
    if count < 1:
        raise ValueError(f"triangle needs a grid of one step at least; got {len(times)} times")
    peak = math.ceil(count / 2)
    fall = count - peak if slope == "paper" else peak
    raw = [1 + 2 * (scale - 1) * (n / peak if n <= peak else (count - n) / fall) for n in range(count)]
    spans = [b - a for a, b in pairwise(times)]
    # fsum: sum() rounds otherwise from Python 3.12 on, and the numbers are printed.
    average = math.fsum(r * d for r, d in zip(raw, spans, strict=True)) / math.fsum(spans)
    if average == 0:
        raise ValueError(
            f"a triangle of scale {scale} on this grid averages to zero and cannot be normalised"
        )
    return Steps(times[:-1], [scale / average * r for r in raw])  # type: ignore[arg-type]


def _cos(v: Number) -> Number:
    return v.cos() if isinstance(v, Tensor) else math.cos(v)


def _log(v: Number) -> Number:
    return v.log() if isinstance(v, Tensor) else math.log(v)
