"""Caps: the largest share of g that keeps the guided mean inside a convex set.

    y    m_c - r, the conditional mean seen from the anchor r (0 unless given)
    |.|  the Euclidean norm of a sample, of each channel, or of W y with whitening
    Cap              |y + s g| <= max(gamma |y|, R(t))               the ball of Peng & Ma, Section 4
    CapDisplacement      |s g| <= max((gamma - 1) |y|, R(t))         the rule of their SD3.5 experiments

All of them are one root of one quadratic, derived in `meancap.operation.fraction`. The displacement form is
stricter: the two agree only where g points along y, so one gamma does not mean the same in both. Caps in
a chain intersect, because the largest share in both sets is the smaller of the two.

A plain cap (no anchor, no whitening, whole samples, hard) only leaves its `Limit` on the ray: the operation
that writes the result solves it. The others are solved here, from lengths in their own norm.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ...operation import Lengths, kept, lengths, margin_of
from ...prediction import Prediction, need_same_shapes
from ...schedules import Given, Scale, Schedule, finite, finite_scale, hold, value_of
from ...tensors import Number, below, on_host, vector
from ..protocol.base import Factor, State, fix
from ..protocol.ray import Limit, Ray
from .values import Values

Anchor = float | str | Values | Tensor | list[float] | tuple[float, ...] | None


def cap_fraction(m: Tensor, g: Tensor, gamma: float) -> Tensor:
    """Largest s in [0, 1] with |m + s g| <= gamma |m|, for each sample."""
    need_same_shapes(m=m, g=g)
    one, limit = vector(1.0, m), vector(Cap(gamma).gamma, m)  # type: ignore[arg-type]
    s = kept(*lengths(m, g), one, limit, torch.zeros_like(one), ball=True, margin=margin_of(m.dtype))
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
    anchor: Anchor = None
    whiten: Values | Tensor | list[float] | tuple[float, ...] | None = None
    per: str = "sample"
    floor: Scale | None = None
    smooth: float = 0.0

    caps = True
    multiplies = True
    ball: ClassVar[bool] = True  # whether the guided mean is bounded, or the displacement alone

    def __post_init__(self) -> None:
        name = type(self).__name__
        if isinstance(self.gamma, Tensor):
            if on_host(self.gamma) and bool((self.gamma < 1).any()):
                raise ValueError(f"{name} needs gamma >= 1; got {self.gamma.tolist()}")
            object.__setattr__(self, "gamma", Given(self.gamma))
        elif not isinstance(self.gamma, Schedule):
            if (
                isinstance(self.gamma, bool)
                or not isinstance(self.gamma, (int, float))
                or not self.gamma >= 1
            ):
                raise ValueError(
                    f"{name} needs gamma >= 1 (1 forbids any growth of the mean); got {self.gamma}"
                )
            object.__setattr__(self, "gamma", float(self.gamma))
            hold(self, "gamma")
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
        gamma, floor = self.gamma, 0.0 if self.floor is None else self.floor
        ours = type(self) in (Cap, CapDisplacement)  # another class may do something else
        if ours and self.is_plain and isinstance(gamma, float) and isinstance(floor, float):
            fix(self, 1.0, Limit(gamma, floor, self.ball))

    @property
    def has_state(self) -> bool:
        return self.anchor == "first"

    def update(self, ray: Ray, p: Prediction, state: State) -> tuple[Ray, State]:
        if self.has_state and state is None:
            state = p.m_u
        limit = self._limit(p)
        if self.is_plain:
            return ray.limited(limit), state
        c = ray.coefficient
        asked = c if ray.asked is None else ray.asked
        return ray.scaled(self._shortened(ray, limit, state), asked=asked), state

    def within_step(self, before: State, after: State) -> State:
        return after  # the first evaluation fixes the anchor for the whole run

    @property
    def is_plain(self) -> bool:
        """Whether the operation can solve it from the lengths of m_c and the direction."""
        return self.anchor is None and self.whiten is None and self.per == "sample" and not self.smooth

    def _limit(self, p: Prediction) -> Limit:
        floor = 0.0 if self.floor is None else value_of(self, "floor", p.t)
        gamma = value_of(self, "gamma", p.t)
        if below(gamma, 1.0):
            raise ValueError(f"{self} needs gamma >= 1 at every time; at t = {p.t} it is {gamma}")
        if isinstance(gamma, Tensor):  # and where its values cannot be read, it is 1 at least
            gamma = gamma.clamp(min=1.0)
        return Limit(gamma, floor, self.ball)

    def _shortened(self, ray: Ray, limit: Limit, first: Tensor | None) -> Number:
        p, seen = ray.p, self._seen(ray, first)
        c, gamma, floor = (vector(v, p.shown) for v in (ray.coefficient, limit.gamma, limit.floor))
        channels = p.shown.shape[1] if self.per == "channel" else 1
        c, gamma, floor = (v.repeat_interleave(channels) for v in (c, gamma, floor))
        share = self._share(seen, c, gamma, floor, margin_of(p.dtype)).reshape(-1, channels).amin(1)
        c = c.reshape(-1, channels)[:, 0]
        return torch.where(c == 0, c, c * share)  # nothing asked for, nothing granted, whatever the gap

    def _share(self, seen: Lengths, c: Tensor, gamma: Tensor, floor: Tensor, margin: float) -> Tensor:
        if not self.smooth:
            return kept(*seen, c, gamma, floor, ball=self.ball, margin=margin)
        # Asked for twice the displacement, the share may go up to 2 in units of the nominal one.
        return _smoothed(2 * kept(*seen, 2 * c, gamma, floor, ball=self.ball, margin=margin), self.smooth)

    def _seen(self, ray: Ray, first: Tensor | None) -> Lengths:
        """Lengths from the anchor, in the cap's own norm."""
        if self.anchor is None and self.whiten is None and self.per == "sample":
            return ray.lengths
        m, d = ray.p.m_c, ray.direction
        if self.anchor == "first":
            m = m - first if first is not None else m
        elif isinstance(self.anchor, Values):
            m = m - self.anchor.on(m, "anchor")
        elif self.anchor is not None:
            m = m - self.anchor  # type: ignore[operator]
        if isinstance(self.whiten, Values):
            m, d = self.whiten.times(m, "whiten"), self.whiten.times(d, "whiten")
        if self.per == "channel":
            m, d = m.flatten(0, 1), d.flatten(0, 1)
            if m.dim() == 1:
                m, d = m[:, None], d[:, None]
        return lengths(m, d)


@dataclass(frozen=True)
class CapDisplacement(Cap):
    """Shrinks g until it is at most gamma - 1 times as long as m_c; options as in `Cap`."""

    ball: ClassVar[bool] = False


def _smoothed(s: Tensor, width: float) -> Tensor:
    """A C1 minimum of s and 1 that never exceeds either; exact where they differ by more than `width`."""
    short = (width - (s - 1).abs()).clamp(min=0)
    return s.clamp(max=1) - short * short / (4 * width)
