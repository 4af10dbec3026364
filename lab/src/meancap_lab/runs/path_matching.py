"""Path matching: choose the rule whose paths look like those of real examples.

    path     the states of a run; for an example, x_t = (1 - t) noise + t data
    gap      |m_c - m_u| at a state of the path
    mean     |m_c|
    cosine   of m_c and the gap

With exact predictions and exact steps, unguided states have the law of noised examples under the same
condition, so that each statistic of (x, m_c, m_u) has the same law on both (docs/theory.md). The paths of a
model with errors leave those of the examples; the rule that brings them back is chosen. The **mismatch** of a
rule is the rms over times and statistics of the difference of means, in standard deviations of the examples.
The weight of a time is its rms gap, because guidance moves the mean by multiples of the gap.

    record = Record()
    sample(predict, Follow(data), noise, times, record=record)    # the examples' path, in any loop or host
    real = path_statistics(record)
    sample(predict, rule, noise, times, record=record)            # from the same noise
    match_paths(real, {str(rule): path_statistics(record)})
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from meancap.prediction import Prediction, need_same_shapes
from meancap.rules import Calibration, Map, parse
from meancap.rules.calibration import GapCurve

STATISTICS = ("gap", "mean", "cosine")
FEWEST_EXAMPLES, _RESAMPLES = 8, 1000
TAILS = torch.tensor([0.025, 0.975], dtype=torch.float64)
_POOR = 0.25


class Follow(Map):
    """Sets the guided mean to `data`, one example per sample, so that x_t = (1 - t) noise + t data.

    It holds for Euler and for each solver that is exact if the mean is constant, on the grid's own times.
    """

    sets_scale = True

    def __init__(self, data: Tensor) -> None:
        self.data = data

    def __call__(self, g: Tensor, p: Prediction) -> Tensor:
        need_same_shapes(x=p.state, examples=self.data)
        return self.data.to(p.m_c) - p.m_c

    def __str__(self) -> str:
        return f"Follow({len(self.data)} examples)"


class _Stacked(Protocol):
    def stacked(self) -> dict[str, Tensor]: ...


class PathStatistics(NamedTuple):
    """The statistics along a path, (samples, times, `STATISTICS`)."""

    times: tuple[float, ...]
    values: Tensor


def path_statistics(record: _Stacked) -> PathStatistics:
    """The statistics of a recorded run, of `Follow(examples)` or of any rule."""
    s = record.stacked()
    mean = torch.where(s["ratio"] == 0, 0.0, s["length"] / s["ratio"])  # |m_c|, from |m| and |m| / |m_c|
    values = torch.stack([s["gap"], mean, s["cosine"]], -1).double().transpose(0, 1)
    return PathStatistics(tuple(round(t, 6) for t in s["t"][:, 0].tolist()), values)


@dataclass(frozen=True)
class PathCandidate:
    """One rule and what its paths are like.

    mismatch  with the ends `low` and `high` of its interval over resampled examples
    chosen    share of the resamples in which it is the best
    excess    lower end of the interval of its mismatch minus the best one's; 0 or less is a tie
    curves    means of the statistics at each time; of the gap the root mean square
    """

    rule: str
    curves: Mapping[str, tuple[float, ...]]
    mismatch: float
    low: float
    high: float
    chosen: float
    excess: float


@dataclass(frozen=True)
class PathMatch:
    """The chosen rule, and the curves of the examples and of all rules."""

    rule: str
    times: tuple[float, ...]
    real: Mapping[str, tuple[float, ...]]
    candidates: tuple[PathCandidate, ...]
    examples: int
    error: float  # mismatch that sampling error alone gives to the chosen rule
    model: str = ""

    @property
    def best(self) -> PathCandidate:
        """The candidate that was chosen."""
        return next(one for one in self.candidates if one.rule == self.rule)

    def summary(self) -> str:
        """The choice and its uncertainty in a few words."""
        best = self.best
        ties = [one.rule for one in self.candidates if one.excess <= 0 and one is not best]
        text = (
            f"{self.rule}: mismatch {best.mismatch:.2f} [{best.low:.2f}, {best.high:.2f}], sampling error "
            f"{self.error:.2f}; the best in {best.chosen:.0%} of resamples of {self.examples} examples"
        )
        text += f"; within the error: {', '.join(ties)}" if ties else ""
        if best.low > _POOR:
            text += (
                f". No candidate comes within {_POOR} standard deviations: the model has errors that these "
                "rules do not correct, or the examples or their conditions are not those of the model"
            )
        return text

    @property
    def gaps(self) -> GapCurve:
        """The gap of the examples."""
        return GapCurve(self.times, self.real["gap"])

    def calibration(self, *, seed: int | None = None, calls: int = 0) -> Calibration:
        """The chosen rule with the curves of the examples; its details are the candidates."""
        curves = {"t": self.times, **self.real}
        details = {"error": self.error, "candidates": [asdict(one) for one in self.candidates]}
        return Calibration(
            parse(self.rule).parts, "path matching", self.model, self.examples, seed, calls, curves=curves,
            details=details,
        )  # fmt: skip


def match_paths(
    real: PathStatistics, runs: Mapping[str, PathStatistics], *, seed: int = 0, model: str = ""
) -> PathMatch:
    """Chooses the rule of least mismatch among `runs`, by its text.

    Sample i of each run must have the noise and the condition of example i: resamples keep them together.
    """
    if not runs:
        raise ValueError("path matching needs at least one run beside the examples")
    n, times, _ = real.values.shape
    for rule, run in runs.items():
        if run.times != real.times or run.values.shape != real.values.shape:
            raise ValueError(f"the run of {rule} must have the times of the examples and one sample for each")
    if n < FEWEST_EXAMPLES or times < 2:
        raise ValueError(f"path matching needs {FEWEST_EXAMPLES} examples and 2 times; got {n} and {times}")
    # At the first time all states are the same noise, so that nothing can differ.
    data, made = real.values[:, 1:], torch.stack([run.values[:, 1:] for run in runs.values()])
    weights = data[..., 0].square().mean(0).sqrt()
    weights = (
        weights / weights.sum() if float(weights.sum()) > 0 else torch.full_like(weights, 1 / (times - 1))
    )
    spread = data.std(0)

    def squares(counts: Tensor) -> Tensor:
        """Squared mismatches (rules, resamples) of examples that count so often, (resamples, n)."""
        off = torch.einsum("bn,cntk->cbtk", counts / n, made - data)
        z = torch.where(off == 0, 0.0, off / spread)
        return ((z.square().mean(-1) * weights).sum(-1)).nan_to_num(math.inf, math.inf)

    found = squares(torch.ones(1, n, dtype=torch.float64))[:, 0]
    again = squares(resample_counts(n, _RESAMPLES, seed))
    best = int(found.argmin())
    noise = torch.where(spread == 0, 0.0, (made - data).var(1) / n / spread.square()).mean(-1) @ weights
    # Resampling adds the sampling error a second time; the interval is without it.
    spans = (again - noise[:, None]).clamp(min=0).sqrt().quantile(TAILS, dim=1)
    excess = (again.sqrt() - again[best].sqrt()).nan_to_num(math.inf).quantile(TAILS[0], dim=1)
    chosen = torch.bincount(again.argmin(0), minlength=len(runs)) / _RESAMPLES
    candidates = tuple(
        PathCandidate(rule, _mean_curves(run), *digits(found[i].sqrt(), *spans[:, i], chosen[i], excess[i]))
        for i, (rule, run) in enumerate(runs.items())
    )
    (error,) = digits(noise[best].sqrt())
    return PathMatch(list(runs)[best], real.times, _mean_curves(real), candidates, n, error, model)


def resample_counts(n: int, resamples: int, seed: int) -> Tensor:
    """How often each of n examples occurs in each resample, (resamples, n)."""
    picked = torch.randint(n, (resamples, n), generator=torch.Generator().manual_seed(seed))
    counts = torch.zeros(resamples, n, dtype=torch.float64)
    return counts.scatter_add_(1, picked, torch.ones_like(counts))


def _mean_curves(run: PathStatistics) -> dict[str, tuple[float, ...]]:
    gap, mean, cosine = run.values.unbind(-1)
    curves = (gap.square().mean(0).sqrt(), mean.mean(0), cosine.mean(0))
    return {name: digits(*curve) for name, curve in zip(STATISTICS, curves, strict=True)}


def digits(*values: Tensor) -> tuple[float, ...]:
    """Five digits, of numbers that JSON can hold."""
    return tuple(float(f"{min(max(float(v), -1e9), 1e9):.5g}") for v in values)
