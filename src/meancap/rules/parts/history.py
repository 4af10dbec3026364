"""Rules that compare a step with the steps before it.

Ahead            adds a multiple of the guided velocity's way from its running average (momentum guidance)
History          adds what is new in the guided mean, its fine detail only   (HiGS, Sadat et al. 2025)
ErrorCorrection  moves the unconditional noise on by the part of its change that follows the conditional one's
                 (CFG-OEC, Yang et al. 2025)
Transition       waits with guidance until the gap has passed its first minimum (Jain et al. 2025)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ...operation import lengths
from ...prediction import Prediction
from ...schedules import Scale, finite, finite_scale, value_of
from ...tensors import magnitude, per_sample, vector
from ..protocol.base import Rule, State
from ..protocol.ray import Ray
from .frequency import need_image
from .phases import Held
from .spaces import conditional, elapsed, known_space, rest, seen, stretch


@dataclass(frozen=True)
class Ahead(Rule):
    """v <- v + alpha (v - a), a an average of past guided velocities, for low <= t <= high; put it after CFG.

    a is the first velocity at first, and a <- (1 - beta) v + beta a after each step, with the v that came in.
    """

    alpha: float = 0.5
    beta: float = 0.6
    low: float = 0.05
    high: float = 0.7

    def __post_init__(self) -> None:
        finite(self, "alpha", "beta", "low", "high")
        if not 0 <= self.low <= self.high <= 1:
            raise ValueError(f"Ahead needs times 0 <= low <= high <= 1; got {self.low} and {self.high}")

    @property
    def has_state(self) -> bool:
        return True

    def update(self, ray: Ray, p: Prediction, state: State) -> tuple[Ray, State]:
        g, unit = ray.g, per_sample(rest(p.t), p.x)
        v = (conditional(p, "velocity") + g) / unit
        if state is None:
            return ray, v
        t = vector(p.t, g)
        weight = torch.where((t >= self.low) & (t <= self.high), self.alpha, 0.0)
        moved = Ray(p, turned=g + per_sample(weight, g) * unit * (v - state), asked=ray.asked)
        return moved, (1 - self.beta) * v + self.beta * state


@dataclass(frozen=True)
class History(Rule):
    """m <- m + w(t) F(m - h): h an average of past guided means, F a high-pass; put it after CFG.

    h <- alpha m + (1 - alpha) h after each step, from 0 on. Of m - h the part along m is kept by the share
    `eta`. F multiplies each coefficient of the cosine transform by sigmoid(sharp (R - cutoff)), R being its
    distance from frequency 0 in parts of the image. w(t) is `weight` times the root of the noise level's
    way from `low` to `high`, the level being 1 - t, and 0 outside. The first step has no past and is left
    alone.
    """

    weight: float = 1.75
    alpha: float = 0.75
    eta: float = 0.0
    cutoff: float = 0.05
    sharp: float = 50.0
    low: float = 0.4
    high: float = 1.0

    def __post_init__(self) -> None:
        finite(self, "weight", "alpha", "eta", "cutoff", "sharp", "low", "high")
        if not 0 <= self.low < self.high <= 1:
            raise ValueError(f"History needs noise levels 0 <= low < high <= 1; got {self.low}, {self.high}")

    @property
    def has_state(self) -> bool:
        return True

    def update(self, ray: Ray, p: Prediction, state: State) -> tuple[Ray, State]:
        m = p.m_c + ray.g
        need_image(self, m)
        if state is None:
            return ray, self.alpha * m
        new = m - state
        _, length, along = lengths(new, m)
        new = new - per_sample((1 - self.eta) * torch.where(length == 0, 0.0, along / length), m) * m
        g = ray.g + per_sample(self._weight(vector(p.t, m)), m) * self._detail(new)
        return Ray(p, turned=g, asked=ray.asked), self.alpha * m + (1 - self.alpha) * state

    def _weight(self, t: Tensor) -> Tensor:
        way = (1 - t - self.low) / (self.high - self.low)
        return torch.where((way > 0) & (way <= 1), self.weight * way.clamp(min=0).sqrt(), 0.0)

    def _detail(self, v: Tensor) -> Tensor:
        down, across = (_cosines(n, v) for n in v.shape[-2:])
        steps = [torch.arange(n, device=v.device, dtype=v.dtype) / n for n in v.shape[-2:]]
        distance = torch.hypot(steps[0][:, None], steps[1][None, :])
        passed = torch.sigmoid(self.sharp * (distance - self.cutoff))
        detail: Tensor = down.T @ ((down @ v @ across.T) * passed) @ across
        return detail


def _cosines(n: int, like: Tensor) -> Tensor:
    """The orthonormal cosine transform (DCT-II) of n numbers, as a matrix."""
    k = torch.arange(n, device=like.device, dtype=like.dtype)
    waves = torch.cos(math.pi / n * k[:, None] * (k[None, :] + 0.5)) * math.sqrt(2 / n)
    return torch.where(k[:, None] == 0, math.sqrt(1 / n), waves)


@dataclass(frozen=True)
class ErrorCorrection(Rule):
    """u <- u + (1 - s) (<A, B> / |A|^2) A where s = cos(A, B) < `below`; put CFG after it.

    A and B are the changes of the conditional and of the unconditional noise prediction since the last step.
    The first step has no change.
    """

    below: float = 0.5

    def __post_init__(self) -> None:
        finite(self, "below")

    @property
    def has_state(self) -> bool:
        return True

    def update(self, ray: Ray, p: Prediction, state: State) -> tuple[Ray, State]:
        g = ray.g
        # n = (x - t m) / (1 - t); and a change of n_u by d changes the gap of the means by (1 - t) / t d, for
        # m = (x - (1 - t) n) / t.
        c, u = (seen(m, p, "noise") / per_sample(rest(p.t), g) for m in (p.m_c, p.m_c - g))
        if state is None:
            return ray, (c, u)
        a, b = c - state[0], u - state[1]
        length, other, along = lengths(a, b)
        cosine = torch.where((length == 0) | (other == 0), 1.0, along / length)
        share = torch.where(cosine < self.below, (1 - cosine) * cosine * other / length, 0.0)
        moved = per_sample(vector(rest(p.t) / elapsed(p.t), g) * share, g) * a
        return Ray(p, turned=g + moved, asked=ray.asked), (c, u)


class Gaps(NamedTuple):
    """The lengths of the last two gaps, and which samples have passed their first minimum."""

    last: Tensor
    earlier: Tensor
    passed: Tensor


@dataclass(frozen=True)
class Transition(Rule):
    """CFG at the scale `before` until the gap's length, in `space`, has passed a minimum; then at `scale`.

    A minimum is passed at the first step whose gap is longer than the last, the last being shorter than the
    one before it.
    """

    scale: Scale
    before: Scale = 1.0
    space: str = "noise"

    turns = False

    def __post_init__(self) -> None:
        finite_scale(self, "scale")
        finite_scale(self, "before")
        known_space(self)

    @property
    def has_state(self) -> bool:
        return True

    def update(self, ray: Ray, p: Prediction, state: State) -> tuple[Ray, State]:
        if isinstance(state, Held):
            return self._scaled(ray, p, state.value), state
        now = vector(stretch(p.t, self.space), p.shown) * magnitude(ray.coefficient) * ray.lengths.d
        if state is None:
            none = torch.full_like(now, -1.0)  # shorter than any gap: no minimum before the third step
            state = Gaps(none, none, torch.zeros_like(now, dtype=torch.bool))
        passed = state.passed | ((state.earlier > state.last) & (state.last < now))
        return self._scaled(ray, p, passed), Gaps(now, state.last, passed)

    def within_step(self, before: State, after: State) -> State:
        return Held(after.passed)

    def _scaled(self, ray: Ray, p: Prediction, passed: Tensor) -> Ray:
        early, late = (vector(value_of(self, name, p.t), p.shown) for name in ("before", "scale"))
        return ray.scaled((torch.where(passed, late, early) - 1) * ray.coefficient)
