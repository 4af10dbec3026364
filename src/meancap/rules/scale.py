"""Rules that weigh the displacement by one number: gains, other base points, an interval, a clip."""

from __future__ import annotations

import torch
from torch import Tensor

from ..prediction import Prediction
from ..schedules import Scale, at
from ..tensors import Number, per_sample, vector
from .methods import method
from .rule import Displacement, Factor, Rule, State
from .spaces import SPACES, part, stretch


@method(check=(0.9, -3.0, 0.1, 2.2))
@part()
class CFG(Factor):
    """Classifier-free guidance. Scale 1 is conditional, 0 unconditional.

    formula: m = m_u + scale (m_c - m_u), which is g <- (scale - 1) g
    space: any
    source: Ho & Salimans 2022, arXiv 2207.12598; for flows Zheng et al. 2023
    evidence: willisma/SiT models.py; diffusers 0.42.1
    use when: nothing else is tuned yet: every other rule is compared with it, tuned
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

    def idle(self, t: float, state: State = None) -> bool:
        return _exactly(self.scale, t, 1.0)

    def factor(self, g: Displacement, p: Prediction) -> Number:
        return (self.scale if isinstance(self.scale, float) else at(self.scale, p.t)) - 1


@part("0 <= lo <= hi <= 1")
class Interval(Factor):
    """Guidance only while lo <= t <= hi (data at t = 1); the conditional mean elsewhere."""

    lo: float
    hi: float

    reads_m_u = False

    def idle(self, t: float, state: State = None) -> bool:
        return not self.lo <= t <= self.hi

    def factor(self, g: Displacement, p: Prediction) -> Number:
        inside = (p.t >= self.lo) & (p.t <= self.hi)
        return vector(inside, p.state) if isinstance(inside, Tensor) else float(inside)


@part("0 < radius", space=SPACES)
class Clip(Factor):
    """Shortens g to at most `radius`: g <- g min(1, radius / |g|). The radius is absolute, in its `space`."""

    radius: float
    space: str = "mean"

    reads_m_u = False

    def factor(self, g: Displacement, p: Prediction) -> Number:
        length = stretch(p.t, self.space) * g.length
        longer = length > self.radius  # a clamp would make a new graph for each radius
        return torch.where(longer, self.radius / torch.where(longer, length, 1.0), 1.0)


@part()
class Gain(Factor):
    """g <- scale g. Scale 0 is the conditional prediction."""

    scale: Scale

    reads_m_u = False

    def idle(self, t: float, state: State = None) -> bool:
        return _exactly(self.scale, t, 0.0)

    def factor(self, g: Displacement, p: Prediction) -> Number:
        return at(self.scale, p.t)


@part()
class FromUnconditional(Rule):
    """Counts scale g from the unconditional prediction: m = m_u + scale g.

    For g = m_c - m_u this is CFG. Once g has been clipped, projected or switched the two differ: the base is
    then the unconditional prediction, and scale 1 does not give the conditional one.
    """

    scale: Scale

    turns = False  # a direction that is still the gap stays the gap

    def update(self, given: Displacement, p: Prediction, state: State) -> tuple[Displacement, State]:
        total = at(self.scale, p.t) * given.coefficient
        if given.direction is None:  # still the gap
            return Displacement(given.p, total - 1, measured=given.measured), state
        g = per_sample(total, given.toward) * given.toward
        return given.turn(g - p.delta), state


def _exactly(scale: Scale, t: float, value: float) -> bool:
    """Whether a scale has this value at time t, as far as one can tell without waiting for a device."""
    found = at(scale, t)
    return not isinstance(found, Tensor) and found == value
