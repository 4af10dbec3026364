"""Density-ratio feedback on mixtures that nothing was tuned on, against tuned CFG.

    mixture   `Cloud(8, spread=0.5, seed=11 ... 14)` with three of its twelve components as the condition
    leak      30 % of the condition's data is drawn without looking; feedback knows pi and tunes nothing
    CFG       its scale is tuned on the noise of seed 1, and both are scored on other seeds

A cell is one mixture and sampler; it holds SW2 to the truth for each scored noise, float64.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from meancap.rules import CFG, Calibration, Rule, density_feedback
from meancap.sampling import ancestral, noise, sample, uniform
from meancap_lab.mixtures.measures import Ruler
from meancap_lab.mixtures.problems import Cloud, Problem
from studies import common
from studies.common import Cells, Row, option

SAMPLERS = {"ode": 0.0, "ancestral": 1.0}
TUNE_SEED = 1


@dataclass(frozen=True)
class Study:
    """How much to run."""

    mixtures: tuple[int, ...] = option((11, 12, 13, 14), "seeds of the mixtures")
    samples: int = option(2048, "samples for each noise seed")
    steps: int = option(50, "steps")
    leak: float = option(0.3, "share of data drawn at random")
    scales: tuple[float, ...] = option((1.25, 1.5, 1.75, 2.0, 2.5, 3.0), "candidates of tuned CFG")
    seeds: tuple[int, ...] = option((2, 3, 4), "noise seeds that are scored")

    def __post_init__(self) -> None:
        if TUNE_SEED in self.seeds:
            raise ValueError(f"seed {TUNE_SEED} tunes CFG; score on other seeds")


QUICK = Study((11, 12), samples=128, steps=8, scales=(1.5, 2.0), seeds=(2, 3))


def mixture_cell(study: Study, mixture: int, sampler: str) -> dict[str, Tensor]:
    """SW2 of tuned CFG, of feedback and of a perfect model, one number for each scored noise."""
    layout = Cloud(8, spread=0.5, seed=mixture)
    problem = Problem(f"held-{mixture}", layout, (0, 1, 2), leak=study.leak)
    condition = problem.condition()
    ruler = Ruler(condition, study.samples)
    pi = 1 - problem.leak / (1 - math.exp(float(condition.log_prior)))

    def distance(rule: Rule, seed: int, *, perfect: bool = False) -> float:
        seeds = range(seed * 10**6, seed * 10**6 + study.samples)
        model = (problem.exact() if perfect else problem).model()
        x, step = noise(seeds, (8,)).double(), ancestral(seeds, SAMPLERS[sampler])
        return float(ruler.read(sample(model.predict, rule, x, uniform(study.steps), step))["sw2"])

    scale = min(study.scales, key=lambda v: distance(CFG(v), TUNE_SEED))
    values = {
        "scale": [scale],
        "CFG": [distance(CFG(scale), seed) for seed in study.seeds],
        "feedback": [distance(density_feedback(round(pi, 6)), seed) for seed in study.seeds],
        "perfect": [distance(CFG(1.0), seed, perfect=True) for seed in study.seeds],
    }
    return {name: torch.tensor(value, dtype=torch.float64) for name, value in values.items()}


def readings(study: Study, cells: Cells) -> Iterator[Row]:
    """SW2 over that of tuned CFG for each mixture, and the geometric mean with its interval."""
    for sampler in SAMPLERS:
        ratios = []
        for mixture in study.mixtures:
            name = f"mixture{mixture}-{sampler}-seeds{'-'.join(map(str, study.seeds))}"
            cell = cells.make(name, lambda m=mixture, s=sampler: mixture_cell(study, m, s))
            ratios.append(torch.stack([cell["feedback"], cell["CFG"]]))
            means = {name: float(cell[name].mean()) for name in ("CFG", "feedback", "perfect")}
            row: Row = {"sampler": sampler, "mixture": str(mixture), "scale": float(cell["scale"])} | means
            for rule in ("feedback", "perfect"):
                row[f"{rule} over CFG"] = means[rule] / means["CFG"]
            yield row
        mean, low, high = geometric_mean(torch.stack(ratios))
        row = {"sampler": sampler, "mixture": "geometric mean", "feedback over CFG": mean}
        yield row | {"from": low, "to": high}


def geometric_mean(pairs: Tensor, resamples: int = 2000) -> tuple[float, float, float]:
    """Of the ratios of means over seeds, (mixtures, 2, seeds), with a 95 % interval.

    The bootstrap resamples mixtures, and noises within each.
    """
    mixtures, _, seeds = pairs.shape
    g = torch.Generator().manual_seed(0)
    which = torch.randint(mixtures, (resamples, mixtures), generator=g)
    noises = torch.randint(seeds, (resamples, mixtures, 1, seeds), generator=g).expand(-1, -1, 2, -1)
    again = pairs[which].gather(3, noises).mean(3)
    replicates = (again[..., 0].log() - again[..., 1].log()).mean(1).exp()
    low, high = replicates.quantile(torch.tensor([0.025, 0.975], dtype=replicates.dtype)).tolist()
    means = pairs.mean(2)
    return float((means[:, 0].log() - means[:, 1].log()).mean().exp()), low, high


def parts(folder: Path) -> dict[str, str]:
    """The table of the page, and the learned scale of the shipped model in a sentence."""
    rows = common.read_csv(folder / "readings.csv")
    mixtures = list(dict.fromkeys(r["mixture"] for r in rows if r["mixture"].isdigit()))
    table = []
    for sampler, name in (("ode", "ODE (98 % more calls)"), ("ancestral", "ancestral (equal calls)")):
        own = {r["mixture"]: r for r in rows if r["sampler"] == sampler}
        mean = own["geometric mean"]
        perfect = sorted(float(own[m]["perfect over CFG"]) for m in mixtures)
        table.append(
            [name, *(f"{float(own[m]['feedback over CFG']):.2f}" for m in mixtures),
             f"{float(mean['feedback over CFG']):.2f} [{float(mean['from']):.2f}, {float(mean['to']):.2f}]",
             f"{perfect[0]:.2f}–{perfect[-1]:.2f}"]
        )  # fmt: skip
    curves = Calibration.load(folder / "fashion-scale.json").curves
    curve = "; ".join(
        f"t = {t:g}: {value:.2f} [{low:.2f}, {high:.2f}]"
        for t, value, low, high in zip(*(curves[k] for k in ("t", "estimate", "low", "high")), strict=True)
    )
    head = ["SW2 over that of tuned CFG", *mixtures, "geometric mean", "a perfect model"]
    return {"readings": common.markdown(head, table), "scale": f"{curve}."}


def main(argv: Sequence[str] | None = None) -> None:
    example = "python -m studies.feedback --out out/feedback"
    common.run(argv, __doc__, example, (Study(), QUICK), readings, parts, {})
