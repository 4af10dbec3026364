"""Rules on a model that we did not train: wind power's weather, by the networks of `enerdatasynth`.

    cell      one preset, rule and seed: `days` days of each regime; all rules share their noise
    clip      every predicted day is clipped to the package's bound, where its thresholding does not do it
    hit       a day whose own mean lies in the regime that was asked for (the package's regime accuracy)
    profile   root mean square distance between the mean day of a regime and that of the training data, m/s
    calm      share of values below 0 m/s before the package sets them to 0
    spread    standard deviation of all values over that of the training data; regimes count as in the data

The package brings no data, so that its distances to real days (marginals, autocorrelation, spectra, ramps)
cannot be taken. For the same reason a scale cannot be learned from real days. It is learned from the
network's own: days made without a regime are labelled by their own mean, which is what a regime is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..metrics.score import Estimate, difference, mean_estimate
from ..rules import CFG, Cap, Rule, Threshold, density_feedback
from ..sampling import ancestral, noise, sample
from ..schedules import Piecewise
from .cell_folder import CellFolder
from .config import sample_seed, versions
from .learned_scale import LearnedScale, learn_scale
from .wind_model import PRESETS, REGIMES, SHARES, WindModel, wind_model

CLIP = Threshold(1.0, most=1.0)
UNGUIDED = CFG(1.0) | CLIP
PILOT_SEED = 900
GUIDED = ("1ch", "3ch")  # the presets whose authors recommend guidance
AUTHORS = "CFG 40, dynamic thresholding"


@dataclass(frozen=True)
class WindStudy:
    """How much to run; more seeds may be added to a folder later."""

    presets: tuple[str, ...] = PRESETS
    days: int = 3  # of each regime, for each seed
    steps: int = 50
    pilot: int = 32

    def __post_init__(self) -> None:
        if unknown := set(self.presets) - set(PRESETS):
            raise ValueError(f"the presets are {', '.join(PRESETS)}; got {', '.join(sorted(unknown))}")
        if min(self.days, self.pilot - 31) < 1 or self.steps < 2:
            raise ValueError(f"the study needs a day, a pilot of 32 days and two steps; got {self}")


@dataclass(frozen=True)
class WindRule:
    """A line of the table. `clip` bounds both means before guidance, which following log R needs."""

    name: str
    rule: Rule
    clip: bool = False


def wind_rules(learned: LearnedScale | None) -> list[WindRule]:
    """What is compared, at the scale that the package's authors recommend; fewer without a learned scale."""
    found = [
        WindRule("unguided", UNGUIDED),
        WindRule(AUTHORS, CFG(40.0) | Threshold(0.99)),
        WindRule("CFG 40, Cap 1.1", CFG(40.0) | Cap(1.1) | CLIP),
        WindRule("density feedback", density_feedback(0.2, most=40.0) | CLIP, clip=True),
    ]
    if learned is not None:
        found.append(WindRule("CFG 40", CFG(40.0) | CLIP))
        found.append(WindRule("scale from its own days", CFG(told_apart(learned)) | CLIP))
    return found


def told_apart(learned: LearnedScale) -> Piecewise:
    """The learned scale at the times whose interval lies above 1, and 1 at the others."""
    curves = zip(learned.values, learned.low, strict=True)
    return Piecewise(learned.times, tuple(v if low > 1 else 1.0 for v, low in curves))


def run_wind(study: WindStudy, out: Path, seeds: Sequence[int] = (0, 1, 2)) -> Iterator[str]:
    """Makes what is missing, seed by seed, yielding the name of each finished cell."""
    models = {preset: wind_model(preset) for preset in study.presets}
    cells = CellFolder.begin(out, "wind", asdict(study) | {"presets": list(study.presets)}, _versions())
    for preset, model in models.items():
        if preset in GUIDED and f"{preset}-pilot" not in cells:
            cells.save(f"{preset}-pilot", _learned(model, study))
            yield f"{preset}-pilot"
    for seed in seeds:
        for preset, model in models.items():
            for one in wind_rules(pilot_scale(cells, preset)):
                name = cell_name(preset, one.name, seed)
                if name not in cells:
                    cells.save(name, {"speed": make_days(model, one, study, seed).float()})
                yield name


def make_days(model: WindModel, one: WindRule, study: WindStudy, seed: int) -> Tensor:
    """Wind speeds, (3 days, 288): the regimes one after another."""
    regimes = [regime for regime in REGIMES for _ in range(study.days)]
    return model.speed(_sampled(model, one.rule, regimes, study.steps, seed, clip=one.clip))


def _sampled(
    model: WindModel, rule: Rule, regimes: Sequence[str], steps: int, seed: int, *, clip: bool = False,
    without: bool = False,
) -> Tensor:  # fmt: skip
    seeds, times = [sample_seed(seed, i) for i in range(len(regimes))], model.times(steps)
    _, alpha, sigma = model.coefficients(times[0])
    x = noise(seeds, model.shape) / (alpha + sigma)
    predict = model.predict(regimes, clip=clip)
    if without:
        predict.z = predict.null
    # One call is enough where no gap is asked for; a clip alone does not say so.
    asked = predict.conditional if rule == UNGUIDED else predict
    return sample(asked, rule, x, times, ancestral(seeds))


def _learned(model: WindModel, study: WindStudy) -> dict[str, Tensor]:
    """A scale from days that the network made without a regime, each labelled by its own mean."""
    days = _sampled(model, UNGUIDED, ["mid"] * study.pilot, study.steps, PILOT_SEED, without=True)
    labels = model.regime(model.speed(days))
    times = model.times(12)[1:-1]
    learned = learn_scale([(model.predict(labels, clip=True), days)], times, seed=PILOT_SEED)
    return {key: torch.tensor(getattr(learned, key)) for key in ("times", "values", "low", "high")}


def pilot_scale(cells: CellFolder, preset: str) -> LearnedScale | None:
    """The scale that the pilot of a preset learned; None where its authors advise against guidance."""
    if preset not in GUIDED:
        return None
    curves = cells.load(f"{preset}-pilot")
    times, values, low, high = (
        tuple(float(f"{v:.5g}") for v in curves[key].tolist()) for key in ("times", "values", "low", "high")
    )
    return LearnedScale(times, values, low, high, examples=0, model=preset)


def cell_name(preset: str, rule: str, seed: int) -> str:
    """The file name of a cell."""
    plain = rule.lower().replace(",", "").replace(" ", "-")
    return f"{preset}-{plain}-seed{seed}"


def wind_table(study: WindStudy, out: Path, seeds: Sequence[int] = (0, 1, 2)) -> Iterator[dict[str, Any]]:
    """One row for each preset and rule, and its difference to the authors' setting.

    A preset counts the seeds that all its rules have, so that a study under way has a table as well.
    """
    cells = CellFolder(out)
    for preset in study.presets:
        model = wind_model(preset)
        names = [one.name for one in wind_rules(pilot_scale(cells, preset))]
        done = [seed for seed in seeds if all(cell_name(preset, name, seed) in cells for name in names)]
        if not done:
            continue
        speeds = {name: _joined(cells, preset, name, done) for name in names}
        hits = {name: _hits(model, speed) for name, speed in speeds.items()}
        for name, speed in speeds.items():
            less = difference(hits[name], hits[AUTHORS]).columns("hits less authors")
            row = {
                "preset": preset,
                "rule": name,
                "seeds": len(done),
                "days": speed.shape[0] * speed.shape[1],
            }
            yield row | hits[name].columns("hits") | less | wind_measures(model, speed)


def _joined(cells: CellFolder, preset: str, name: str, seeds: Sequence[int]) -> Tensor:
    """The days of all seeds, (regimes, days, 288)."""
    made = [cells.load(cell_name(preset, name, seed))["speed"].double() for seed in seeds]
    return torch.cat([one.reshape(len(REGIMES), -1, one.shape[-1]) for one in made], dim=1)


def _hits(model: WindModel, speed: Tensor) -> Estimate:
    asked = [regime for regime in REGIMES for _ in range(speed.shape[1])]
    found = model.regime(speed.flatten(0, 1))
    return mean_estimate("hits", torch.tensor([a == b for a, b in zip(asked, found, strict=True)]).double())


def wind_measures(model: WindModel, speed: Tensor) -> dict[str, float]:
    """Hits and profile distance of each regime, calm and spread over all; `speed` is (regimes, days, 288)."""
    row: dict[str, float] = {}
    for regime, days in zip(REGIMES, speed, strict=True):
        hits = [one == regime for one in model.regime(days)]
        row[f"hits {regime}"] = sum(hits) / len(hits)
        row[f"profile {regime}"] = float((days.mean(0) - training_profile(regime)).square().mean().sqrt())
    shares = torch.tensor(SHARES, dtype=torch.float64)
    first, second = speed.mean((1, 2)) @ shares, speed.square().mean((1, 2)) @ shares
    reference = float(wind_model("1ch").generator.norm_stats.target_std[0])
    row["calm"] = float((speed <= 0).double().mean((1, 2)) @ shares)
    row["spread"] = float((second - first**2).sqrt()) / reference
    return row


def training_profile(regime: str) -> Tensor:
    """The mean training day of a regime, m/s, which the package keeps with two of its presets."""
    return torch.tensor(wind_model("1ch").generator.norm_stats.diurnal_profile_by_regime[regime]).double()


def _versions() -> dict[str, str]:
    return versions(["enerdatasynth"])
