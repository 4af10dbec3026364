"""Caps: the largest share of g that keeps the guided mean inside a convex set.

    y    m_c - r, the conditional mean seen from the anchor r (0 unless given)
    |.|  the Euclidean norm of a sample, of each channel, or of W y with whitening
    Cap              |y + s g| <= max(gamma |y|, R(t))               the ball of Peng & Ma, Section 4
    CapDisplacement      |s g| <= max((gamma - 1) |y|, R(t))         the rule of their SD3.5 experiments

All of them are one root of one quadratic, `largest_fraction`. The displacement form is the stricter: the two
agree only where g points along y, so one gamma does not mean the same in both. Caps in a chain intersect,
because the largest share in both sets is the smaller of the two.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ..prediction import Prediction, need_same_shapes
from ..schedules import Given, Scale, Schedule, finite, finite_scale, hold, value_of
from ..tensors import (
    Lengths,
    Number,
    choose,
    divide,
    each_sample,
    greater,
    hypot,
    lengths,
    lesser,
    on_host,
    root,
    size,
    vector,
)
from .base import Factor, Ray, State
from .values import Values


def margin_of(dtype: torch.dtype) -> float:
    """What rounding in the lengths and in the stored result can add to the mean, taken off in advance."""
    return 4 * torch.finfo(torch.promote_types(dtype, torch.float32)).eps


Anchor = float | str | Values | Tensor | list[float] | tuple[float, ...] | None


def largest_fraction(g: Number, along: Number, room: Number, margin: float = 0.0) -> Number:
    """Largest s in [0, 1] with |y + s g|^2 <= |y|^2 + room^2, from lengths alone.

    g is |g|, `along` the component of y along g. Zero g keeps s = 1; nan stays nan. A share below 1 is
    made smaller by `margin`, relatively.
    """
    reach = hypot(along, room)
    # Pointing outward, reach - along cancels; its conjugate does not.
    s = choose(along > 0, divide(room, g) * divide(room, along + reach), divide(reach - along, g))
    s = choose(s < 1, s * (1 - margin), choose(s >= 1, 1.0, s))
    return choose((g == 0) | (room == math.inf), 1.0, s)


def cap_fraction(m: Tensor, g: Tensor, gamma: float) -> Tensor:
    """Largest s in [0, 1] with |m + s g| <= gamma |m|, for each sample."""
    need_same_shapes(m=m, g=g)
    cap, found = Cap(gamma), lengths(m, g)
    s = vector(each_sample(cap.fraction, *found, gamma, None, 1.0, margin_of(m.dtype)), m)
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

    @property
    def has_state(self) -> bool:
        return self.anchor == "first"

    def update(self, ray: Ray, p: Prediction, state: State) -> tuple[Ray, State]:
        if self.has_state and state is None:
            state = p.m_u
        asked = ray.coefficient if ray.asked is None else ray.asked
        return ray.scaled(self._limit(ray, p, state), asked=asked), state

    def within_step(self, before: State, after: State) -> State:
        return after  # the first evaluation fixes the anchor for the whole run

    def coefficient(self, ray: Ray, p: Prediction) -> Number:
        return self._limit(ray, p, p.m_u if self.has_state else None)

    def _limit(self, ray: Ray, p: Prediction, first: Tensor | None) -> Number:
        if not isinstance(ray.coefficient, Tensor) and ray.coefficient == 0:
            return 0.0  # nothing is added, whatever stands in the gap
        gamma = value_of(self, "gamma", p.t)
        floor = None if self.floor is None else value_of(self, "floor", p.t)
        c, seen, margin = ray.coefficient, self._seen(ray, first), margin_of(p.x.dtype)
        if self.per == "sample":
            return each_sample(self.limited, *seen, gamma, floor, c, margin)
        channels = p.x.shape[1]
        each = [
            vector(v, p.x).repeat_interleave(channels) if isinstance(v, Tensor) else v
            for v in (gamma, floor, c)
        ]
        s = vector(each_sample(self.fraction, *seen, *each, margin), p.x[:, 0])
        return c * s.reshape(-1, channels).amin(1)

    def _seen(self, ray: Ray, first: Tensor | None) -> Lengths:
        """Lengths from the anchor, in the cap's own norm."""
        if self._plain:
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

    @property
    def _plain(self) -> bool:
        return self.anchor is None and self.whiten is None and self.per == "sample"

    def limited(
        self,
        m: Number,
        d: Number,
        along: Number,
        gamma: Number,
        floor: Number | None,
        c: Number,
        margin: float,
    ) -> Number:
        """The coefficient c, shortened."""
        return c * self.fraction(m, d, along, gamma, floor, c, margin)

    def fraction(
        self,
        m: Number,
        d: Number,
        along: Number,
        gamma: Number,
        floor: Number | None,
        c: Number,
        margin: float,
    ) -> Number:
        """The share of g = c * direction to keep, from |y|, |direction| and the component of y along it."""
        g, room = size(c) * d, choose(gamma == math.inf, math.inf, self._room(m, gamma, floor))
        toward = self._toward(choose(c < 0, -along, along))
        if not self.smooth:
            return largest_fraction(g, toward, room, margin)
        # Asked for twice the displacement, the share may go up to 2 in units of the nominal one.
        return _smoothed(2 * largest_fraction(2 * g, toward, room, margin), self.smooth)

    def _toward(self, along: Number) -> Number:
        return along

    def _room(self, m: Number, gamma: Number, floor: Number | None) -> Number:
        room = m * root((gamma - 1) * (gamma + 1))
        if floor is None:
            return room
        above = choose(floor > m, (floor - m) * (floor + m), 0.0)
        return greater(room, root(above))


@dataclass(frozen=True)
class CapDisplacement(Cap):
    """Shrinks g until it is at most gamma - 1 times as long as m_c; options as in `Cap`."""

    def _toward(self, along: Number) -> Number:
        return 0.0 * along  # seen from m_c itself the allowed set is a ball round the origin

    def _room(self, m: Number, gamma: Number, floor: Number | None) -> Number:
        room = m * (gamma - 1)
        return room if floor is None else greater(room, floor)


def _smoothed(s: Number, width: float) -> Number:
    """A C1 minimum of s and 1 that never exceeds either; exact where they differ by more than `width`."""
    short = greater(width - size(s - 1), 0.0)
    return lesser(s, 1.0) - short * short / (4 * width)
