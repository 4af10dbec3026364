"""Rules that scale the displacement: CFG, the interval in which it acts, a clip of its length."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ...prediction import Prediction
from ...schedules import Scale, at, finite, finite_scale
from ...tensors import Number, magnitude
from ..rule import Displacement, Factor, State, exactly
from .spaces import known_space, stretch


@dataclass(frozen=True)
class CFG(Factor):
    """Classifier-free guidance: g <- (scale - 1) g. Scale 1 is conditional, 0 unconditional."""

    scale: Scale

    def __post_init__(self) -> None:
        finite_scale(self, "scale")

    def idle(self, t: float, state: State = None) -> bool:
        return exactly(self.scale, t, 1.0)

    def factor(self, g: Displacement, p: Prediction) -> Number:
        return at(self.scale, p.t) - 1


@dataclass(frozen=True)
class Interval(Factor):
    """Guidance only while lo <= t <= hi (data at t = 1); the conditional mean elsewhere."""

    lo: float
    hi: float

    def __post_init__(self) -> None:
        finite(self, "lo", "hi")
        if not 0 <= self.lo <= self.hi <= 1:
            raise ValueError(f"Interval needs 0 <= lo <= hi <= 1; got lo={self.lo}, hi={self.hi}")

    def idle(self, t: float, state: State = None) -> bool:
        return not self.lo <= t <= self.hi

    def factor(self, g: Displacement, p: Prediction) -> Number:
        inside = (p.t >= self.lo) & (p.t <= self.hi)
        return torch.where(inside, 1.0, 0.0) if isinstance(inside, Tensor) else float(inside)


@dataclass(frozen=True)
class Clip(Factor):
    """Shortens g to at most `radius`: g <- g min(1, radius / |g|). The radius is absolute, in its `space`."""

    radius: float
    space: str = "mean"

    def __post_init__(self) -> None:
        if not (isinstance(self.radius, (int, float)) and self.radius > 0):
            raise ValueError(f"Clip needs a radius above 0 (inf clips nothing); got {self.radius}")
        known_space(self)

    def factor(self, g: Displacement, p: Prediction) -> Number:
        if self.radius == math.inf:  # math.isinf would break a compiled graph
            return 1.0
        length = stretch(p.t, self.space) * magnitude(g.coefficient) * g.lengths.d
        return torch.where(length > self.radius, self.radius / length, 1.0)
