"""The nine settings of the paper's table, and the noise that each of them starts from.

setting   a scene (which components are given, with which weights) under one rule
repeat    an independent run of the whole table; every row of every repeat has noise of its own
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import torch
from torch import Tensor

from meancap.rules import CFG, Cap, Rule
from meancap.sampling import uniform

from .condition import SCENES, Scene

STEPS = 50
TIMES = uniform(STEPS)
PAPER_SAMPLES = 200_000
_FEWEST = 1000


@dataclass(frozen=True)
class GMMConfig:
    """What decides the numbers of a run: the samples in each row, the seed, the draws of the table."""

    samples: int = PAPER_SAMPLES
    seed: int = 0
    repeats: int = 1

    def __post_init__(self) -> None:
        if self.samples < _FEWEST:
            raise ValueError(
                f"reproduce gmm needs at least {_FEWEST} samples in a row: one branch has a sixth of them, "
                f"and the table has its covariance; got {self.samples}"
            )
        if self.repeats < 1:
            raise ValueError(f"reproduce gmm needs at least one repeat; got {self.repeats}")
        if self.seed < 0:
            raise ValueError(f"reproduce gmm needs a seed of 0 or more; got {self.seed}")


@dataclass(frozen=True)
class Setting:
    """One row of the table; its numbers as they are written there."""

    scene: Scene
    guidance: str
    scale: str
    gamma: str = ""  # empty: no cap

    @property
    def rule(self) -> Rule:
        cfg = CFG(float(self.scale))
        return cfg | Cap(float(self.gamma)) if self.gamma else cfg

    @property
    def members(self) -> str:
        return str(self.scene)

    def __str__(self) -> str:
        return f"{self.members} {self.guidance}"


SETTINGS = tuple(
    Setting(scene, *row)
    for scene in SCENES
    for row in (("Conditional", "1"), ("Fixed CFG", "3"), ("PMC-CFG", "3", "1.1"))
)


def start_noise(setting: Setting, config: GMMConfig, repeat: int = 0) -> Tensor:
    """The start of one row, (samples, 2) float32: a stream of its own for every seed, repeat and setting."""
    name = f"meancap gmm {config.seed} {repeat} {setting}"
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:7], "big")
    return torch.randn(config.samples, 2, generator=torch.Generator().manual_seed(seed))
