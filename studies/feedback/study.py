"""Density-ratio feedback on mixtures that nothing was tuned on, against tuned CFG: the table of the page.

    mixture   `Cloud(8, spread=0.5, seed=11 ... 14)` with three of its twelve components as the condition
    leak      30 % of the condition's data is drawn without looking; feedback knows pi and tunes nothing
    CFG       its scale is tuned on one noise, and both are scored on three others

A cell is one mixture and sampler; it holds SW2 to the truth for each scored noise.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..lab.measures import Ruler
from ..lab.problems import Cloud, Problem
from ..rules import CFG, Rule, density_feedback
from ..sampling import ancestral, noise, sample, uniform
from .cell_folder import CellFolder
from .config import versions

SAMPLERS = {"ode": 0.0, "ancestral": 1.0}
TUNE_SEED = 1


@dataclass(frozen=True)
class MixtureStudy:
    """How much to run."""

    mixtures: tuple[int, ...] = (11, 12, 13, 14)
    samples: int = 2048
    steps: int = 50
    leak: float = 0.3
    scales: tuple[float, ...] = (1.25, 1.5, 1.75, 2.0, 2.5, 3.0)
    seeds: tuple[int, ...] = (2, 3, 4)

    def __post_init__(self) -> None:
        if TUNE_SEED in self.seeds:
            raise ValueError(f"seed {TUNE_SEED} tunes CFG; score on other seeds")


def run_mixtures(study: MixtureStudy, out: Path) -> Iterator[str]:
    """Makes what is missing, yielding the name of each finished cell."""
    about = {name: list(v) if isinstance(v, tuple) else v for name, v in asdict(study).items()}
    cells = CellFolder.begin(out, "feedback", about, versions())
    for mixture in study.mixtures:
        for sampler in SAMPLERS:
            name = f"mixture{mixture}-{sampler}"
            if name not in cells:
                cells.save(name, mixture_cell(study, mixture, sampler))
            yield name


def mixture_cell(study: MixtureStudy, mixture: int, sampler: str) -> dict[str, Tensor]:
    """SW2 of tuned CFG, of feedback and of a perfect model, one number for each scored noise."""
    layout = Cloud(8, spread=0.5, seed=mixture)
    problem = Problem(f"held-{mixture}", "held out", layout, (0, 1, 2), leak=study.leak)
    condition = problem.condition()
    ruler = Ruler(condition, study.samples)
    pi = 1 - problem.leak / (1 - math.exp(float(condition.log_prior)))

    def distance(rule: Rule, seed: int, *, perfect: bool = False) -> float:
        seeds = range(seed * 10**6, seed * 10**6 + study.samples)
        model = (problem.exact() if perfect else problem).model()
        x, step = noise(seeds, (8,)).double(), ancestral(seeds, SAMPLERS[sampler])
        return float(ruler.read(sample(model.predict, rule, x, uniform(study.steps), step))["sw2"])

    scale = min(study.scales, key=lambda v: distance(CFG(v), TUNE_SEED))
    feedback = density_feedback(round(pi, 6))
    found = {
        "scale": [scale],
        "pi": [pi],
        "CFG": [distance(CFG(scale), seed) for seed in study.seeds],
        "feedback": [distance(feedback, seed) for seed in study.seeds],
        "perfect": [distance(CFG(1.0), seed, perfect=True) for seed in study.seeds],
    }
    return {name: torch.tensor(values, dtype=torch.float64) for name, values in found.items()}


def mixture_table(study: MixtureStudy, out: Path) -> list[dict[str, Any]]:
    """SW2 over that of tuned CFG for each mixture, and the geometric mean with its interval."""
    cells = CellFolder(out)
    rows: list[dict[str, Any]] = []
    for sampler in SAMPLERS:
        ratios = []
        for mixture in study.mixtures:
            cell = cells.load(f"mixture{mixture}-{sampler}")
            ratios.append(torch.stack([cell["feedback"], cell["CFG"]]))
            means = {name: float(cell[name].mean()) for name in ("CFG", "feedback", "perfect")}
            row = {"sampler": sampler, "mixture": str(mixture), "scale": float(cell["scale"])} | means
            row |= {"feedback over CFG": means["feedback"] / means["CFG"]}
            rows.append(row | {"perfect over CFG": means["perfect"] / means["CFG"]})
        value, low, high = geometric_mean(torch.stack(ratios))
        rows.append(
            {
                "sampler": sampler,
                "mixture": "geometric mean",
                "feedback over CFG": value,
                "from": low,
                "to": high,
            }
        )
    return rows


def geometric_mean(pairs: Tensor, resamples: int = 2000) -> tuple[float, float, float]:
    """Of the ratios of means over seeds, (mixtures, 2, seeds), with a 95 % interval.

    The bootstrap resamples mixtures, and noises within each.
    """
    mixtures, _, seeds = pairs.shape
    draw = torch.Generator().manual_seed(0)
    which = torch.randint(mixtures, (resamples, mixtures), generator=draw)
    noises = torch.randint(seeds, (resamples, mixtures, 1, seeds), generator=draw).expand(-1, -1, 2, -1)
    again = pairs[which].gather(3, noises).mean(3)
    replicates = (again[..., 0].log() - again[..., 1].log()).mean(1).exp()
    low, high = replicates.quantile(torch.tensor([0.025, 0.975], dtype=replicates.dtype)).tolist()
    means = pairs.mean(2)
    return float((means[:, 0].log() - means[:, 1].log()).mean().exp()), low, high
