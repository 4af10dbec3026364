"""The nine settings of the paper's table, and the noise that each of them starts from.

setting   a scene (which components are given, with which weights) under one rule
repeat    an independent run of the whole table; every row of every repeat has noise of its own
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ...lab.scenes import SCENES, Scene
from ...notation import number_text
from ...rules import CFG, Cap, Rule
from ...sampling import uniform

STEPS = 50
TIMES = uniform(STEPS)
PAPER_SAMPLES = 200_000
FEWEST = 1000
GUIDANCE: dict[str, Rule] = {
    "Conditional": CFG(1.0),
    "Fixed CFG": CFG(3.0),
    "PMC-CFG": CFG(3.0) | Cap(1.1),
}
PROTOCOL = (
    "Eight components clockwise from pi/2 on the unit circle, sigma = 0.03; the pair has weights 0.17, "
    "0.08 and six "
    "times 0.125, the others equal ones.",
    "Exact conditional and unconditional fields; guidance on posterior means, data at t = 1.",
    "Noise from a standard normal, one draw per row, float32; 50 Euler steps on the uniform grid, "
    "evaluated at the left "
    "ends 0, 0.02, ..., 0.98; the last step ends at t = 1.",
    "Labels by MAP under the conditional mixture at t = 1; unbiased covariance within a label; mean error "
    "before "
    "labels; statistics in float64.",
)


@dataclass(frozen=True)
class GMMConfig:
    """What decides the numbers of a run: `samples` in each row, the seed, the draws of the table."""

    samples: int = PAPER_SAMPLES
    seed: int = 0
    repeats: int = 1

    def __post_init__(self) -> None:
        if self.samples < FEWEST:
            raise ValueError(
                f"reproduce gmm needs at least {FEWEST} samples in a row, for one branch keeps a sixth of "
                f"them and its "
                f"covariance is wanted; got {self.samples}"
            )
        if self.repeats < 1:
            raise ValueError(f"reproduce gmm needs at least one repeat; got {self.repeats}")
        if self.seed < 0:
            raise ValueError(f"reproduce gmm needs a seed of 0 or more; got {self.seed}")


@dataclass(frozen=True)
class Setting:
    """One row of the table."""

    scene: Scene
    guidance: str

    @property
    def rule(self) -> Rule:
        return GUIDANCE[self.guidance]

    @property
    def members(self) -> str:
        return str(self.scene)

    @property
    def scale(self) -> str:
        return _value(self.rule.parts, CFG, "scale")

    @property
    def gamma(self) -> str:
        """Empty where no cap acts."""
        return _value(self.rule.parts, Cap, "gamma")

    def __str__(self) -> str:
        return f"{self.members} {self.guidance}"


SETTINGS = tuple(Setting(scene, guidance) for scene in SCENES for guidance in GUIDANCE)


def start_noise(setting: Setting, config: GMMConfig, repeat: int = 0) -> Tensor:
    """The start of one row, (samples, 2) float32: a stream of its own for every seed, repeat and setting."""
    name = f"meancap gmm {config.seed} {repeat} {setting}"
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:7], "big")
    return torch.randn(config.samples, 2, generator=torch.Generator().manual_seed(seed))


def _value(parts: Sequence[Rule], kind: type[Rule], field: str) -> str:
    return next((number_text(float(getattr(part, field))) for part in parts if type(part) is kind), "")
