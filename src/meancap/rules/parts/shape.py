"""Rules that turn the displacement: projection, rescaling, momentum."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ...operation import lengths
from ...prediction import Prediction
from ...schedules import finite
from ...tensors import per_sample, scalar_dtype
from ..protocol.base import Map, Rule, State
from ..protocol.ray import Ray
from .spaces import conditional, known_space, rest, unconditional


@dataclass(frozen=True)
class Project(Map):
    """Keeps only the share `eta` of the part of g that is parallel to m_c (APG, Sadat et al. 2024).

    space  which conditional prediction: the mean, as its authors do, the velocity or the noise
    onto   'conditional', or 'unconditional' for the part parallel to the other prediction
    """

    eta: float = 0.0
    space: str = "mean"
    onto: str = "conditional"

    def __post_init__(self) -> None:
        finite(self, "eta")
        known_space(self, "mean", "velocity", "noise")
        if self.onto not in ("conditional", "unconditional"):
            raise ValueError(
                f"Project is onto the 'conditional' or the 'unconditional' prediction; got {self.onto!r}"
            )

    def __call__(self, g: Tensor, p: Prediction) -> Tensor:
        onto = (conditional if self.onto == "conditional" else unconditional)(p, self.space)
        _, length, along = lengths(g, onto)  # along: component of g along the prediction
        parallel = torch.where(length == 0, 0.0, along / length)
        return g - per_sample((1 - self.eta) * parallel, g) * onto


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
        base = conditional(p, self.space)
        if base.shape[1:].numel() == 1:
            return g  # one value has no spread to match
        guided = base + g
        before, after = (v.flatten(1).to(scalar_dtype(v.device)).std(1) for v in (base, guided))
        ratio = torch.where(after == 0, torch.ones_like(after), before / after)
        return per_sample(self.phi * ratio + (1 - self.phi), g) * guided - base


@dataclass(frozen=True)
class Momentum(Rule):
    """Adds `beta` times the previous displacement: g <- g + beta * previous, and remembers the sum.

    APG uses beta < 0. The first step has nothing to add. In `space='velocity'` the sum is one of g / (1 - t).
    """

    beta: float
    space: str = "mean"

    def __post_init__(self) -> None:
        finite(self, "beta")
        known_space(self, "mean", "velocity")

    @property
    def has_state(self) -> bool:
        return True

    def update(self, ray: Ray, p: Prediction, state: State) -> tuple[Ray, State]:
        unit = per_sample(rest(p.t) if self.space == "velocity" else 1.0, p.x)
        g = ray.g if state is None else ray.g + self.beta * unit * state
        return Ray(p, turned=g, asked=ray.asked), g / unit
