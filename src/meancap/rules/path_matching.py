"""Path matching: choose the rule whose paths look like those of real examples; and `auto`, a rule by default.

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

import json
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from ..files import write_whole
from ..prediction import Prediction, need_same_shapes
from ..schedules import Piecewise, Scale, at
from .caps import Cap
from .rule import Chain, Map
from .scale import CFG

STATISTICS = ("gap", "mean", "cosine")
_FORMAT, _KIND = 1, "path"
FEWEST_EXAMPLES, _RESAMPLES = 8, 1000
TAILS = torch.tensor([0.025, 0.975], dtype=torch.float64)
_POOR = 0.25
_HINT = "write one with `meancap calibrate --learn rule`"


class Follow(Map):
    """Sets the guided mean to `data`, one example per sample, so that x_t = (1 - t) noise + t data.

    It holds for Euler and for each solver that is exact if the mean is constant, on the grid's own times.
    """

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


class GapCurve(NamedTuple):
    """The rms gap of noised real examples at some times, with which a run is compared."""

    times: tuple[float, ...]
    gap: tuple[float, ...]

    def ratio(self, t: float, gap: float) -> float:
        """The squared gap at time t over that of the examples, interpolated in log(gap); 0 if either is 0."""
        known = [(s, g) for s, g in zip(self.times, self.gap, strict=True) if g > 0]
        if not known or not gap > 0:
            return 0.0
        real = at(Piecewise(tuple(s for s, _ in known), tuple(math.log(g) for _, g in known)), t)
        return math.exp(min(2 * (math.log(gap) - float(real)), 700.0))

    def farthest(self, times: Sequence[float], gaps: Sequence[float]) -> tuple[int, float] | None:
        """The index of the rms gap that differs most from that of the examples, and its squared ratio.

        The first time, at which all states are noise, later times than those of the examples, and times at
        which the examples have less than a tenth of their largest gap do not count.
        """
        least, first, last = (0.1 * max(self.gap)) ** 2, self.times[0], self.times[-1]
        ratios = [(i, self.ratio(t, gaps[i])) for i, t in enumerate(times) if first < t <= last]
        known = [(i, r) for i, r in ratios if r > 0 and gaps[i] ** 2 > least * r]
        return max(known, key=lambda one: abs(math.log(one[1])), default=None)

    def compare(self, times: Sequence[float], gaps: Sequence[float]) -> str:
        """How far rms gaps at these times lie from those of the examples, where that is most."""
        far = self.farthest(times, gaps)
        if far is None:
            return "no gap to compare with that of real examples"
        return f"squared gap {far[1]:.2g} x that of real examples at t = {times[far[0]]:.2g}"


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
    """A calibration by path matching: the chosen rule, and the curves of the examples and of all rules."""

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

    def save(self, path: str | Path) -> Path:
        """Writes the file; it appears whole or not at all."""
        fields = {"format": _FORMAT, "kind": _KIND, **asdict(self)}
        lines = [f" {json.dumps(key)}: {json.dumps(value)}" for key, value in fields.items()]
        return write_whole(Path(path), "{\n" + ",\n".join(lines) + "\n}\n")


def load_path_match(path: str | Path) -> PathMatch:
    """Reads a file that `meancap calibrate` or `PathMatch.save` wrote; its rule is parsed here."""
    from .grammar import parse

    path = Path(path)
    try:
        read = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(read, dict) or (read.pop("format"), read.pop("kind")) != (_FORMAT, _KIND):
            raise ValueError("another kind of file")
        rows = [{**one, "curves": _curves(one["curves"])} for one in read["candidates"]]
        read["times"], read["real"] = tuple(map(float, read["times"])), _curves(read["real"])
        match = PathMatch(**{**read, "candidates": tuple(PathCandidate(**row) for row in rows)})
        match.gaps.ratio(0.5, 1.0)
        parse(match.best.rule)
    except (ValueError, OSError, KeyError, TypeError, AttributeError, StopIteration) as error:
        raise ValueError(f"{path} is no calibration of a rule ({error}); {_HINT}") from None
    return match


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


def _curves(read: Mapping[str, Sequence[float]]) -> dict[str, tuple[float, ...]]:
    return {name: tuple(map(float, read[name])) for name in STATISTICS}


def digits(*values: Tensor) -> tuple[float, ...]:
    """Five digits, of numbers that JSON can hold."""
    return tuple(float(f"{min(float(v), 1e9):.5g}") for v in values)


def auto(scale: Scale = 2.0) -> Chain:
    """The rule for people who do not choose one: `CFG(scale) | Cap(1.1, anchor="first")`, which it logs once.

    With a calibration, use its rule: `load_path_match(path).rule`, or in `meancap generate` the option
    --calibration FILE. docs/choosing.md lists when not to use it.
    """
    rule = CFG(scale) | Cap(1.1, anchor="first")
    _announce(str(rule))
    return rule


@cache
def _announce(rule: str) -> None:
    logging.getLogger("meancap").warning(
        "auto: %s, the default without a calibration; `meancap calibrate` chooses by examples", rule
    )
