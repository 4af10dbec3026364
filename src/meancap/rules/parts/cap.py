"""Caps: the largest share of g that keeps the guided mean inside a convex set.

    y    m_c - r, the conditional mean seen from the anchor r (0 unless given)
    |.|  the Euclidean norm of a sample, of each channel, or of W y with whitening
    Cap              |y + s g| <= max(gamma |y|, R(t))               the ball of Peng & Ma, Section 4
    CapDisplacement      |s g| <= max((gamma - 1) |y|, R(t))         the rule of their SD3.5 experiments

All of them are one root of one quadratic, derived in `meancap.cap`. The displacement form is stricter: the
two agree only if g points along y, so one gamma does not mean the same in both. Caps in a chain intersect,
because the largest share in both sets is the smaller of the two.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ...cap import Lengths, cap_share, lengths, margin_of
from ...prediction import Prediction, need_same_shapes
from ...schedules import Scale, Schedule, Values, at, finite, finite_scale
from ...tensors import Number, below, vector
from ..rule import Displacement, Factor, State

Anchor = float | str | Values | Tensor | list[float] | tuple[float, ...] | None


def cap_fraction(m: Tensor, g: Tensor, gamma: float) -> Tensor:
    """Largest s in [0, 1] with |m + s g| <= gamma |m|, for each sample."""
    need_same_shapes(m=m, g=g)
    limit: float = Cap(gamma).gamma  # type: ignore[assignment]
    s = cap_share(lengths(m, g), 1.0, limit, margin=margin_of(m.dtype))
    return s.to(torch.promote_types(m.dtype, torch.float32)).reshape(-1, *[1] * (m.dim() - 1))


@dataclass(frozen=True)
class Cap(Factor):
    """Shrinks g until the guided mean is at most gamma times as long as m_c.

    anchor  the point r that lengths are measured from: a number, one value per channel, a whole sample, or
            'first' for the unconditional mean of the first step
    whiten  W: one factor per channel or element, or a square matrix on the flattened sample
    per     'sample', or 'channel' to bound each channel and keep the least share
    floor   R(t), a radius that is always allowed
    smooth  width in (0, 1] of a C1 transition to the nominal scale, inside the bound; 0 is the hard cap
    """

    gamma: Scale
    _: KW_ONLY
    anchor: Anchor = None
    whiten: Values | Tensor | list[float] | tuple[float, ...] | None = None
    per: str = "sample"
    floor: Scale | None = None
    smooth: float = 0.0

    caps = True
    ball: ClassVar[bool] = True  # whether the guided mean is bounded, or the displacement alone

    def __post_init__(self) -> None:
        name = type(self).__name__
        gamma = self.gamma
        if isinstance(gamma, (Tensor, list, tuple)):
            finite_scale(self, "gamma")
            gamma = at(self.gamma, 0.0)
            if below(gamma, 1.0):
                raise ValueError(f"{name} needs gamma >= 1; got {self.gamma}")
        elif not isinstance(gamma, Schedule):
            if isinstance(gamma, bool) or not isinstance(gamma, (int, float)) or not gamma >= 1:
                raise ValueError(f"{name} needs gamma >= 1 (1 forbids any growth of the mean); got {gamma}")
            object.__setattr__(self, "gamma", float(gamma))
        if self.floor is not None:
            finite_scale(self, "floor")
        for field in ("anchor", "whiten"):
            if isinstance(value := getattr(self, field), (Tensor, list, tuple)):
                object.__setattr__(self, field, Values(value))
        if isinstance(self.anchor, (int, float)):
            finite(self, "anchor")
        elif not (self.anchor is None or self.anchor == "first" or isinstance(self.anchor, Values)):
            raise ValueError(
                f"{name} knows the anchor 'first', a number, values or a tensor; got {self.anchor!r}"
            )
        if not (self.whiten is None or isinstance(self.whiten, Values)):
            raise ValueError(f"{name} whitens by values, a list or a tensor; got {self.whiten!r}")
        if self.per not in ("sample", "channel"):
            raise ValueError(f"{name} is per 'sample' or 'channel'; got {self.per!r}")
        finite(self, "smooth")
        if not 0 <= self.smooth <= 1:
            raise ValueError(f"{name} needs smooth between 0 (a hard cap) and 1; got {self.smooth}")

    @property
    def has_state(self) -> bool:
        return self.anchor == "first"

    def update(self, g: Displacement, p: Prediction, state: State) -> tuple[Displacement, State]:
        if self.anchor == "first" and state is None:
            state = p.m_u
        gamma, floor = at(self.gamma, p.t), 0.0 if self.floor is None else at(self.floor, p.t)
        if below(gamma, 1.0):
            raise ValueError(f"{self} needs gamma >= 1 at every time; at t = {p.t} it is {gamma}")
        if isinstance(gamma, Tensor):  # if its values cannot be read, it is 1 at least
            gamma = gamma.clamp(min=1.0)
        if self.anchor is not None or self.whiten is not None or self.per == "channel":
            return g.capped(self._own_share(g, gamma, floor, state)), state
        share = self._share(g.lengths, g.coefficient, gamma, floor, margin_of(p.dtype))
        return g.capped(share, self._bound(g.lengths.m, gamma, floor)), state

    def within_step(self, before: State, after: State) -> State:
        return after  # the first evaluation fixes the anchor for the whole run

    def _share(self, seen: Lengths, c: Number, gamma: Number, floor: Number, margin: float) -> Tensor:
        if not self.smooth:
            return cap_share(seen, c, gamma, floor, ball=self.ball, margin=margin)
        # For twice the displacement the share may go up to 2 in units of the nominal one.
        s = 2 * cap_share(seen, 2 * c, gamma, floor, ball=self.ball, margin=margin)
        # A C1 minimum of s and 1 that never exceeds either; exact if they differ by more than `smooth`.
        short = (self.smooth - (s - 1).abs()).clamp(min=0)
        return s.clamp(max=1) - short * short / (4 * self.smooth)

    def _bound(self, m: Tensor, gamma: Number, floor: Number) -> Tensor:
        """The longest mean that the cap permits."""
        radius = gamma * m if self.ball else (gamma - 1) * m
        if isinstance(floor, Tensor) or floor > 0:
            radius = torch.maximum(radius, vector(floor, m))
        return radius if self.ball else m + radius

    def _own_share(self, g: Displacement, gamma: Number, floor: Number, first: Tensor | None) -> Tensor:
        """The share from lengths in the cap's own norm: from its anchor, whitened, or of each channel."""
        p, c = g.p, g.coefficient
        m, d = p.m_c, g.toward
        if isinstance(self.anchor, Values):
            m = m - self.anchor.on(m, "anchor")
        elif isinstance(self.anchor, float):
            m = m - self.anchor
        elif first is not None:
            m = m - first
        if isinstance(self.whiten, Values):
            m, d = self.whiten.times(m, "whiten"), self.whiten.times(d, "whiten")
        channels = m.shape[1] if self.per == "channel" else 1
        if self.per == "channel":
            m, d = (v.flatten(0, 1).reshape(len(v) * channels, -1) for v in (m, d))
            c, gamma, floor = (vector(v, p.shown).repeat_interleave(channels) for v in (c, gamma, floor))
        share = self._share(lengths(m, d), c, gamma, floor, margin_of(p.dtype))
        return share.reshape(-1, channels).amin(1)


@dataclass(frozen=True)
class CapDisplacement(Cap):
    """Shrinks g until it is at most gamma - 1 times as long as m_c; options as in `Cap`."""

    ball: ClassVar[bool] = False
