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
from ..schedules import Scale, at, finite_scale
from ..tensors import Number, per_sample
from .rule import Displacement, Factor, Rule, State, exactly


@dataclass(frozen=True)
class Gain(Factor):
    """g <- scale g. Scale 0 is the conditional prediction."""

    scale: Scale

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
