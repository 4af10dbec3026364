"""Intervals over independent values: blocks of noise on one problem, or problems.

Error ratios are averaged as logarithms. The 95 % interval is Student's, mean +- t s / sqrt(n): each value is
a whole measurement at the same number of samples, so that no resampling of a nonlinear measure is needed, and
the interval is of what such a measurement has as its mean. Simulation at the floor, where a bootstrap of
blocks is too narrow, is in `coverage`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import torch

from ...lab.measures import Ruler

EVEN = 0.02  # ratios closer to 1 are no difference in practice
_LEVEL = 0.95


class Ratio(NamedTuple):
    """A geometric mean with its interval and the number of values; nan without values."""

    value: float
    low: float
    high: float
    n: int

    @property
    def verdict(self) -> str:
        """Of an error over another: 'better', 'worse', or 'even' if the interval holds 1 or it is near 1."""
        if not self.n or math.isnan(self.low) or abs(self.value - 1) < EVEN:
            return "even"
        return "better" if self.high < 1 else "worse" if self.low > 1 else "even"

    def __str__(self) -> str:
        if not self.n:
            return "–"
        return f"{self.value:.3g}" + ("" if self.n < 2 else f" [{self.low:.3g}, {self.high:.3g}]")


def geometric(logarithms: Sequence[float]) -> Ratio:
    """The geometric mean of values that are given by their logarithms."""
    n = len(logarithms)
    if not n:
        return Ratio(math.nan, math.nan, math.nan, 0)
    mean = math.fsum(logarithms) / n
    if n == 1:
        return Ratio(math.exp(mean), math.nan, math.nan, 1)
    spread = math.sqrt(math.fsum((v - mean) ** 2 for v in logarithms) / (n - 1) / n) * student(n - 1)
    return Ratio(math.exp(mean), math.exp(mean - spread), math.exp(mean + spread), n)


@lru_cache
def student(freedom: int, level: float = _LEVEL) -> float:
    """The t with P(|T| <= t) = level, by bisection on Simpson's rule in the angle atan(T / sqrt(freedom))."""

    def inside(t: float) -> float:
        # With T = sqrt(f) tan(a) the density is proportional to cos(a)^(f - 1).
        return _simpson(freedom, math.atan(t / math.sqrt(freedom))) / _simpson(freedom, math.pi / 2)

    low, high = 0.0, 1000.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if inside(middle) < level else (low, middle)
    return (low + high) / 2


def _simpson(freedom: int, end: float, parts: int = 400) -> float:
    values = [math.cos(end * i / parts) ** (freedom - 1) for i in range(parts + 1)]
    return end / parts / 3 * (values[0] + values[-1] + 4 * sum(values[1::2]) + 2 * sum(values[2:-1:2]))


def coverage(ruler: Ruler, blocks: int, rounds: int, seed: int = 0) -> float:
    """The share of simulated experiments at the floor whose interval holds the mean of log sw2.

    An experiment is `blocks` blocks of exact samples, as a perfect sampler without solver error gives them.
    """
    draw = torch.Generator().manual_seed(seed)
    law, d = ruler.condition.conditional, ruler.directions.shape[1]
    logs = torch.cat(
        [
            ruler.sw2(law.sample(100 * blocks * ruler.n, draw).reshape(-1, ruler.n, d)).log()
            for _ in range(rounds // 100)
        ]
    )
    truth = math.exp(float(logs.mean()))
    found = [geometric(row) for row in logs.reshape(-1, blocks).tolist()]
    return sum(one.low <= truth <= one.high for one in found) / len(found)
