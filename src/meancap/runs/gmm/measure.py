"""One row of the table, measured; and the same row in continuous time.

    euler       the expectation of the row itself: Euler, 50 steps
    continuous  the same field followed exactly: Runge-Kutta steps, fine where the flow is fast

Both columns of the second kind are means over the same quasi-random noise (scrambled Sobol points), which
knows an expectation far better than as many independent samples; the standard error comes from independent
scramblings.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.quasirandom import SobolEngine

from ...lab.branches import Branches, branches
from ...lab.sampler import flow
from ...lab.scenes import STD
from ...lab.theory import graded_times
from ...sampling import rk4
from .config import TIMES, Setting

METRICS = ("occupancy_percent", "variance_ratio", "tv", "mean_error")
EXTRA = ("radial_ratio", "tangential_ratio")
Values = dict[str, list[float]]

_SCRAMBLINGS, _POINTS, _HALF_STEPS = 8, 2**13, 32


def row_values(setting: Setting, start: Tensor) -> Values:
    """Every metric of the row that begins with this noise, one number per member where it has one."""
    condition = setting.scene.condition()
    return _values(branches(condition, flow(condition, setting.rule, start, TIMES)))


@dataclass(frozen=True)
class Expectation:
    """Expectations of one metric: with the paper's Euler steps, in continuous time, and their errors."""

    metric: str
    position: int
    euler: float
    continuous: float
    standard_error: float
    grid_error: float  # what halving the number of steps changes


def expectations(setting: Setting) -> list[Expectation]:
    """The expectations of all metrics of one setting."""
    condition, rule = setting.scene.condition(), setting.rule
    starts = torch.cat([_sobol_noise(scrambling) for scrambling in range(_SCRAMBLINGS)])

    def metrics(end: Tensor) -> Tensor:
        """One row per scrambling."""
        each = [_values(branches(condition, part)) for part in torch.split(end, _POINTS)]
        rows = [[v for name in METRICS + EXTRA for v in row[name]] for row in each]
        return torch.tensor(rows, dtype=torch.float64)

    fine, coarse = (graded_times(n, STD).tolist() for n in (_HALF_STEPS, _HALF_STEPS // 2))
    euler = metrics(flow(condition, rule, starts, TIMES)).mean(0)
    exact = metrics(flow(condition, rule, starts, fine, rk4))
    change = (metrics(flow(condition, rule, starts[:_POINTS], coarse, rk4))[0] - exact[0]).abs()
    error = exact.std(0) / _SCRAMBLINGS**0.5
    names = [
        (name, position)
        for name in METRICS + EXTRA
        for position in range(1 if name in ("tv", "mean_error") else len(setting.scene.members))
    ]
    columns = zip(names, *(v.tolist() for v in (euler, exact.mean(0), error, change)), strict=True)
    return [Expectation(*name, *numbers) for name, *numbers in columns]


def _sobol_noise(scrambling: int) -> Tensor:
    engine = SobolEngine(2, scramble=True, seed=scrambling)  # type: ignore[no-untyped-call]
    points: Tensor = engine.draw(_POINTS, dtype=torch.float64)
    normal: Tensor = torch.special.ndtri(points.clamp(2.0**-31, 1 - 2.0**-31))
    return normal.float()


def _values(shares: Branches) -> Values:
    return {
        "occupancy_percent": (100 * shares.occupancy).tolist(),
        "variance_ratio": shares.variance_ratio.tolist(),
        "tv": [shares.tv],
        "mean_error": [shares.mean_error],
        "radial_ratio": shares.radial_ratio.tolist(),
        "tangential_ratio": shares.tangential_ratio.tolist(),
    }
