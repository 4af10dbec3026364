"""What decides the numbers of a benchmark, and the noise that all its rules share.

    block     a scrambled Sobol set of `points` Gaussian starts, measured by itself; blocks are independent
    tuning    one block, on which every rule looks for its knobs
    scoring   other blocks, on which the result is measured
    chosen    drawn problems on which the settings are chosen that are then carried over
    held out  drawn problems that no setting was chosen on: the headline

The seed of a drawn problem is its name; those of the two sets do not overlap.
"""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from ...sampling import Times, uniform

HELD_OUT = 1000  # the seed of the first problem that no setting is chosen on
TUNING, PILOT = "tuning", "pilot"


@dataclass(frozen=True)
class BenchConfig:
    """Everything that a cell's numbers depend on, but for the problem and the rule."""

    points: int = 512  # of a block
    blocks: int = 2  # to score drawn problems on: intervals are over problems
    named_blocks: int = 4  # to score named problems on: intervals are over blocks
    slices: int = 16
    spread: int = 8  # settings of every rule that are spread over its knobs
    refined: int = 4  # and settings round the best of them
    steps: int = 50
    seed: int = 0

    def __post_init__(self) -> None:
        if self.points < 2 or self.points & (self.points - 1):
            raise ValueError(f"a block needs a power of two of points; got {self.points}")
        if min(self.blocks, self.named_blocks) < 2 or self.steps < 2:
            raise ValueError("a benchmark needs two blocks to score on and two steps at least")
        if self.spread < 2 or self.refined not in (0, 4):
            raise ValueError(
                "tuning needs 2 settings at least, and 0 or 4 round the best; "
                f"got {self.spread}, {self.refined}"
            )

    @property
    def times(self) -> Times:
        return uniform(self.steps)

    def scored(self, problem: str) -> int:
        """How many blocks a problem is scored on."""
        return self.blocks if problem.startswith("drawn-") else self.named_blocks

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> BenchConfig:
        return cls(**content)


FULL = BenchConfig()
QUICK = BenchConfig(points=256, named_blocks=3, slices=12, spread=6, refined=0)
NAMED = ("under-triple", "leak-single", "leak-triple", "leak-8", "both-triple")


def drawn_problems(chosen: int, held_out: int) -> tuple[str, ...]:
    """Names of drawn problems: those to choose settings on, then those that are held out."""
    return (
        *(f"drawn-{seed}" for seed in range(chosen)),
        *(f"drawn-{HELD_OUT + seed}" for seed in range(held_out)),
    )


FULL_PROBLEMS = drawn_problems(10, 5)  # for all rules
MAIN_PROBLEMS = (*(f"drawn-{HELD_OUT + seed}" for seed in range(5, 15)), "leak-triple")  # for the main rules
QUICK_PROBLEMS = drawn_problems(5, 5)


def role(problem: str) -> str:
    """'chosen', 'held out' or 'named'."""
    kind, _, seed = problem.partition("-")
    if kind != "drawn" or not seed.isdecimal():
        return "named"
    return "held out" if int(seed) >= HELD_OUT else "chosen"


@lru_cache(maxsize=8)
def noise(d: int, config: BenchConfig, block: int | str) -> Tensor:
    """The starts of every rule in one block, (points, d) in float64."""
    text = f"bench {config.seed} {block} {d}"
    seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big")
    engine = torch.quasirandom.SobolEngine(d, scramble=True, seed=seed)  # type: ignore[no-untyped-call]
    points = engine.draw(config.points, dtype=torch.float64)
    starts: Tensor = torch.special.ndtri(points.clamp(2.0**-31, 1 - 2.0**-31))
    return starts
