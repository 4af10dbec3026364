"""Rules on a model that we did not train: wind power's weather, by the networks of `enerdatasynth`.

    cell      one preset, rule and seed: `days` days of each regime; all rules share their noise; float32
    clip      every predicted day is clipped to the package's bound, where its thresholding does not do it
    hit       a day whose own mean lies in the regime that was asked for (the package's regime accuracy)
    profile   root mean square distance between the mean day of a regime and that of the training data, m/s
    calm      share of values below 0 m/s before the package sets them to 0
    spread    standard deviation of all values over that of the training data; regimes count as in the data

The package brings no data, so that its distances to real days cannot be taken, and no scale can be learned
from real days. It is learned from the network's own: days made without a regime are labelled by their own
mean, which is what a regime is.
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
from meancap.runs.calibrate import learn_scale
from meancap.runs.config import sample_seed
from meancap.sampling import ancestral, noise, sample
from meancap.schedules import Piecewise
from studies import common
from studies.common import Cells, Row, interval, interval_columns, option

from .model import PRESETS, REGIMES, SHARES, WindModel, wind_model

HERE = Path(__file__).parent
CLIP = Threshold(1.0, most=1.0)
UNGUIDED = CFG(1.0) | CLIP
PILOT_SEED = 900
GUIDED = ("1ch", "3ch")  # the presets whose authors recommend guidance
AUTHORS, OWN = "CFG 40, dynamic thresholding", "scale from its own days"


@dataclass(frozen=True)
class Study:
    """How much to run."""

    presets: tuple[str, ...] = option(PRESETS, "presets of the package")
    days: int = option(3, "days of each regime, for each seed")
    steps: int = option(50, "steps of its DDIM sampler")
    pilot: int = option(32, "days to learn a scale from")
    seeds: tuple[int, ...] = option((0, 1, 2), "noise seeds")


QUICK = Study(("1ch",), days=1, steps=5, seeds=(0,))


def rules_of(cells: Cells, model: WindModel, study: Study) -> dict[str, tuple[Rule, bool]]:
    """Rules by name, at the scale that the package's authors recommend.

    The flag clips both means before guidance, which following log R needs. Presets whose authors recommend
    guidance have two rules more.
    """
    rules: dict[str, tuple[Rule, bool]] = {
        "unguided": (UNGUIDED, False),
        AUTHORS: (CFG(40.0) | Threshold(0.99), False),
        "CFG 40, Cap 1.1": (CFG(40.0) | Cap(1.1) | CLIP, False),
        "density feedback": (density_feedback(0.2, most=40.0) | CLIP, True),
    }
    if model.preset in GUIDED:
        curve = cells.make(f"{model.preset}-pilot", partial(learn_from_own_days, model, study))
        times, values, low = (
            [float(f"{v:.5g}") for v in curve[key].tolist()] for key in ("times", "values", "low")
        )
        # The learned scale at the times whose interval lies above 1, and 1 at the others.
        own = Piecewise(tuple(times), tuple(v if a > 1 else 1.0 for v, a in zip(values, low, strict=True)))
        rules["CFG 40"] = (CFG(40.0) | CLIP, False)
        rules[OWN] = (CFG(own) | CLIP, False)
    return rules


def make_days(
    model: WindModel, rule: Rule, clip: bool, regimes: Sequence[str], steps: int, seed: int,
    without: bool = False,
) -> Tensor:  # fmt: skip
    """One day for each regime, in units of the bound; `without` leaves the regime out."""
    seeds, times = [sample_seed(seed, i) for i in range(len(regimes))], model.times(steps)
    _, alpha, sigma = model.coefficients(times[0])
    predict = model.predict(regimes, clip=clip)
    if without:
        predict.z = predict.null
    # Without guidance one network call is enough; a clip alone does not tell the sampler so.
    called = predict.conditional if rule == UNGUIDED else predict
    return sample(called, rule, noise(seeds, model.shape) / (alpha + sigma), times, ancestral(seeds))


def learn_from_own_days(model: WindModel, study: Study) -> dict[str, Tensor]:
    """A scale from days that the network made without a regime, each labelled by its own mean."""
    days = make_days(model, UNGUIDED, False, ["mid"] * study.pilot, study.steps, PILOT_SEED, without=True)
    labels = model.regime(model.speed(days))
    learned = learn_scale([(model.predict(labels, clip=True), days)], model.times(12)[1:-1], seed=PILOT_SEED)
    return {key: torch.tensor(getattr(learned, key)) for key in ("times", "values", "low", "high")}


def readings(study: Study, cells: Cells) -> Iterator[Row]:
    """One row for each preset and rule, and its difference to the authors' setting."""
    regimes = [regime for regime in REGIMES for _ in range(study.days)]
    for preset in study.presets:
        model = wind_model(preset)
        speeds: dict[str, Tensor] = {}

        def work(rule: Rule, clip: bool, seed: int, model: WindModel = model) -> dict[str, Tensor]:
            return {"speed": model.speed(make_days(model, rule, clip, regimes, study.steps, seed)).float()}

        for name, (rule, clip) in rules_of(cells, model, study).items():
            made = [cells.make(f"{preset}-{name}-seed{s}", partial(work, rule, clip, s)) for s in study.seeds]
            each = [cell["speed"].double().reshape(len(REGIMES), study.days, -1) for cell in made]
            speeds[name] = torch.cat(each, dim=1)
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
        speed = cells.load(f"{preset}-{name}-seed{seed}")["speed"]
        days = speed.reshape(len(REGIMES), -1, speed.shape[-1])
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
    """The table of the page; a scale from its own days leaves the unguided days as they are."""
    table = []
    for r in common.read_csv(folder / "readings.csv"):
        if r["rule"] != OWN:
            profile = ", ".join(f"{float(r[f'profile {regime}']):.1f}" for regime in REGIMES)
            less = "" if r["rule"] == AUTHORS else interval(r, "hits less authors", "+")
            hits, spread = f"{float(r['hits']):.2f}", f"{float(r['spread']):.2f}"
            table.append([r["preset"], r["rule"], hits, less, profile, spread])
    head = ["preset", "rule", "hits", "less the authors'", "profile, m/s", "spread"]
    return {"readings": common.markdown(head, table)}


def main(argv: Sequence[str] | None = None) -> None:
    example = "python -m studies.wind --presets 1ch --out out/wind"
    common.run(argv, __doc__, example, (Study(), QUICK), readings, parts, {"days": draw_days})
