"""Rules that rescale the whole guided prediction, not only the displacement: what production models ship.

    c       the conditional prediction, in the rule's space
    y       the guided one so far, c + g
    Renorm        y <- y min(1, rho |c| / |y|), or exactly rho |c| / |y|, per sample, token, pixel or channel
    EnergyMatch   y <- y sqrt(E(c) / E(y)), the energy optionally of a middle band of values only
    Multiply      y <- factor y, a number that may depend on the time

They change the direction of y - c, never come back to plain CFG while they act, and on velocities they also
shrink the part that belongs to x.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ...prediction import Prediction
from ...schedules import Scale, finite, finite_scale, value_of
from ...tensors import per_sample, scalar_dtype
from ..protocol.base import Map
from .phases import flag
from .spaces import conditional, elapsed, known_space

GROUPS = ("sample", "channel", "token", "pixel")


def known_group(self: object, *allowed: str) -> None:
    """Refuses a `per` that the rule does not know."""
    per = getattr(self, "per")  # noqa: B009
    if per not in (allowed or GROUPS):
        raise ValueError(f"{type(self).__name__} is per {', '.join(allowed or GROUPS)}; got {per!r}")


def axes(v: Tensor, per: str) -> tuple[int, ...]:
    """The axes to reduce so that one number is left per sample, channel (axis 1), token (all but the last
    axis) or pixel (all but axis 1). A sample without such axes is one group.
    """
    every = tuple(range(1, v.dim()))
    if per == "token":
        return every[-1:]
    if per == "pixel":
        return every[:1]
    return every[1:] or every if per == "channel" else every


def group_lengths(v: Tensor, per: str) -> Tensor:
    """The Euclidean length of every group, in float64, shaped to multiply v."""
    lengths: Tensor = torch.linalg.vector_norm(
        v, dim=axes(v, per), keepdim=True, dtype=scalar_dtype(v.device)
    )
    return lengths


def _times(ratio: Tensor, c: Tensor, g: Tensor) -> Tensor:
    """ratio (c + g) - c, without a difference of nearly equal tensors where the ratio is near 1."""
    return (ratio - 1).to(g.dtype) * c + ratio.to(g.dtype) * g


@dataclass(frozen=True)
class Renorm(Map):
    """Shrinks the guided prediction to at most rho times the length of the conditional one.

    per       'sample', 'token' (over the last axis), 'pixel' (over axis 1) or 'channel' (over all but axis 1)
    match     the length becomes rho |c| exactly, so that short predictions grow as well
    least     the smallest factor allowed
    strength  a factor on the result
    """

    rho: float = 1.0
    per: str = "sample"
    space: str = "velocity"
    match: bool = False
    least: float = 0.0
    strength: float = 1.0

    def __post_init__(self) -> None:
        finite(self, "rho", "least", "strength")
        flag(self, "match")
        if self.rho < 0 or not 0 <= self.least <= 1:
            raise ValueError(f"Renorm needs rho >= 0 and least in [0, 1]; got {self.rho} and {self.least}")
        known_group(self)
        known_space(self, "velocity", "mean")

    def __call__(self, g: Tensor, p: Prediction) -> Tensor:
        c = conditional(p, self.space)
        wanted, actual = self.rho * group_lengths(c, self.per), group_lengths(c + g, self.per)
        ratio = torch.where(actual == 0, 1.0, wanted / actual)
        if not self.match:
            ratio = ratio.clamp(self.least, 1.0)
        return _times(self.strength * ratio, c, g)


@dataclass(frozen=True)
class EnergyMatch(Map):
    """Gives the guided prediction the energy of the conditional one (EP-CFG).

    The energy is the sum of squares; with 0 < low < high < 1, of those squares only that lie between the
    quantiles low and high of their sample.
    """

    low: float = 0.0
    high: float = 1.0
    space: str = "mean"

    def __post_init__(self) -> None:
        finite(self, "low", "high")
        if not 0 <= self.low < self.high <= 1:
            raise ValueError(f"EnergyMatch needs 0 <= low < high <= 1; got {self.low} and {self.high}")
        known_space(self, "velocity", "mean")

    def __call__(self, g: Tensor, p: Prediction) -> Tensor:
        c = conditional(p, self.space)
        wanted, actual = self._energy(c), self._energy(c + g)
        ratio = torch.where(actual == 0, 1.0, wanted / actual).sqrt()
        return _times(ratio.reshape(-1, *[1] * (g.dim() - 1)), c, g)

    def _energy(self, v: Tensor) -> Tensor:
        squares = v.flatten(1).to(scalar_dtype(v.device)).square()
        if self.low == 0 and self.high == 1:
            return squares.sum(1)
        low, high = (quantile(squares, q) for q in (self.low, self.high))
        inside = (squares >= low) & (squares <= high)
        return torch.where(inside, squares, 0.0).sum(1)


@dataclass(frozen=True)
class Multiply(Map):
    """Multiplies the whole guided prediction by `factor`, the state and the time held; put it after CFG.

    noise     m <- x / t + factor (m - x / t); the factor must go to 1 at t = 0, where the noise is x itself
    velocity  m <- x + factor (m - x)
    """

    factor: Scale
    space: str = "noise"

    def __post_init__(self) -> None:
        finite_scale(self, "factor")
        known_space(self, "noise", "velocity")

    def __call__(self, g: Tensor, p: Prediction) -> Tensor:
        more = value_of(self, "factor", p.t) - 1
        if self.space == "velocity":
            return g + per_sample(more, g) * (conditional(p, "velocity") + g)
        # m - x / t is (t m - x) / t; divided first, a factor that goes to 1 fast enough stays regular at 0.
        seen = conditional(p, "score") + per_sample(p.t, g) * g
        return g + per_sample(more / elapsed(p.t), g) * seen


def quantile(v: Tensor, q: float) -> Tensor:
    """The linear quantile along the last axis, kept; torch's own refuses more than 16 million elements."""
    if q == 1:
        return v.amax(-1, keepdim=True)
    ordered = v.sort(dim=-1).values
    place = q * (v.shape[-1] - 1)
    below = int(place)
    lower, upper = ordered[..., below, None], ordered[..., min(below + 1, v.shape[-1] - 1), None]
    return lower + (place - below) * (upper - lower)
