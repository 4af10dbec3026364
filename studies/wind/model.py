"""Somebody else's model: the wind networks of `enerdatasynth`, stated as predictions of this package.

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
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import torch
from torch import Tensor

from meancap.prediction import Prediction

PRESETS = ("1ch", "2ch", "3ch")
REGIMES = ("low", "mid", "high")
SHARES = (0.25, 0.5, 0.25)  # of real days in each regime: its edges are quartiles of the daily mean
CONDITIONS = "enerdatasynth.generators.wind_conditioning"
TRANSFORMS = "enerdatasynth.resources.wind.data.transforms"


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

    def regime(self, speed: Tensor) -> list[str]:
        """The regime that each day is in by its own mean, as the package labels its data."""
        own, edges = importlib.import_module(TRANSFORMS), self.generator.norm_stats.wind_bucket_edges
        return [str(own.assign_wind_bucket(float(v), *edges)) for v in speed.mean(1)]

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


class WindPredictor:
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
