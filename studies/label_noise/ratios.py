"""Two other ways to a log density ratio for `density_feedback` on a network, as predictors that state it.

    Renoised   R of the guided mean itself, from fresh noise: no path that guidance has driven is believed
    Rivals     R of the asked class against all classes along a memoryless run, normalised: the mean of R over
               classes is 1 by definition, so that a drift common to all classes cancels

log p(m | condition) - log p(m) of a picture m is half the integral over SNR = (t / (1 - t))^2 of
|m - m_u|^2 - |m - m_c|^2 at x_t = t m + (1 - t) noise. `Renoised` takes the integrand at one time, the
current one or `until` where that is earlier, and the mean over the steps, each weighted by its SNR.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from meancap.models.classes import ClassModel
from meancap.prediction import Prediction
from meancap.rules import DensityFeedback, feedback_scale
from meancap.runs.config import sample_seed
from meancap.sampling import Predict
from meancap.sampling.ratio_tracker import memoryless_gain
from meancap.tensors import per_sample


class Renoised:
    """Four network calls a step, for any sampler; one run."""

    follows_ratio = True

    def __init__(
        self, predict: Predict, rule: DensityFeedback, seeds: Sequence[int], until: float = 0.4
    ) -> None:
        self.predict, self.rule, self.until = predict, rule, until
        self._streams = [torch.Generator().manual_seed(sample_seed(7, seed)) for seed in seeds]
        self._sum = torch.zeros(len(self._streams), dtype=torch.float64)
        self._weight = 0.0

    @property
    def log_ratio(self) -> Tensor:
        """The weighted mean so far."""
        return self._sum / self._weight if self._weight else self._sum

    def __call__(self, x: Tensor, t: float) -> Prediction:
        p = self.predict(x, t)
        if t > 0:
            scale = feedback_scale(self.log_ratio, self.rule.pi, self.rule.most)
            m = p.m_u + per_sample(scale, p.m_u) * p.delta
            at = min(t, self.until)
            fresh = torch.stack([torch.randn(x.shape[1:], generator=one) for one in self._streams])
            q = self.predict(torch.lerp(fresh.to(m), m, at), at)
            snr = (at / (1 - at)) ** 2
            off = (m - (q.m_c + q.m_u) / 2).flatten(1).double()
            self._sum += snr * snr * (q.delta.flatten(1).double() * off).sum(1)
            self._weight += snr
        return p.beside(log_ratio=self.log_ratio)


class Rivals:
    """Two calls a step, and one more for each class before `until`; for `ancestral` steps, one run."""

    follows_ratio = True

    def __init__(self, model: ClassModel, labels: Sequence[int], until: float = 0.25) -> None:
        self.predict = model.predict(labels)
        self.classes = [model.predict([c] * len(labels)) for c in range(model.classes)]
        self.labels, self.until = torch.tensor(labels)[:, None], until
        self.evidence = torch.zeros(len(labels), model.classes, dtype=torch.float64)
        self._last: list[Prediction] = []

    def __call__(self, x: Tensor, t: float) -> Prediction:
        p = self.predict(x, t)
        if self._last:
            self.evidence += torch.stack([memoryless_gain(last, p) for last in self._last], 1)
        self._last = []
        if t < self.until:
            means = [one.conditional(x, t).m_c for one in self.classes]
            self._last = [Prediction.from_mean(p.x, t, m, p.m_u) for m in means]
        shares = self.evidence.log_softmax(1).gather(1, self.labels)[:, 0]
        return p.beside(log_ratio=shares + math.log(self.evidence.shape[1]))
