"""Rules on a model that we did not train: wind power's weather, by the networks of `enerdatasynth`.

    cell      one preset, rule and seed: `days` days of each regime; all rules share their noise; float32
    clip      every predicted day is clipped to the package's bound, where its thresholding does not do it
    hit       a day whose own mean lies in the regime that was asked for (the package's regime accuracy)
    profile   root mean square distance between the mean day of a regime and that of the training data, m/s
    spread    standard deviation of all values over that of the training data; regimes count as in the data

The package brings no data, so that its distances to real days cannot be taken.

    day       one day of wind at 5-minute steps, (channels, 288), standardised; 1 to 3 channels
    z         its conditions: month, day of the week, temperatures, and the wind regime low, mid or high
    null      z with the regime's three entries at 0, as in 30 % of its training
    path      alpha data + sigma noise on its 200 cosine steps

The package clips every predicted day to +-3.5 standard deviations. Means are therefore stated in units of
that bound, on the path 3.5 alpha (data / 3.5) + sigma noise: its dynamic thresholding is then
`Threshold(0.99)`, its plain clip `Threshold(1, most=1)`, and its DDIM step with eta = 1 is `ancestral`.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from meancap.prediction import Prediction, Predictor
from meancap.rules import CFG, Cap, Rule, Threshold, density_feedback
from meancap.sampling import ancestral, noise, sample
from meancap_lab.metrics.score import Estimate, difference, mean_estimate
from meancap_lab.report.style import BLUE, GREY, PAGE, VERMILION, panels
from meancap_lab.runs.config import sample_seed
from studies import common
from studies.common import Cells, Row, interval, interval_columns, option

REGIMES = ("low", "mid", "high")
SHARES = (0.25, 0.5, 0.25)  # of real days in each regime: its edges are quartiles of the daily mean
CONDITIONS = "enerdatasynth.generators.wind_conditioning"
TRANSFORMS = "enerdatasynth.resources.wind.data.transforms"
CLIP = Threshold(1.0, most=1.0)
UNGUIDED = CFG(1.0) | CLIP
GUIDED = ("1ch", "3ch")  # the presets whose authors recommend guidance
AUTHORS = "CFG 40, dynamic thresholding"


@dataclass(frozen=True)
class Study:
    """How much to run."""

    presets: tuple[str, ...] = option(("1ch", "2ch", "3ch"), "presets of the package")
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


@dataclass(frozen=True, eq=False)
class WindModel:
    """One preset: `generator` is the package's own WindDiffusionModel."""

    preset: str
    generator: Any
    metadata: dict[str, Any]

    @property
    def shape(self) -> tuple[int, int]:
        return int(self.generator.config.n_model_channels), 288

    @property
    def bound(self) -> float:
        """The clip of its predictions, in standard deviations."""
        return float(self.generator.config.sample_clip_std)

    def times(self, steps: int) -> tuple[float, ...]:
        """The grid of its DDIM sampler on the linear path: data at 1, a last step from its step 0."""
        last = len(self._alphas) - 1
        indices = sorted({round(last * i / (steps - 1)) for i in range(steps)}, reverse=True)
        return (*map(self._time, indices), 1.0)

    def predict(self, regimes: Sequence[str], *, clip: bool = False) -> WindPredictor:
        """The predictor for one regime per day; June, and the package's defaults of the other conditions.

        `clip` bounds both means before guidance. At its first step the package divides the error of a noise
        prediction by alpha = 0.00025, and a log density ratio would be made of that error alone.
        """
        build = importlib.import_module(CONDITIONS).wind_condition_builder
        rows = [build({"wind_regime": one, "month": 6}, self.metadata, 1, None) for one in regimes]
        return WindPredictor(self, torch.cat([torch.from_numpy(row) for row in rows]), clip)

    def speed(self, days: Tensor) -> Tensor:
        """Metres per second, (n, 288), of days in units of the bound, by the package's own decoding."""
        own, stats = importlib.import_module(TRANSFORMS), self.generator.norm_stats
        plain = (days * self.bound).transpose(1, 2).double().numpy()
        days_in_units = own.destandardize_windows(plain, stats.target_mean, stats.target_std)
        return torch.from_numpy(own.decode_channels(days_in_units, self.preset)[0])

    def coefficients(self, t: float) -> tuple[int, float, float]:
        """Its own step, alpha and sigma of a time of the grid; means are in units of the bound."""
        index = min(range(len(self._alphas)), key=lambda i: abs(self._time(i) - t))
        alpha, sigma = self._alphas[index]
        return index, self.bound * alpha, sigma

    @cached_property
    def _alphas(self) -> list[tuple[float, float]]:
        squares = self.generator.schedule.alphas_cumprod.double()
        return list(zip(squares.sqrt().tolist(), (1 - squares).sqrt().tolist(), strict=True))

    def _time(self, index: int) -> float:
        alpha, sigma = self._alphas[index]
        return self.bound * alpha / (self.bound * alpha + sigma)


class WindPredictor(Predictor):
    """(x, t) -> Prediction on the linear path; `conditional` calls the network once."""

    def __init__(self, model: WindModel, z: Tensor, clip: bool) -> None:
        own, config = importlib.import_module(TRANSFORMS), model.generator.config
        encoding = config.wind_regime_encoding
        self.model, self.z, self.null, self.clip = model, z, z.clone(), clip
        self.null[:, own.wind_regime_slice(config.condition_on, wind_regime_encoding=encoding)] = 0.0

    def __call__(self, x: Tensor, t: float) -> Prediction:
        return self._prediction(x, t, self.null)

    def conditional(self, x: Tensor, t: float) -> Prediction:
        return self._prediction(x, t, None)

    @torch.no_grad()
    def _prediction(self, x: Tensor, t: float, null: Tensor | None) -> Prediction:
        index, alpha, sigma = self.model.coefficients(t)
        shown, at = x.float() * (alpha + sigma), torch.full((len(x),), index, dtype=torch.long)
        network = self.model.generator.model
        conditional = network(shown, at, self.z)
        reference = conditional if null is None else network(shown, at, null)
        p = Prediction.from_noise(shown, conditional, reference, alpha=alpha, sigma=sigma)
        return Prediction.from_mean(p.x, p.t, p.m_c.clamp(-1, 1), p.m_u.clamp(-1, 1)) if self.clip else p


@cache
def wind_model(preset: str) -> WindModel:
    """The preset's network, from the installed package."""
    try:
        package = importlib.import_module(CONDITIONS)
    except ImportError as error:
        raise ImportError(f'the wind models need {error.name}: pip install "enerdatasynth>=0.8.4"') from error
    made = package.wind_construct(preset)
    return WindModel(preset, made.generator, made.metadata)


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
    shares = torch.tensor(SHARES, dtype=torch.float64)
    reference = float(wind_model("1ch").generator.norm_stats.target_std[0])
    for preset in study.presets:
        model = wind_model(preset)
        speeds: dict[str, Tensor] = {}
        for name, (rule, clip) in RULES.items():
            if name != "CFG 40" or preset in GUIDED:
                work = partial(make_days, model, rule, clip, study)
                made = [cells.make(f"{preset}-{name}-seed{s}", partial(work, s)) for s in study.seeds]
                speeds[name] = torch.cat([cell["speed"].double() for cell in made], dim=1)
        hits = {name: regime_hits(model, speed) for name, speed in speeds.items()}
        for name, speed in speeds.items():
            row: Row = {"preset": preset, "rule": name, "seeds": len(study.seeds)}
            row["days"] = speed.shape[0] * speed.shape[1]
            row |= interval_columns(hits[name], "hits")
            row |= interval_columns(difference(hits[name], hits[AUTHORS]), "hits less authors")
            for regime, days, own in zip(REGIMES, speed, hits[name].parts.chunk(len(REGIMES)), strict=True):
                row[f"hits {regime}"] = float(own.mean())
                off = days.mean(0) - training_profile(regime)
                row[f"profile {regime}"] = float(off.square().mean().sqrt())
            first, second = speed.mean((1, 2)) @ shares, speed.square().mean((1, 2)) @ shares
            yield row | {"spread": float((second - first**2).sqrt()) / reference}


def regime_hits(model: WindModel, speed: Tensor) -> Estimate:
    """The share of days in the regime that was asked for; `speed` is (regimes, days, 288)."""
    own, edges = importlib.import_module(TRANSFORMS), model.generator.norm_stats.wind_bucket_edges
    hits = [
        str(own.assign_wind_bucket(float(mean), *edges)) == regime
        for regime, days in zip(REGIMES, speed.mean(2), strict=True)
        for mean in days
    ]
    return mean_estimate("hits", torch.tensor(hits).double())


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
