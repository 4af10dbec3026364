"""The space a rule acts in, seen from posterior means.

    mean      m
    velocity  v = (m - x) / (1 - t)
    noise     n = (x - t m) / (1 - t)
    score     S = (t m - x) / (1 - t)^2

Each is an affine function of m, the same for both predictions, so an affine combination with weights that sum
to one is one rule in every space. Norms, angles, projections and quantiles are not: their space belongs to
the rule. Directions are taken as m, m - x, x - t m and t m - x, so that nothing divides by 1 - t.
"""

from __future__ import annotations

from torch import Tensor

from ..prediction import Prediction
from ..tensors import Number, per_sample, promoted
from .velocities import Velocities

SPACES = ("mean", "velocity", "noise", "score")

# Where a rule must divide by 1 - t or by t, it divides by no less than this.
SHORTEST = 2.0**-20


def known_space(self: object, *allowed: str) -> None:
    """Refuses a `space` that the rule does not know."""
    space = getattr(self, "space")  # noqa: B009
    if space not in (allowed or SPACES):
        names = " or ".join(map(repr, allowed or SPACES))
        raise ValueError(f"{type(self).__name__} acts in the space {names}; got {space!r}")


def seen(m: Tensor, p: Prediction, space: str) -> Tensor:
    """The prediction m in a space, up to one positive factor per sample: enough for angles and ratios."""
    if space == "mean":
        return m
    if space == "velocity":
        return m - p.x
    along = per_sample(p.t, m) * m
    return p.x - along if space == "noise" else along - p.x


def conditional(p: Prediction, space: str) -> Tensor:
    """m_c seen in a space; where velocities are known, (1 - t) v_c and not the difference m_c - x."""
    if space == "velocity" and isinstance(p, Velocities):
        return per_sample(1 - p.t, p.velocity_c) * p.velocity_c
    return seen(p.m_c, p, space)


def pair(p: Prediction, space: str) -> tuple[Tensor, Tensor]:
    """Both predictions in a space, up to one positive factor per sample that they share."""
    if space == "velocity" and isinstance(p, Velocities):
        return p.velocity_c, promoted(p.v_u)
    return seen(p.m_c, p, space), seen(p.m_u, p, space)


def stretch(t: Number, space: str) -> Number:
    """|k|, by which a gap of means must be multiplied to become the gap in a space."""
    if space == "mean":
        return 1.0
    if space == "velocity":
        return 1 / rest(t)
    return t / rest(t) if space == "noise" else t / rest(t) ** 2


def rest(t: Number) -> Number:
    """1 - t, but never zero."""
    return (1 - t).clamp(min=SHORTEST) if isinstance(t, Tensor) else max(1 - t, SHORTEST)


def elapsed(t: Number) -> Number:
    """t, but never zero."""
    return t.clamp(min=SHORTEST) if isinstance(t, Tensor) else max(t, SHORTEST)
