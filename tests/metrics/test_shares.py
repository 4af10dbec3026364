"""Intervals of shares hold the truth as often as they say, near 0 and 1 too."""

import math

import pytest
from scipy.stats import binomtest

from meancap.metrics.score import paired_interval, share_interval


def binomial(n: int, p: float) -> list[float]:
    return [math.comb(n, k) * p**k * (1 - p) ** (n - k) for k in range(n + 1)]


def test_a_share_near_one_is_held_by_its_interval():
    n = 96
    intervals = [share_interval(k, n) for k in range(n + 1)]
    assert intervals[n][1] == 1 and intervals[n][0] < 0.97 and intervals[0][0] == 0
    for k in (0, 1, 48, 95, 96):
        assert intervals[k] == pytest.approx(tuple(binomtest(k, n).proportion_ci(method="wilson")), abs=1e-6)
    shares = [0.5 + 0.49 * i / 40 for i in range(41)]
    held = [
        sum(w for w, (low, high) in zip(binomial(n, p), intervals, strict=True) if low <= p <= high)
        for p in shares
    ]
    assert sum(held) / len(held) > 0.94 and min(held) > 0.88  # by exact sums, no simulation


def test_a_paired_difference_is_held_by_its_interval():
    n, lost, gained = 96, 0.05, 0.02
    held = total = 0.0
    for b, weight in enumerate(binomial(n, gained)[:15]):
        for c, other in enumerate(binomial(n - b, lost / (1 - gained))[:25]):
            low, high = paired_interval(b, c, n)
            held += weight * other * (low <= gained - lost <= high)
            total += weight * other
    assert total > 0.999 and 0.94 < held < 0.99
    assert paired_interval(0, 0, n)[0] < 0 < paired_interval(0, 0, n)[1]
    with pytest.raises(ValueError, match="kinds of the n"):
        paired_interval(60, 60, n)
