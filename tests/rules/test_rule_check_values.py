"""The published formulas on one worked example: x, v_c, v_u and t of cases.py, scale 4 unless said."""

import math

import pytest
import torch

from cases import V_C, V_U, T, X
from meancap import Prediction, guided_velocity
from meancap.rules import (
    apg,
    c2fg,
    cfg_zero_star,
    displace,
    pmc,
    pmc_displacement,
    power_law,
    rescaled,
    tv_cfg,
    vags,
)

P = Prediction.from_velocity(X, T, V_C, V_U)
CLIPPED = {"eta": 0, "radius": 0.3, "momentum": None}


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (apg(4, **CLIPPED), [0.119065, -1.672382, 0.071411, 0.426050]),
        (apg(4, **CLIPPED, space="velocity"), [0.379391, -1.316317, 0.214425, 0.841264]),
        (apg(4, **CLIPPED, form="diffusers"), [0.205854, -0.755089, 0.252566, 0.388353]),
        (apg(4, **CLIPPED, form="comfy"), [0.058753, -1.829843, -0.138119, 0.434733]),
        (cfg_zero_star(4, zero_steps=0), [0.880328, -2.881967, -0.077049, 2.239344]),
        (rescaled(4, space="mean"), [0.205118, -1.962190, -0.039879, 0.701943]),
    ],
    ids=str,
)
def test_the_guided_velocity(rule, expected):
    v, _ = guided_velocity(rule, X, T, V_C, V_U)
    torch.testing.assert_close(v, torch.tensor([expected], dtype=torch.float64), rtol=0, atol=1.1e-6)


@pytest.mark.parametrize(
    ("rule", "scale"),
    [
        (pmc(4, 1.05), 1.31633699),
        (pmc(4, 1.10), 1.62733099),
        (pmc(4, 1.15), 1.93389317),
        (pmc(4, 1.5), 4.0),
        (pmc_displacement(4, 1.05), 1.26918247),
        (pmc_displacement(4, 1.10), 1.53836494),
        (pmc_displacement(4, 1.15), 1.80754741),
        (pmc_displacement(4, 1.5), 3.69182469),
        (power_law(3, 0.9), 2.883778),
        (vags(7), 5.968418),
        (c2fg(4, 0.2), 4 * math.exp(0.2 * T)),
    ],
    ids=str,
)
def test_the_effective_scale(rule, scale):
    g, _ = displace(rule, P.until(0.5))
    assert 1 + float(g.coefficient) == pytest.approx(scale, abs=1e-6)


def test_what_pmc_reads_off_the_example():
    m, d, along = (float(v) for v in P.lengths)
    assert (d**2, along * d, m**2) == pytest.approx((0.288, 1.3068, 8.3473))
    assert along / m == pytest.approx(0.842830, abs=1e-6)


@pytest.mark.parametrize(
    ("count", "slope", "first", "peak", "after"),
    [
        (50, "paper", (1.0, 1.08, 1.16), 3.0, 2.92),
        (50, "repo", (1.0, 1.08, 1.16), 3.0, 2.92),
        (49, "repo", (1.009477, 1.090235, 1.170993), 3.028430, 2.866914),
        (49, "paper", (1.0, 1.08, 1.16), 3.0, 2.916667),
    ],
)
def test_the_triangle_of_tv_cfg(count, slope, first, peak, after):
    values = tv_cfg(2, count, slope=slope).scale.values
    top = values.index(max(values))
    assert values[:3] == pytest.approx(first, abs=1e-6)
    assert (values[top], values[top + 1]) == pytest.approx((peak, after), abs=1e-6)
    assert sum(values) / count == pytest.approx(2)
    if (count, slope) == (49, "repo"):
        assert values[0] == pytest.approx(1.0094767, abs=1e-7)
