"""What decides the numbers of a benchmark, and the noise that all its rules share.

    block   a scrambled Sobol set of `points` Gaussian starts; blocks are independent of each other
    count   how often a bootstrap resample takes each block

Sobol points fill space more evenly than independent ones, so the floor of every measure is lower; within a
block they are not independent, so the bootstrap resamples whole blocks.
"""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from ...lab.problems import PROBLEMS
from ...sampling import Times, uniform


@dataclass(frozen=True)
class BenchConfig:
    """Everything that a cell's numbers depend on, but for the problem and the rule."""

    scales: tuple[float, ...] = (1.25, 1.5, 2.0, 3.0, 5.0, 9.0)
    extra: tuple[float, ...] = (1.25, 2.5, 4.0, 5.0, 7.0, 15.0)  # besides, for the rules most is said about
    blocks: int = 16
    points: int = 256
    slices: int = 16
    resamples: int = 150
    kl_points: int = 16  # of each block
    kl_dimensions: int = 8  # beyond, 2 d runs for each sample cost more than they tell
    steps: int = 50
    matched: tuple[float, ...] = (3.0, 9.0)  # nominal scales at which adaptive rules meet their own average
    seed: int = 0

    def __post_init__(self) -> None:
        if self.points < 1 or self.points & (self.points - 1) or not 0 < self.kl_points <= self.points:
            raise ValueError(
                f"a block needs a power of two of points, and kl_points of them; got {self.points}, "
                f"{self.kl_points}"
            )
        if self.blocks < 4 or self.resamples < 20 or self.steps < 2:
            raise ValueError("a benchmark needs 4 blocks, 20 resamples and 2 steps at least")
        if not self.scales or min(self.scales) <= 1 or list(self.scales) != sorted(set(self.scales)):
            raise ValueError(
                f"scales are increasing and above 1, which is always run; got {list(self.scales)}"
            )

    @property
    def n(self) -> int:
        return self.blocks * self.points

    @property
    def times(self) -> Times:
        return uniform(self.steps)

    def as_json(self) -> dict[str, Any]:
        return {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self).items()}

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> BenchConfig:
        fields: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in content.items()}
        return cls(**fields)


FULL = BenchConfig()
QUICK = BenchConfig(
    scales=(1.5, 2.0, 3.0, 9.0),
    points=64,
    slices=12,
    resamples=100,
    kl_points=8,
    kl_dimensions=2,
    matched=(3.0,),
)
QUICK_PROBLEMS = (
    "single", "triple", "overlap-single", "off-centre-8", "under-triple", "leak-triple", "both-triple",
)  # fmt: skip
ALL_PROBLEMS = tuple(one.name for one in PROBLEMS)


@lru_cache(maxsize=4)
def noise(d: int, config: BenchConfig) -> Tensor:
    """The starts of every rule, (n, d) in float64: blocks one after the other."""
    blocks = []
    for block in range(config.blocks):
        seed = int.from_bytes(hashlib.sha256(f"bench {config.seed} {block} {d}".encode()).digest()[:4], "big")
        engine = torch.quasirandom.SobolEngine(d, scramble=True, seed=seed)  # type: ignore[no-untyped-call]
        points = engine.draw(config.points, dtype=torch.float64)
        blocks.append(torch.special.ndtri(points.clamp(2.0**-31, 1 - 2.0**-31)))
    return torch.cat(blocks)


@lru_cache(maxsize=4)
def resamples(config: BenchConfig) -> Tensor:
    """How often each bootstrap resample takes each block, (resamples, blocks), the same for all rules."""
    draw = torch.Generator().manual_seed(config.seed + 1)
    shape = (config.resamples, config.blocks)
    taken = torch.randint(config.blocks, shape, generator=draw)
    return torch.zeros(shape, dtype=torch.int64).scatter_add_(1, taken, torch.ones_like(taken))
