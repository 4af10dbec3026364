"""Rules on a model that we did not train: wind power's weather, by the networks of `enerdatasynth`.

    cell      one preset, rule and seed: `days` days of each regime; all rules share their noise; float32
    clip      every predicted day is clipped to the package's bound, where its thresholding does not do it
    hit       a day whose own mean lies in the regime that was asked for (the package's regime accuracy)
    profile   root mean square distance between the mean day of a regime and that of the training data, m/s
    calm      share of values below 0 m/s before the package sets them to 0
    spread    standard deviation of all values over that of the training data; regimes count as in the data

The package brings no data, so that its distances to real days cannot be taken.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from meancap.metrics.score import Estimate, difference, mean_estimate
from meancap.report.style import BLUE, GREY, PAGE, VERMILION, panels
from meancap.rules import CFG, Cap, Rule, Threshold, density_feedback
from meancap.runs.config import sample_seed
from meancap.sampling import ancestral, noise, sample
from studies import common
from studies.common import Cells, Row, interval, interval_columns, option

from .model import PRESETS, REGIMES, SHARES, WindModel, wind_model

HERE = Path(__file__).parent
CLIP = Threshold(1.0, most=1.0)
UNGUIDED = CFG(1.0) | CLIP
GUIDED = ("1ch", "3ch")  # the presets whose authors recommend guidance
AUTHORS = "CFG 40, dynamic thresholding"


@dataclass(frozen=True)
class Study:
    """How much to run."""

    presets: tuple[str, ...] = option(PRESETS, "presets of the package")
    days: int = option(3, "days of each regime, for each seed")
    steps: int = option(50, "steps of its DDIM sampler")
    seeds: tuple[int, ...] = option((0, 1, 2), "noise seeds")


QUICK = Study(("1ch",), days=1, steps=5, seeds=(0,))


# Rules at the scale that the package's authors recommend. The flag clips both means before guidance, which
# following log R needs.
RULES: dict[str, tuple[Rule, bool]] = {
    "unguided": (UNGUIDED, False),
    AUTHORS: (CFG(40.0) | Threshold(0.99), False),
    "CFG 40, Cap 1.1": (CFG(40.0) | Cap(1.1) | CLIP, False),
    "density feedback": (density_feedback(0.2, most=40.0) | CLIP, True),
    "CFG 40": (CFG(40.0) | CLIP, False),
}


def make_days(model: WindModel, rule: Rule, clip: bool, study: Study, seed: int) -> dict[str, Tensor]:
    """Wind speeds, (regimes, days, 288)."""
    regimes = [regime for regime in REGIMES for _ in range(study.days)]
    seeds, times = [sample_seed(seed, i) for i in range(len(regimes))], model.times(study.steps)
    _, alpha, sigma = model.coefficients(times[0])
    predict = model.predict(regimes, clip=clip)
    # Without guidance one network call is enough; a clip alone does not tell the sampler so.
    called = predict.conditional if rule == UNGUIDED else predict
    days = sample(called, rule, noise(seeds, model.shape) / (alpha + sigma), times, ancestral(seeds))
    return {"speed": model.speed(days).float().reshape(len(REGIMES), study.days, -1)}


def readings(study: Study, cells: Cells) -> Iterator[Row]:
    """One row for each preset and rule, and its difference to the authors' setting."""
    for preset in study.presets:
        model = wind_model(preset)
        speeds: dict[str, Tensor] = {}
        for name, (rule, clip) in RULES.items():
            if name != "CFG 40" or preset in GUIDED:
                work = partial(make_days, model, rule, clip, study)
                made = [cells.make(f"{preset}-{name}-seed{s}", partial(work, s)) for s in study.seeds]
                speeds[name] = torch.cat([cell["speed"].double() for cell in made], dim=1)
        authors = regime_hits(model, speeds[AUTHORS])
        for name, speed in speeds.items():
            hits = regime_hits(model, speed)
            row: Row = {"preset": preset, "rule": name, "seeds": len(study.seeds)}
            row["days"] = speed.shape[0] * speed.shape[1]
            row |= interval_columns(hits, "hits")
            row |= interval_columns(difference(hits, authors), "hits less authors")
            yield row | measures(model, speed)


def regime_hits(model: WindModel, speed: Tensor) -> Estimate:
    """The share of days in the regime that was asked for; `speed` is (regimes, days, 288)."""
    wanted = [regime for regime in REGIMES for _ in range(speed.shape[1])]
    hits = [a == b for a, b in zip(wanted, model.regime(speed.flatten(0, 1)), strict=True)]
    return mean_estimate("hits", torch.tensor(hits).double())


def measures(model: WindModel, speed: Tensor) -> dict[str, float]:
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


def draw_days(cells: Cells, shown: int = 4):
    """The first preset and seed. Rows are rules, columns regimes; thin lines are days, the thick one their
    mean, dashed the data's.
    """
    preset, seed = cells.asked["presets"][0], cells.asked["seeds"][0]
    rows = common.read_csv(cells.folder / "readings.csv")
    names = [row["rule"] for row in rows if row["preset"] == preset]
    figure, axes = panels(len(names), len(REGIMES), PAGE, 0.95 * len(names) + 0.4, sharex=True, sharey=True)
    for number, (line, name) in enumerate(zip(axes, names, strict=True)):
        days = cells.load(f"{preset}-{name}-seed{seed}")["speed"]
        hours = torch.arange(days.shape[-1]) * 24 / days.shape[-1]
        for place, regime, some in zip(line, REGIMES, days, strict=True):
            place.plot(hours, some[:shown].T, color=BLUE, linewidth=0.5, alpha=0.7)
            place.plot(hours, some.mean(0), color=VERMILION)
            place.plot(hours, training_profile(regime), "--", color=GREY, linewidth=0.9)
            place.grid(False)  # the wind package switches grids on for the whole process
            if number == 0:
                place.set_title(f"{regime} wind asked for")
        line[0].set_ylabel(name.replace(", ", "\n"), fontsize=5.5)
    for place in axes[-1]:
        place.set_xlabel("hour")
    figure.suptitle(f"wind speed at 100 m, m/s (preset {preset}, seed {seed})", fontsize=7)
    return figure


def parts(folder: Path) -> dict[str, str]:
    """The table of the page."""
    table = []
    for r in common.read_csv(folder / "readings.csv"):
        profile = ", ".join(f"{float(r[f'profile {regime}']):.1f}" for regime in REGIMES)
        less = "" if r["rule"] == AUTHORS else interval(r, "hits less authors", "+")
        hits, spread = f"{float(r['hits']):.2f}", f"{float(r['spread']):.2f}"
        table.append([r["preset"], r["rule"], hits, less, profile, spread])
    head = ["preset", "rule", "hits", "less the authors'", "profile, m/s", "spread"]
    return {"readings": common.markdown(head, table)}


def main(argv: Sequence[str] | None = None) -> None:
    example = "python -m studies.wind --presets 1ch --out out/wind"
    common.run(argv, __doc__, example, (Study(), QUICK), readings, parts, {"days": draw_days})
