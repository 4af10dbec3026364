"""The benchmark's problems: small mixtures with a model that is wrong in a known way, frozen in files.

    kind        the model's error: exact, under-conditioned (eta), leak, both, rough, smeared, network
    dimension   2 to 64
    overlap     heavy, touching or separate: two means lie 4 x 0.6, 1 or 1.8 widths apart on average
    offset      distance of the data's mean from the origin, in units of the data's rms radius

Every kind x dimension x overlap x offset is one stratum with one problem in `problems.csv`. Their order keeps
kinds, dimensions, overlaps and offsets balanced, so that the first n problems are a fair subset. `tuning.csv`
has other problems, to choose one setting for all on; `unseen.csv` has problems that were never run here.
Everything else is drawn from the problem's seed: components, their weights and widths, the errors' sizes.
"""

from __future__ import annotations

import csv
import hashlib
import math
import random
from dataclasses import dataclass, fields
from functools import lru_cache
from importlib import resources

import torch
from torch import Tensor

from ..mixtures.condition import Condition
from ..mixtures.mixture import Mixture, sobol_noise

KINDS = ("exact", "under-conditioned", "leak", "both", "rough", "smeared", "network")
DIMENSIONS = (2, 4, 8, 16, 32, 64)
OVERLAPS = {"heavy": 0.6, "touching": 1.0, "separate": 1.8}
FAR = "far "  # before an overlap: distances grow with the root of the dimension, and are the same in 8-D
OFFSETS = (0.0, 1.5)
POINTS = 512  # of a block of starts


@dataclass(frozen=True)
class Case:
    """One problem: its stratum, its seed and its errors."""

    name: str
    kind: str
    dimension: int
    overlap: str
    offset: float
    seed: int
    components: int
    members: int  # the condition means the first of the components
    anisotropy: float  # largest width over smallest
    eta: float = 0.0  # m_c = (1 - eta) m + eta m_u
    leak: float = 0.0  # share of the label's data that come from other components
    rough: float = 0.0  # rms per coordinate of a smooth random error in both velocities
    smear: float = 0.0  # both densities too wide by this share, the unconditional one twice as much


def read_cases(which: str = "problems") -> list[Case]:
    """The problems of a file, in their balanced order."""
    text = resources.files(__package__).joinpath(f"{which}.csv").read_text(encoding="utf-8")
    types = {"str": str, "int": int, "float": float}
    return [
        Case(**{one.name: types[str(one.type)](row[one.name]) for one in fields(Case)})
        for row in csv.DictReader(text.splitlines())
    ]


@lru_cache(maxsize=4)
def truth(case: Case) -> Condition:
    """The true law of the data and the condition, in float64; widths lie along the coordinates."""
    weights, means, variances = widths(case)
    return Condition(Mixture(means, weights, cov=torch.diag_embed(variances)), tuple(range(case.members)))


@lru_cache(maxsize=8)
def widths(case: Case) -> tuple[Tensor, Tensor, Tensor]:
    """Weights (K,), means (K, d) and variances along the coordinates (K, d); no version changes the draws."""
    draw, d = random.Random(f"meancap truth {case.seed}"), case.dimension

    def normal(*shape: int) -> Tensor:
        values = [draw.gauss(0, 1) for _ in range(math.prod(shape))]
        return torch.tensor(values, dtype=torch.float64).reshape(shape)

    weights = torch.tensor(
        [0.2 + draw.gammavariate(2, 1) for _ in range(case.components)], dtype=torch.float64
    )
    weights /= weights.sum()
    profile = [i / (d - 1) for i in range(d)]
    draw.shuffle(profile)
    width = (math.log(case.anisotropy) * torch.tensor(profile, dtype=torch.float64)).exp()
    own = torch.tensor(
        [math.exp(draw.uniform(-0.25, 0.25)) for _ in range(case.components)], dtype=torch.float64
    )
    variances = (width / width.square().mean().sqrt() * own[:, None]).square()
    means = normal(case.components, d)
    wider = math.sqrt(d / 8) if case.overlap.startswith(FAR) else 1.0
    means *= 4 * wider * OVERLAPS[case.overlap.removeprefix(FAR)] / torch.pdist(means).mean()
    means -= weights @ means
    radius = (weights @ (means.square() + variances)).sum().sqrt()
    away = normal(d)
    size = draw.uniform(0.6, 1.5) * math.sqrt(d)  # the data's rms radius
    means = size / radius * means + case.offset * size * away / away.norm()
    return weights, means, variances * (size / radius) ** 2


@lru_cache(maxsize=16)
def starts(dimension: int, block: str) -> Tensor:
    """Scrambled Sobol points as Gaussian noise, (POINTS, d); every block is drawn by itself."""
    seed = int.from_bytes(hashlib.sha256(f"bench {block} {dimension}".encode()).digest()[:4], "big")
    return sobol_noise(POINTS, dimension, seed)
