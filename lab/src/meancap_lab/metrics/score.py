"""Numbers with their uncertainty and their protocol.

    parts   pseudo-values: what each image (or each group of images) says the metric is; their mean is the
            value to first order, and their spread is its error

Every metric here is a smooth function of the sample, so it has such parts: for a mean they are the values
themselves, for a Frechet distance they come from its derivative, for recall from leaving groups of images
out. Two runs that share seeds are compared part by part, which makes the comparison precise. The
reference images are taken as given: an interval tells how the number would move with other seeds, not with
other references.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

_Interval = tuple[float, float]
_REPLICATES = 2000


@dataclass(frozen=True)
class Score:
    """One number of a report. `protocol` says how it was made: extractor, resize, reference, count."""

    name: str
    value: float
    interval: _Interval | None
    n: int
    protocol: str

    def __str__(self) -> str:
        if self.interval is None:
            return f"{self.name} {self.value:.4g} (n = {self.n:,}; {self.protocol})"
        low, high = self.interval
        return f"{self.name} {self.value:.4g} [{low:.4g}, {high:.4g}] (n = {self.n:,}; {self.protocol})"


@dataclass(frozen=True, eq=False)
class Estimate:
    """A number with the parts that it is the mean of, to first order; no parts where no error is known."""

    name: str
    value: float
    n: int
    parts: Tensor | None = None

    @property
    def error(self) -> float:
        """Standard error; nan if it is not known."""
        if self.parts is None or len(self.parts) < 2:
            return math.nan
        return float(self.parts.double().std()) / math.sqrt(len(self.parts))

    def interval(self) -> _Interval | None:
        """95 % bootstrap interval of the parts, set round the value."""
        return self._interval

    @cached_property
    def _interval(self) -> _Interval | None:
        if self.parts is None or len(self.parts) < 2:
            return None
        parts = self.parts.double()
        low, high = bootstrap(parts - parts.mean())
        return self.value + low, self.value + high

    def score(self, protocol: str) -> Score:
        return Score(self.name, self.value, self._interval, self.n, protocol)


def bootstrap(values: Tensor) -> _Interval:
    """95 % percentile interval of the mean of `values`, one per sample, under resampling with replacement.

    With m values the bootstrap spread is short by sqrt((m - 1) / m); that is put back, which matters for
    few groups.
    """
    if values.dim() != 1 or len(values) < 2:
        raise ValueError(f"a bootstrap needs a vector of two values or more; got shape {tuple(values.shape)}")
    values, m = values.double().cpu(), len(values)
    centre = values.mean()
    generator = torch.Generator().manual_seed(0)
    means = torch.empty(_REPLICATES, dtype=torch.float64)
    block = max(1, 4_000_000 // m)
    for start in range(0, _REPLICATES, block):
        rows = means[start : start + block]
        rows.copy_(values[torch.randint(m, (len(rows), m), generator=generator)].mean(1))
    means = centre + (means - centre) * (m / (m - 1)) ** 0.5
    low, high = torch.quantile(means, torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
    return low, high


def mean_estimate(name: str, values: Tensor) -> Estimate:
    """The mean of one number per image."""
    values = values.double().flatten()
    return Estimate(name, values.mean().item(), len(values), values)


def difference(a: Estimate, b: Estimate, *, paired: bool = True) -> Estimate:
    """a - b. Paired: image i of both runs grew from the same noise under the same condition.

    Unpaired, the two are taken as independent, and the parts only carry the right standard error.
    """
    if a.name != b.name:
        raise ValueError(f"a difference needs two values of one metric; got {a.name!r} and {b.name!r}")
    value, n = a.value - b.value, min(a.n, b.n)
    if a.parts is None or b.parts is None:
        return Estimate(a.name, value, n)
    if not paired:
        spread = math.hypot(a.error, b.error)
        if math.isnan(spread):
            return Estimate(a.name, value, n)
        m = max(len(a.parts), len(b.parts))
        standard = torch.linspace(-1, 1, m, dtype=torch.float64)
        return Estimate(a.name, value, n, value + standard / standard.std() * spread * m**0.5)
    if len(a.parts) != len(b.parts):
        raise ValueError(
            f"{a.name}: a paired difference needs the same images in both runs; got {a.n:,} and {b.n:,}"
        )
    return Estimate(a.name, value, n, a.parts.double() - b.parts.double())
