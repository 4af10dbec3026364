"""Rules that read their strength off the two predictions, one number per sample.

Damp        by the size of the velocity gap beside the unconditional velocity (MAMBO-G, once called RAAG)
PowerLaw    by a power of the score gap (Pavasovic et al.)
Aligned     by the angle between the two velocities (VAGS)
Converged   until the two predictions agree (adaptive guidance, Castillo et al.)
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..prediction import Prediction
from ..schedules import Scale, finite, finite_scale, value_of
from ..tensors import Number, choose, divide, each_sample, exp, lengths, power, size
from .base import Factor, Ray, Rule, State
from .spaces import known_space, pair, stretch


def cosine(p: Prediction, space: str) -> Number:
    """The cosine between the two predictions of each sample; 0 where one of them is zero."""
    found = lengths(*pair(p, space))
    return each_sample(lambda m, along: choose(m == 0, 0.0, divide(along, m)), found.m, found.along)


@dataclass(frozen=True)
class Damp(Factor):
    """g <- exp(-alpha r) g with r = |v_c - v_u| / |v_u|, velocities. It follows CFG(scale)."""

    alpha: float

    def __post_init__(self) -> None:
        finite(self, "alpha")

    def coefficient(self, ray: Ray, p: Prediction) -> Number:
        v_c, v_u = pair(p, "velocity")
        found = lengths(v_u, v_c - v_u)
        return each_sample(self._damped, ray.coefficient, found.d, found.m)

    def _damped(self, c: Number, gap: Number, whole: Number) -> Number:
        return c * exp(-self.alpha * choose(gap == 0, 0.0, divide(gap, whole)))


@dataclass(frozen=True)
class PowerLaw(Factor):
    """g <- omega |S|^alpha g, where |S| = t / (1 - t)^2 |g| is the length of g as a score.

    It grows without bound towards t = 1 (like (1 - t)^-alpha on velocities), and at t = 1 itself it is 0.
    """

    omega: Scale
    alpha: float = 0.9

    def __post_init__(self) -> None:
        finite_scale(self, "omega")
        finite(self, "alpha")
        if self.alpha < 0:
            raise ValueError(f"PowerLaw needs alpha >= 0 (0 is CFG with scale 1 + omega); got {self.alpha}")

    def coefficient(self, ray: Ray, p: Prediction) -> Number:
        k, omega = stretch(p.t, "score"), value_of(self, "omega", p.t)
        return each_sample(self._weighed, ray.coefficient, ray.lengths.d, k, omega)

    def _weighed(self, c: Number, d: Number, k: Number, omega: Number) -> Number:
        return c * omega * power(k * size(c) * d, self.alpha)


@dataclass(frozen=True)
class Aligned(Factor):
    """CFG with scale * exp(kappa (2 t - 1) cos(v_c, v_u)): weaker early, stronger late."""

    scale: Scale
    kappa: float = 1.0

    def __post_init__(self) -> None:
        finite_scale(self, "scale")
        finite(self, "kappa")

    def coefficient(self, ray: Ray, p: Prediction) -> Number:
        scale = value_of(self, "scale", p.t) * exp(self.kappa * (2 * p.t - 1) * cosine(p, "velocity"))
        return (scale - 1) * ray.coefficient


@dataclass(frozen=True)
class Converged(Rule):
    """Stops guiding a sample for good once the cosine between its two predictions exceeds `above`."""

    above: float = 0.991
    space: str = "velocity"

    turns = False

    def __post_init__(self) -> None:
        finite(self, "above")
        known_space(self)

    @property
    def has_state(self) -> bool:
        return True

    def update(self, ray: Ray, p: Prediction, state: State) -> tuple[Ray, State]:
        agree: bool | Tensor = cosine(p, self.space) > self.above
        done = agree if state is None else _either(state, agree)
        return ray.scaled(choose(done, 0.0, ray.coefficient)), done

    def within_step(self, before: State, after: State) -> State:
        return after  # a sample that stopped is not guided by the rest of the step


def _either(a: bool | Tensor, b: bool | Tensor) -> bool | Tensor:
    if isinstance(a, Tensor) or isinstance(b, Tensor):
        return torch.as_tensor(a) | torch.as_tensor(b)
    return a or b
