"""Rules that weigh the displacement by one number: plain gains and other base points.

CFG                g <- (scale - 1) g                 from m_c
Gain               g <- scale g                       from m_c
FromUnconditional  g <- scale g - (m_c - m_u)         from m_u: m = m_u + scale g
Interval           g, while the time is in an interval
Clip               g <- g min(1, radius / |g|)
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ..prediction import Prediction
from ..schedules import Scale, at, finite, finite_scale
from ..tensors import Number, magnitude, per_sample, vector
from .catalogue import method
from .rule import Displacement, Factor, Rule, State, exactly
from .spaces import need_space, stretch


@method(check=(0.9, -3.0, 0.1, 2.2))
@dataclass(frozen=True)
class CFG(Factor):
    """Classifier-free guidance. Scale 1 is conditional, 0 unconditional.

    formula: m = m_u + scale (m_c - m_u), which is g <- (scale - 1) g
    space: any
    source: Ho & Salimans 2022, arXiv 2207.12598; for flows Zheng et al. 2023
    evidence: willisma/SiT models.py; diffusers 0.42.1
    use when: nothing else is tuned yet: every other rule is compared with it, tuned
    state: none
    defaults:
        - SiT-XL/2 256: scale 1.5 (its README: FID 2.06, IS 270.27)
        - EDM2-S 512, EDM2-XXL 512: scale 1.4, 1.2 (NVlabs/edm2: FID 2.23, 1.81)
        - text to image: scale 4 to 7 (common practice)
    notes:
        - SiT's forward_with_cfg guides the first 3 of 4 latent channels only, and its published numbers do so
        - diffusers' use_original_formulation means m_c + scale (m_c - m_u), one unit more
    """

    scale: Scale

    reads_m_u = False

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

    reads_m_u = False

    def __post_init__(self) -> None:
        finite(self, "lo", "hi")
        if not 0 <= self.lo <= self.hi <= 1:
            raise ValueError(f"Interval needs 0 <= lo <= hi <= 1; got lo={self.lo}, hi={self.hi}")

    def idle(self, t: float, state: State = None) -> bool:
        return not self.lo <= t <= self.hi

    def factor(self, g: Displacement, p: Prediction) -> Number:
        inside = (p.t >= self.lo) & (p.t <= self.hi)
        return vector(inside, p.shown) if isinstance(inside, Tensor) else float(inside)


@dataclass(frozen=True)
class Clip(Factor):
    """Shortens g to at most `radius`: g <- g min(1, radius / |g|). The radius is absolute, in its `space`."""

    radius: float
    space: str = "mean"

    reads_m_u = False

    def __post_init__(self) -> None:
        if not (isinstance(self.radius, (int, float)) and self.radius > 0):
            raise ValueError(f"Clip needs a radius above 0 (inf clips nothing); got {self.radius}")
        need_space(self)

    def factor(self, g: Displacement, p: Prediction) -> Number:
        if self.radius == math.inf:  # math.isinf would break a compiled graph
            return 1.0
        length = stretch(p.t, self.space) * magnitude(g.coefficient) * g.lengths.d
        return torch.where(length > self.radius, self.radius / length, 1.0)


@dataclass(frozen=True)
class Gain(Factor):
    """g <- scale g. Scale 0 is the conditional prediction."""

    scale: Scale

    reads_m_u = False

    def __post_init__(self) -> None:
        finite_scale(self, "scale")

    def idle(self, t: float, state: State = None) -> bool:
        return exactly(self.scale, t, 0.0)

    def factor(self, g: Displacement, p: Prediction) -> Number:
        return at(self.scale, p.t)


@dataclass(frozen=True)
class FromUnconditional(Rule):
    """Counts scale g from the unconditional prediction: m = m_u + scale g.

    For g = m_c - m_u this is CFG. Once g has been clipped, projected or switched the two differ: the base is
    then the unconditional prediction, and scale 1 does not give the conditional one.
    """

    scale: Scale

    turns = False  # a direction that is still the gap stays the gap

    def __post_init__(self) -> None:
        finite_scale(self, "scale")

    def update(self, given: Displacement, p: Prediction, state: State) -> tuple[Displacement, State]:
        total = at(self.scale, p.t) * given.coefficient
        if given.direction is given.p.gap:  # still the gap
            return Displacement(given.p, total - 1, given.direction, given.requested), state
        g = per_sample(total, given.toward) * given.toward
        return given.turn(g - p.delta), state
