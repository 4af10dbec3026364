"""Rules that weigh the displacement by one number: plain gains and other base points.

CFG                g <- (scale - 1) g                 from m_c
Gain               g <- scale g                       from m_c
FromUnconditional  g <- scale g - (m_c - m_u)         from m_u: m = m_u + scale g
Interval           g, while the time is in an interval
Clip               g <- g min(1, radius / |g|)
"""

from __future__ import annotations

from dataclasses import dataclass

from ..prediction import Prediction
from ..schedules import Scale, finite_scale, value_of
from ..tensors import Number, per_sample
from .protocol.base import Factor, Rule, State, exactly
from .protocol.ray import Ray


@dataclass(frozen=True)
class Gain(Factor):
    """g <- scale g. Scale 0 is the conditional prediction."""

    scale: Scale

    multiplies = True

    def __post_init__(self) -> None:
        finite_scale(self, "scale")

    def idle(self, t: float, state: State = None) -> bool:
        return exactly(self.scale, t, 0.0)

    def coefficient(self, ray: Ray, p: Prediction) -> Number:
        return value_of(self, "scale", p.t) * ray.coefficient


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

    def update(self, ray: Ray, p: Prediction, state: State) -> tuple[Ray, State]:
        total = value_of(self, "scale", p.t) * ray.coefficient
        if ray.turned is None:
            return ray.scaled(total - 1), state
        g = per_sample(total, ray.turned) * ray.turned
        return Ray(p, turned=g - p.delta, asked=ray.asked), state
