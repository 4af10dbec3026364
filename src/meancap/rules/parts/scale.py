"""Rules that scale the displacement: CFG, the interval in which it acts, a clip of its length."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ...prediction import Prediction
from ...schedules import Scale, finite, finite_scale, value_of
from ...tensors import Number, magnitude
from ..catalogue import method
from ..protocol.base import Factor, State, exactly, fix
from ..protocol.ray import Ray
from ..spaces import known_space, stretch


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

    multiplies = True

    def __post_init__(self) -> None:
        finite_scale(self, "scale")
        if type(self) is CFG and isinstance(self.scale, float):
            fix(self, self.scale - 1)

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
        if isinstance(inside, Tensor):
            return torch.where(inside, ray.coefficient, 0.0)
        return ray.coefficient if inside else 0.0


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
        c = ray.coefficient
        length = stretch(p.t, self.space) * magnitude(c) * ray.lengths.d
        return torch.where(length > self.radius, c * (self.radius / length), c)
