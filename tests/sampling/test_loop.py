"""Grids, steps and the loop."""

import itertools
import math

import pytest
import torch

from cases import UNIT
from meancap import (
    CFG,
    Cap,
    Prediction,
    Record,
    apg,
    euler,
    field,
    from_sigmas,
    graded,
    heun,
    midpoint,
    noise,
    rk4,
    sample,
    shifted,
    trajectory,
    uniform,
)
from meancap.sampling import weights

STEPS = [euler, heun, midpoint, rk4]


def gaussian(mean_c, mean_u, std):
    """The exact model of two Gaussians with one width: posterior means, for any x and t."""

    def predict(x, t):
        gain = t * std**2 / ((1 - t) ** 2 + t**2 * std**2)
        m = [mu + gain * (x - t * mu) for mu in (mean_c, mean_u)]
        return Prediction.from_mean(x, t, *m)

    return predict


def two_gaussians():
    return gaussian(torch.tensor([2.0, 0.0]).double(), torch.tensor([-1.0, 1.0]).double(), 0.5)


def test_grids_start_at_noise_and_end_at_data():
    for grid in (uniform(7), shifted(7), shifted(7, 1.0), graded(7), from_sigmas([1, 0.4, 0.1, 0])):
        assert grid[0] == 0 and grid[-1] == 1 and all(b > a for a, b in itertools.pairwise(grid))
    assert uniform(4) == (0, 0.25, 0.5, 0.75, 1)
    assert shifted(4, 1.0) == pytest.approx(uniform(4))
    sigma = 0.75
    assert shifted(4, 3.0)[1] == pytest.approx(1 - 3 * sigma / (1 + 2 * sigma))
    assert graded(2, 2.0)[1] == pytest.approx(0.75)


def test_a_whole_number_of_numpy_is_a_number_of_steps():
    np = pytest.importorskip("numpy")
    assert uniform(np.int64(4)) == uniform(4) and graded(np.int32(3)) == graded(3)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: uniform(0), "at least 1"),
        (lambda: uniform(2.5), "whole number"),
        (lambda: shifted(4, 0), "above 0"),
        (lambda: graded(4, math.nan), "above 0"),
        (lambda: from_sigmas([0, 0.5, 1]), "increase"),
        (lambda: from_sigmas([1]), "two times"),
        (lambda: sample(two_gaussians(), CFG(1), torch.zeros(1, 2), [0, 2]), "within"),
        (lambda: noise([], (2,)), "at least one seed"),
    ],
)
def test_a_grid_that_is_none_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_euler_is_a_blend_of_the_state_and_the_mean_and_ends_on_the_mean():
    predict, x = two_gaussians(), torch.randn(5, 2, dtype=torch.float64)
    steps = list(trajectory(predict, CFG(3), x, uniform(5)))
    assert torch.equal(steps[-1].x_next, steps[-1].m)
    one = steps[2]
    v = (one.m - one.x) / (1 - one.t)
    torch.testing.assert_close(one.x_next, one.x + (one.t_next - one.t) * v)


@pytest.mark.parametrize(("step", "order"), [(euler, 1), (heun, 2), (midpoint, 2), (rk4, 4)])
def test_steps_converge_at_their_order(step, order):
    def predict(x, t):  # curved in x and in t, so that no order comes for free
        return Prediction.from_mean(x, t, torch.tanh(2 * x + t), torch.sin(x) + t**2)

    x = torch.linspace(-1, 1, 10, dtype=torch.float64).reshape(5, 2)

    def end(n):  # stop short of t = 1, where the last step falls back by one order
        return sample(predict, CFG(2), x, [0.8 * t for t in uniform(n)], step)

    exact = sample(predict, CFG(2), x, [0.8 * t for t in uniform(400)], rk4)
    errors = [float((end(n) - exact).abs().max()) for n in (8, 16)]
    assert math.log2(errors[0] / errors[1]) == pytest.approx(order, abs=0.4)


def test_guided_flow_of_a_gaussian_has_the_known_mean():
    # With equal widths CFG moves the target to mean_u + scale (mean_c - mean_u), shape unchanged.
    predict = two_gaussians()
    x = torch.randn(20_000, 2, dtype=torch.float64)
    end = sample(predict, CFG(2), x, uniform(200), rk4)
    expected = torch.tensor([-1.0, 1.0]).double() + 2 * torch.tensor([3.0, -1.0]).double()
    assert ((end.mean(0) - expected).abs() < 5 * 0.5 / math.sqrt(20_000) + 2e-3).all()


@pytest.mark.parametrize("step", STEPS)
def test_weights_read_off_what_a_step_does(step):
    calls = []

    def mean(x, t):
        calls.append(torch.randn(3, dtype=torch.float64))
        return calls[-1]

    x = torch.randn(3, dtype=torch.float64)
    for t, s in ((0.1, 0.3), (0.5, 0.9), (0.8, 1.0)):
        calls.clear()
        found = step(mean, x, t, s)
        w = weights(step, t, s)
        torch.testing.assert_close(found, w[0] * x + sum(a * m for a, m in zip(w[1:], calls, strict=True)))
        assert sum(w) == pytest.approx(1)


def test_heun_is_convex_while_a_step_goes_at_most_half_of_the_way():
    assert min(weights(heun, 0.2, 0.6)) >= -1e-15
    assert min(weights(heun, 0.2, 0.61)) < 0
    assert all(min(weights(euler, t, s)) >= 0 for t, s in ((0, 0.9), (0.3, 1.0)))


def test_a_foreign_solver_gets_the_same_field():
    torchdiffeq = pytest.importorskip("torchdiffeq")
    predict, x = two_gaussians(), torch.randn(4, 2, dtype=torch.float64)
    f = field(predict, CFG(3) | Cap(1.2))
    times = torch.tensor([0.8 * t for t in uniform(10)], dtype=torch.float64)
    theirs = torchdiffeq.odeint(f, x, times, method="euler")[-1]
    torch.testing.assert_close(theirs, sample(predict, CFG(3) | Cap(1.2), x, times.tolist()))
    assert f(1.0, x).isfinite().all()


@pytest.mark.parametrize("rule", [apg(4), CFG(3) | Cap(1.1, anchor="first")], ids=str)
def test_a_foreign_solver_gets_no_rule_with_state(rule):
    with pytest.raises(TypeError, match="carries state"):
        field(two_gaussians(), rule)


def test_a_sample_has_its_own_noise():
    together = noise(range(8), (3, 4))
    assert torch.equal(together[5:6], noise([5], (3, 4)))
    assert torch.equal(noise([5, 2], (3, 4)), together[[5, 2]])
    assert noise([1], (2,), dtype=torch.float64).dtype == torch.float64


def test_a_state_in_low_precision_is_sampled_in_float32():
    def predict(x, t):
        return Prediction.from_velocity(x, t, 1 - x, -x)

    assert sample(predict, CFG(2), torch.randn(2, 4).bfloat16(), uniform(3)).dtype == torch.float32


# The certificate


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("times", [uniform(10), shifted(10, 3.0)])
@pytest.mark.filterwarnings("ignore:.*not convex")
def test_the_certificate_holds_for_every_solver(step, times):
    predict, x = two_gaussians(), 3 * torch.randn(50, 2, dtype=torch.float64)
    record = Record()
    end = sample(predict, CFG(9) | Cap(1.1), x, times, step, record=record)
    certificate = record.certificate()
    assert certificate.holds(end)
    assert certificate.convex == (
        not any(min(weights(step, t, s)) < -1e-12 for t, s in itertools.pairwise(times))
    )


def test_with_convex_steps_the_end_is_within_the_means():
    predict, x = two_gaussians(), 3 * torch.randn(50, 2)
    record = Record()
    end = sample(predict, CFG(9) | Cap(1.1), x, uniform(10), record=record)
    longest = torch.stack([one.length for one in record.measures]).amax(0)
    assert (end.double().norm(dim=1) <= longest * (1 + 8 * UNIT)).all()
    assert record.certificate().convex


def test_a_step_that_is_not_convex_is_warned_of():
    record = Record()
    times = from_sigmas([1, 0.9, 0.7, 0.4, 0.009, 0])  # SD3's grids end like this
    sample(two_gaussians(), CFG(9) | Cap(1.1), torch.randn(3, 2), times, heun, record=record)
    with pytest.warns(UserWarning, match=r"steps \[3\] are not convex"):
        record.certificate()


def test_only_a_finished_run_can_be_certified():
    with pytest.raises(ValueError, match="a certificate needs a record that"):
        Record().certificate()
    record = Record()
    next(trajectory(two_gaussians(), CFG(2), torch.randn(3, 2), uniform(4), record=record))
    with pytest.raises(ValueError, match="stopped at step 1 of 4"):
        record.certificate()


def test_samples_that_end_as_nan_are_told_of_and_leave_the_others_alone():
    x, rule = noise(range(4), (3, 5)), CFG(3) | Cap(1.1)

    def right(y, t):
        return Prediction.from_mean(y, t, 0.5 * y, 0.4 * y)

    def broken(y, t):
        m = 0.5 * y
        m[2, 0] = math.nan
        return Prediction.from_mean(y, t, m, 0.4 * y)

    with pytest.warns(UserWarning, match=r"1 of 4 samples ended as NaN or infinity \(samples 2\)"):
        found = sample(broken, rule, x, uniform(4))
    whole = sample(right, rule, x, uniform(4))
    assert torch.equal(found[[0, 1, 3]], whole[[0, 1, 3]]) and found[2].isnan().any()


def test_a_step_of_any_number_of_evaluations_can_be_recorded_and_certified():
    def many(mean, x, t, t_next):
        means = [mean(x, t + i / 40 * (t_next - t)) for i in range(12)]
        return torch.lerp(x, sum(means) / 12, (t_next - t) / (1 - t))

    found = weights(many, 0.25, 0.5)
    assert found == pytest.approx([2 / 3] + 12 * [1 / 36]) and sum(found) == pytest.approx(1)
    record, x = Record(), noise(range(2), (3,))
    end = sample(
        lambda y, t: Prediction.from_mean(y, t, y / 2, -y),
        "CFG(3) | Cap(1.1)",
        x,
        uniform(3),
        many,
        record=record,
    )
    assert len(record) == 36 and record.certificate().holds(end)
