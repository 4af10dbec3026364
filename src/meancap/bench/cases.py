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
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from importlib import resources

import torch
from torch import Tensor

from ..lab.condition import Condition
from ..lab.mixture import Mixture

KINDS = ("exact", "under-conditioned", "leak", "both", "rough", "smeared", "network")
DIMENSIONS = (2, 4, 8, 16, 32, 64)
OVERLAPS = {"heavy": 0.6, "touching": 1.0, "separate": 1.8}
FAR = "far "  # before an overlap: distances grow with the root of the dimension, and are the same in 8-D
OFFSETS = (0.0, 1.5)
SETS = {"problems": (252, 0), "tuning": (28, 100_000), "unseen": (252, 200_000)}  # size, first seed
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

    def as_row(self) -> list[str]:
        return [str(getattr(self, one.name)) for one in fields(self)]


def draw_case(name: str, kind: str, dimension: int, overlap: str, offset: float, seed: int) -> Case:
    """The problem of a stratum that belongs to this seed."""
    draw = random.Random(f"meancap bench {seed}")
    components = draw.randint(3, 10)
    members = draw.randint(1, max(1, components // 2))
    anisotropy = math.exp(draw.uniform(0, math.log(6)))
    outside = 1 - float(_truth(dimension, overlap, offset, seed, components, members, anisotropy)[3])
    eta, leak = draw.uniform(0.2, 0.7), draw.uniform(0.1, 0.4) * outside
    rough, smear = draw.uniform(0.02, 0.1), draw.uniform(0.1, 0.4)
    half = draw.random() < 0.5
    errors = {
        "exact": (0, 0, 0, 0),
        "under-conditioned": (eta, 0, 0, 0),
        "leak": (0, leak, 0, 0),
        "both": (eta / 2, leak / 2, 0, 0),
        "rough": (eta / 2, leak / 2, rough, 0),
        "smeared": (0, 0, 0, smear),
        "network": (0, leak if half else 0, 0, 0),
    }[kind]
    return Case(
        name, kind, dimension, overlap, offset, seed, components, members, round(anisotropy, 4),
        *(round(value, 4) for value in errors),
    )  # fmt: skip


def draw_cases(which: str) -> list[Case]:
    """A whole set from its seeds; `read_cases` reads the frozen file, which a test compares with this."""
    size, first = SETS[which]
    found = []
    for i in range(size):
        kind, place = i % len(KINDS), (i // len(KINDS) + 5 * (i % len(KINDS))) % 36
        column, row = place % 6, place // 6
        stratum = (
            KINDS[kind],
            DIMENSIONS[column],
            list(OVERLAPS)[(row + column) % 3],
            OFFSETS[(row // 3 + column) % 2],
        )
        found.append(draw_case(f"{which[0]}{i:03}", *stratum, seed=first + i))
    return found


def read_cases(which: str = "problems") -> list[Case]:
    """The problems of a file, in their balanced order."""
    text = resources.files(__package__).joinpath(f"{which}.csv").read_text(encoding="utf-8")
    return [case_of(row) for row in csv.DictReader(text.splitlines())]


def case_of(row: dict[str, str]) -> Case:
    """A problem from the texts of its fields."""
    kinds = {"str": str, "int": int, "float": float}
    return Case(**{one.name: kinds[str(one.type)](row[one.name]) for one in fields(Case)})


@lru_cache(maxsize=4)
def truth(case: Case) -> Condition:
    """The true law of the data and the condition, in float64; widths lie along the coordinates."""
    weights, means, variances = widths(case)
    return Condition(Mixture(means, weights, cov=torch.diag_embed(variances)), tuple(range(case.members)))


def widths(case: Case) -> tuple[Tensor, Tensor, Tensor]:
    """Weights (K,), means (K, d) and variances along the coordinates (K, d)."""
    numbers = (case.seed, case.components, case.members, case.anisotropy)
    return _truth(case.dimension, case.overlap, case.offset, *numbers)[:3]


@lru_cache(maxsize=8)
def _truth(
    d: int, overlap: str, offset: float, seed: int, components: int, members: int, anisotropy: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Weights, means, variances and p(A); Python's generator, whose draws no version changes."""
    draw = random.Random(f"meancap truth {seed}")

    def normal(*shape: int) -> Tensor:
        values = [draw.gauss(0, 1) for _ in range(math.prod(shape))]
        return torch.tensor(values, dtype=torch.float64).reshape(shape)

    weights = torch.tensor([0.2 + draw.gammavariate(2, 1) for _ in range(components)], dtype=torch.float64)
    weights /= weights.sum()
    profile = [i / (d - 1) for i in range(d)]
    draw.shuffle(profile)
    width = (math.log(anisotropy) * torch.tensor(profile, dtype=torch.float64)).exp()
    own = torch.tensor([math.exp(draw.uniform(-0.25, 0.25)) for _ in range(components)], dtype=torch.float64)
    variances = (width / width.square().mean().sqrt() * own[:, None]).square()
    means = normal(components, d)
    wider = math.sqrt(d / 8) if overlap.startswith(FAR) else 1.0
    means *= 4 * wider * OVERLAPS[overlap.removeprefix(FAR)] / torch.pdist(means).mean()
    means -= weights @ means
    radius = (weights @ (means.square() + variances)).sum().sqrt()
    away = normal(d)
    size = draw.uniform(0.6, 1.5) * math.sqrt(d)  # the data's rms radius
    means = size / radius * means + offset * size * away / away.norm()
    return weights, means, variances * (size / radius) ** 2, weights[:members].sum()


@lru_cache(maxsize=16)
def starts(dimension: int, block: str) -> Tensor:
    """Scrambled Sobol points as Gaussian noise, (POINTS, d); every block is drawn by itself."""
    seed = int.from_bytes(hashlib.sha256(f"bench {block} {dimension}".encode()).digest()[:4], "big")
    engine = torch.quasirandom.SobolEngine(dimension, scramble=True, seed=seed)  # type: ignore[no-untyped-call]
    draws = engine.draw(POINTS, dtype=torch.float64)
    noise: Tensor = torch.special.ndtri(draws.clamp(2.0**-31, 1 - 2.0**-31))
    return noise


def csv_of(cases: Sequence[Case]) -> str:
    """The text of a frozen file."""
    lines = [[one.name for one in fields(Case)], *(case.as_row() for case in cases)]
    return "\n".join(",".join(line) for line in lines) + "\n"
