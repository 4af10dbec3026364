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

from ...operation import lengths
from ...prediction import Prediction
from ...schedules import Scale, finite, finite_scale, value_of
from ...tensors import Number, magnitude
from ..protocol.base import Factor, Rule, State
from ..protocol.ray import Ray
from .spaces import known_space, pair, stretch


def prediction_cosine(p: Prediction, space: str) -> Tensor:
    """The cosine between the two predictions of each sample; 0 where one of them is zero."""
    one, _, along = lengths(*pair(p, space))
    return torch.where(one == 0, 0.0, along / one)


@dataclass(frozen=True)
class Damp(Factor):
    """g <- exp(-alpha r) g with r = |v_c - v_u| / |v_u|, velocities. It follows CFG(scale)."""

    alpha: float

    def __post_init__(self) -> None:
        finite(self, "alpha")

    def coefficient(self, ray: Ray, p: Prediction) -> Number:
        v_c, v_u = pair(p, "velocity")
        whole, gap, _ = lengths(v_u, v_c - v_u)
        return ray.coefficient * torch.exp(-self.alpha * torch.where(gap == 0, 0.0, gap / whole))


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
        c, length = ray.coefficient, stretch(p.t, "score") * magnitude(ray.coefficient) * ray.lengths.d
        return c * value_of(self, "omega", p.t) * length**self.alpha


@dataclass(frozen=True)
class Aligned(Factor):
    """CFG with scale * exp(kappa (2 t - 1) cos(v_c, v_u)): weaker early, stronger late."""

    scale: Scale
    kappa: float = 1.0

    def __post_init__(self) -> None:
        finite_scale(self, "scale")
        finite(self, "kappa")

    def coefficient(self, ray: Ray, p: Prediction) -> Number:
        gain = torch.exp(self.kappa * (2 * p.t - 1) * prediction_cosine(p, "velocity"))
        return (value_of(self, "scale", p.t) * gain - 1) * ray.coefficient


@dataclass(frozen=True)
class Converged(Rule):
    """Stops guiding a sample permanently once the cosine between its two predictions exceeds `above`."""

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
        agree = prediction_cosine(p, self.space) > self.above
        done = agree if state is None else state | agree
        return ray.scaled(torch.where(done, 0.0, ray.coefficient)), done

    def within_step(self, before: State, after: State) -> State:
        return after  # a sample that stopped is not guided by the rest of the step
