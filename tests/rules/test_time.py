"""Published weight schedules: their shapes, their means, and their place on a grid."""

import math
from itertools import pairwise

import pytest
import torch

from meancap import CFG, Cosine, Exponential, Linear, Piecewise, parse
from meancap.rules import DG, Beta, Decay, Ramp, Steps, beta_cfg, by_step, limited_interval, tv_cfg

SHAPES = ("linear", "cosine", "inverse-linear", "sine", "V", "Lambda", "powered-cosine")
EVERY = [
    Linear(1, 7),
    Cosine(1, 5),
    Exponential(2, 0.2),
    Piecewise([0.2, 0.6], [1, 3]),
    *(Ramp(4, shape) for shape in SHAPES),
    *(Ramp(4, shape, on="gain", least=0.5) for shape in SHAPES),
    Ramp(4, "powered-cosine", power=4),
    Decay(4),
    Beta(7.5),
    Beta(7.5, 2, 3),
    DG(4),
    DG(4, 0.85, 12.0),
    Steps([0.0, 0.3, 0.7], [1, 5, 2]),
]
FINE = torch.linspace(0, 1, 20001, dtype=torch.float64)


@pytest.mark.parametrize("schedule", EVERY, ids=str)
def test_a_schedule_is_one_function_of_floats_and_tensors_and_reads_back(schedule):
    times = torch.linspace(0, 1, 41, dtype=torch.float64)
    many = torch.as_tensor(schedule(times), dtype=torch.float64).expand(41)
    one = torch.tensor([schedule(float(t)) for t in times], dtype=torch.float64)
    torch.testing.assert_close(many, one)
    assert many.isfinite().all() and parse(str(CFG(schedule))) == CFG(schedule)


def mean(schedule):
    return float(torch.trapezoid(torch.as_tensor(schedule(FINE)), FINE))


@pytest.mark.parametrize("shape", SHAPES[:-1])
def test_ramps_have_the_mean_that_a_constant_scale_has(shape):
    assert mean(Ramp(4, shape)) == pytest.approx(4, rel=1e-6)
    assert mean(Ramp(4, shape, on="gain")) == pytest.approx(4, rel=1e-6)


def test_ramps_have_the_values_of_their_formulas():
    tau, w = 0.3, 4.0
    cos = math.cos(math.pi * tau)
    expected = (
        2 * w * tau,
        w * (1 - cos),
        2 * w * (1 - tau),
        w * (1 + cos),
        2 * w * 0.4,
        2 * w * 0.6,
        w * (1 - cos) / 2,
    )
    assert [Ramp(w, shape)(tau) for shape in SHAPES] == pytest.approx(expected)
    assert Ramp(w, "powered-cosine", power=4)(tau) == pytest.approx(w * (1 - math.cos(math.pi * tau**4)) / 2)
    assert Ramp(w, "linear", least=4)(0.1) == 4 and Ramp(w, "linear", least=4)(0.9) == pytest.approx(7.2)
    assert Ramp(w, "linear", on="gain")(0.0) == 1 and Ramp(w, "linear")(0.0) == 0


def test_the_beta_density_integrates_to_the_scale_and_vanishes_at_both_ends():
    assert mean(Beta(7.5, 2, 3)) == pytest.approx(7.5, rel=1e-6)
    assert Beta(7.5)(0.0) == 0 == Beta(7.5)(1.0)
    weights = beta_cfg(7.5, times=[0, 0.1, 0.3, 0.7, 1]).parts[-1].scale.values
    assert weights == pytest.approx([7.5 * 6 * p * (1 - p) for p in (0, 1 / 3, 2 / 3, 1)])


def test_the_analytic_schedule_has_the_scale_as_its_mean_over_diffusion_time():
    """On the path of a VP process: alpha = sqrt(A), sigma = sqrt(1 - A), t = alpha / (alpha + sigma)."""
    u = torch.linspace(1e-6, 1, 20001, dtype=torch.float64)
    log_a = -(0.1 * u + 19.9 * u * u / 2)
    alpha, sigma = (log_a / 2).exp(), (-torch.expm1(log_a)).sqrt()
    weight = torch.as_tensor(DG(4)(alpha / (alpha + sigma)))
    assert float(torch.trapezoid(weight, u)) == pytest.approx(4, rel=1e-4)
    f = (1 - log_a.exp()) * alpha / (0.1 + 19.9 * u)
    torch.testing.assert_close((weight - 1) / (weight[5000] - 1), f / f[5000], rtol=1e-6, atol=1e-9)
    assert DG(4)(1.0) == 1 and DG(1)(0.5) == 1


def test_steps_hold_their_value_and_forgive_a_host_its_rounding():
    steps = Steps([0.0, 0.3, 0.7], [1, 5, 2])
    assert [steps(t) for t in (0, 0.29, 0.3, 0.69, 0.7, 1)] == [1, 1, 5, 5, 2, 2]
    grid = [i / 49 for i in range(50)]
    by_index = Steps(grid[:-1], list(range(49)))
    rounded = by_index(torch.tensor(grid[:-1], dtype=torch.float32))
    assert rounded.tolist() == list(range(49)) == [by_index(t) for t in grid[:-1]]


def test_a_schedule_of_progress_is_stated_by_step_on_any_grid():
    times = [0, 0.1, 0.5, 1.0]
    assert by_step(Linear(1, 7), times).values == pytest.approx((1, 4, 7))
    with pytest.raises(ValueError, match="two steps or more"):
        by_step(Linear(1, 1), [0, 1])


def test_a_triangle_has_its_mean_on_uneven_grids():
    times = [0, 0.05, 0.2, 0.6, 0.65, 1.0]
    values = tv_cfg(3, times).scale.values
    spans = [b - a for a, b in pairwise(times)]
    assert sum(v * d for v, d in zip(values, spans, strict=True)) == pytest.approx(3)
    assert tv_cfg(3, 50) == tv_cfg(3, [i / 50 for i in range(51)])


def test_noise_levels_become_times():
    rule = limited_interval(2, 0.19, 1.61)
    assert (rule.parts[1].lo, rule.parts[1].hi) == pytest.approx((0.383, 0.840), abs=1e-3)
