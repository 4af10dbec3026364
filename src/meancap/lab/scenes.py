"""The eight-point experiment of Peng & Ma as values: three conditions on a circle of eight components.

mu_k   (cos a_k, sin a_k) with a_k = pi/2 - k pi/4: component 0 on top, the others clockwise
s      0.03, the standard deviation of every component
w_k    1/8, except in the pair scene, which is imbalanced on purpose: 68 % to 32 % within the condition
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from .condition import Condition
from .mixture import Mixture

COUNT = 8
RADIUS = 1.0
STD = 0.03


@dataclass(frozen=True)
class Scene:
    """A condition of the experiment: which components it holds, and the weights of all eight."""

    members: tuple[int, ...]
    weights: tuple[float, ...] = (1 / COUNT,) * COUNT

    def mixture(self, dtype: torch.dtype = torch.float64) -> Mixture:
        """All eight components."""
        return Mixture(circle(dtype=dtype), self.weights, std=STD)

    def condition(self, dtype: torch.dtype = torch.float64) -> Condition:
        """The mixture, conditioned on the members."""
        return Condition(self.mixture(dtype), self.members)

    def __str__(self) -> str:
        return "{" + ",".join(map(str, self.members)) + "}"


def circle(count: int = COUNT, radius: float = RADIUS, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """Means on a circle, (count, 2): the first on top, the others clockwise."""
    angles = math.pi / 2 - 2 * math.pi * torch.arange(count, dtype=torch.float64) / count
    return (radius * torch.stack([angles.cos(), angles.sin()], 1)).to(dtype)


SINGLE = Scene((0,))
PAIR = Scene((0, 1), (0.17, 0.08) + (0.125,) * 6)
TRIPLE = Scene((0, 1, 2))
SCENES = (SINGLE, PAIR, TRIPLE)
