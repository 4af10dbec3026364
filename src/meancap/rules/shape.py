"""Rules that turn the displacement: projection, rescaling, momentum."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..prediction import Prediction
from ..schedules import finite
from ..tensors import choose, divide, lengths, per_sample
from .base import Map, Ray, Rule, State


@dataclass(frozen=True)
class Project(Map):
    """Keeps only the share `eta` of the part of g that is parallel to m_c (APG, Sadat et al. 2024)."""

    eta: float = 0.0

    def __post_init__(self) -> None:
        finite(self, "eta")

    def __call__(self, g: Tensor, p: Prediction) -> Tensor:
        found = lengths(g, p.m_c)  # along: component of g along m_c
        parallel = choose(found.d == 0, 0.0, divide(found.along, found.d))
        return g - per_sample((1 - self.eta) * parallel, g) * p.m_c


@dataclass(frozen=True)
class Rescale(Map):
    """Matches the standard deviation of the guided prediction to that of the conditional one, a share `phi`.

    Lin et al. 2024 do so on the network's output, which is the velocity here (`space='velocity'`, as in
    diffusers); `space='mean'` acts on the posterior means. The two are different methods.
    """

    phi: float = 0.7
    space: str = "velocity"

    def __post_init__(self) -> None:
        finite(self, "phi")
        if not 0 <= self.phi <= 1:
            raise ValueError(f"Rescale needs phi between 0 (off) and 1; got {self.phi}")
        if self.space not in ("velocity", "mean"):
            raise ValueError(f"Rescale acts in the space 'velocity' or 'mean'; got {self.space!r}")

    def __call__(self, g: Tensor, p: Prediction) -> Tensor:
        # (1 - t) v = m - x, and the factor 1 - t drops out of the ratio.
        base = p.m_c - p.x if self.space == "velocity" else p.m_c
        guided = base + g
        before, after = (v.flatten(1).double().std(1) for v in (base, guided))
        ratio = torch.where(after == 0, torch.ones_like(after), before / after)
        return per_sample(self.phi * ratio + (1 - self.phi), g) * guided - base


@dataclass(frozen=True)
class Momentum(Rule):
    """Adds `beta` times the previous displacement: g <- g + beta * previous, and remembers the sum.

    APG uses beta < 0. The first step has nothing to add.
    """

    beta: float

    def __post_init__(self) -> None:
        finite(self, "beta")

    @property
    def has_state(self) -> bool:
        return True

    def update(self, ray: Ray, p: Prediction, state: State) -> tuple[Ray, State]:
        g = ray.g if state is None else ray.g + self.beta * state
        return Ray(p, turned=g, asked=ray.asked), g
