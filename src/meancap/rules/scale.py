"""Rules that scale the displacement: CFG, the interval in which it acts, a clip of its length."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..prediction import Prediction
from ..schedules import Scale, finite, finite_scale, value_of
from ..tensors import Number, choose, divide, each_sample, size
from .base import Factor, Ray, State, exactly
from .spaces import known_space, stretch


@dataclass(frozen=True)
class CFG(Factor):
    """Classifier-free guidance: g <- (scale - 1) g. Scale 1 is conditional, 0 unconditional."""

    scale: Scale

    multiplies = True

    def __post_init__(self) -> None:
        finite_scale(self, "scale")

    def idle(self, t: float, state: State = None) -> bool:
        return exactly(self.scale, t, 1.0)

    def coefficient(self, ray: Ray, p: Prediction) -> Number:
        return (value_of(self, "scale", p.t) - 1) * ray.coefficient


@dataclass(frozen=True)
class Interval(Factor):
    """Guidance only while lo <= t <= hi (data at t = 1); the conditional mean elsewhere."""

    lo: float
    hi: float

    multiplies = True

    def __post_init__(self) -> None:
        finite(self, "lo", "hi")
        if not 0 <= self.lo <= self.hi <= 1:
            raise ValueError(f"Interval needs 0 <= lo <= hi <= 1; got lo={self.lo}, hi={self.hi}")

    def idle(self, t: float, state: State = None) -> bool:
        return not self.lo <= t <= self.hi

    def coefficient(self, ray: Ray, p: Prediction) -> Number:
        inside = (p.t >= self.lo) & (p.t <= self.hi)
        return choose(inside, ray.coefficient, 0.0)


@dataclass(frozen=True)
class Clip(Factor):
    """Shortens g to at most `radius`: g <- g min(1, radius / |g|). The radius is absolute, in its `space`."""

    radius: float
    space: str = "mean"

    multiplies = True

    def __post_init__(self) -> None:
        if not (isinstance(self.radius, (int, float)) and self.radius > 0):
            raise ValueError(f"Clip needs a radius above 0 (inf clips nothing); got {self.radius}")
        known_space(self)

    def coefficient(self, ray: Ray, p: Prediction) -> Number:
        if self.radius == math.inf:  # math.isinf would break a compiled graph
            return ray.coefficient
        return each_sample(self._clipped, ray.coefficient, ray.lengths.d, stretch(p.t, self.space))

    def _clipped(self, c: Number, d: Number, k: Number) -> Number:
        length = k * size(c) * d
        return choose(length > self.radius, c * divide(self.radius, length), c)
