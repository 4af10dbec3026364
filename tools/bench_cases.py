"""Draws the benchmark's problems from their seeds, as they are frozen in lab/src/meancap_lab/bench/*.csv.

python -m tools.bench_cases      writes the three files again; a test compares them with the seeds
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path

import meancap_lab.bench
from meancap.files import write_whole
from meancap_lab.bench.cases import DIMENSIONS, KINDS, OFFSETS, OVERLAPS, Case, widths

FOLDER = Path(meancap_lab.bench.__file__).parent
SETS = {"problems": (252, 0), "tuning": (28, 100_000), "unseen": (252, 200_000)}  # size, first seed


def draw_case(name: str, kind: str, dimension: int, overlap: str, offset: float, seed: int) -> Case:
    """The problem of a stratum that belongs to this seed."""
    draw = random.Random(f"meancap bench {seed}")
    components = draw.randint(3, 10)
    members = draw.randint(1, max(1, components // 2))
    anisotropy = math.exp(draw.uniform(0, math.log(6)))
    case = Case(name, kind, dimension, overlap, offset, seed, components, members, round(anisotropy, 4))
    outside = 1 - float(widths(case)[0][:members].sum())
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
    eta, leak, rough, smear = (round(value, 4) for value in errors)
    return replace(case, eta=eta, leak=leak, rough=rough, smear=smear)


def draw_cases(which: str) -> list[Case]:
    """A whole set from its seeds."""
    size, first = SETS[which]
    found = []
    for i in range(size):
        kind, place = i % len(KINDS), (i // len(KINDS) + 5 * (i % len(KINDS))) % 36
        column, row = place % 6, place // 6
        overlap, offset = list(OVERLAPS)[(row + column) % 3], OFFSETS[(row // 3 + column) % 2]
        name = f"{which[0]}{i:03}"
        found.append(draw_case(name, KINDS[kind], DIMENSIONS[column], overlap, offset, first + i))
    return found


def csv_of(cases: Sequence[Case]) -> str:
    """The text of a frozen file."""
    names = [one.name for one in fields(Case)]
    lines = [names, *([str(getattr(case, name)) for name in names] for case in cases)]
    return "\n".join(",".join(line) for line in lines) + "\n"


if __name__ == "__main__":
    for which in SETS:
        write_whole(FOLDER / f"{which}.csv", csv_of(draw_cases(which)))
