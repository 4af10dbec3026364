"""Parts that remember, beside their recursions written out."""

import math
from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from cases import random_prediction
from meancap import CFG, Prediction, euler, guide, heun, sample, trajectory, uniform
from meancap.rules import (
    Converged,
    Reuse,
    StepInterval,
    ZeroInit,
    displace,
    fbg,
)


def test_feedback_follows_the_log_posterior_of_the_edm_code():
    """The update of the official code in its own coordinates, y = x / t and sigma = (1 - t) / t."""
    times = [0.05, 0.2, 0.4, 0.6, 0.8]
    rule = fbg(times, pi=0.9, t0=0.5, t1=0.4, most=6)
    (pi, delta, tau) = (rule.pi, rule.delta, rule.tau)
    predictions = [random_prediction(3, 5, seed=i, t=t) for i, t in enumerate(times[:-1])]
    log_posterior, state = torch.zeros(3, dtype=torch.float64), None
    scales = []
    for p, q in pairwise([*predictions, None]):
        g, state = displace(rule, p, state)
        scales.append(log_posterior.exp() / (log_posterior.exp() - (1 - pi)))
        torch.testing.assert_close(g.coefficient + 1, scales[-1])
        if q is None:
            break
        sigma, sigma_next = (1 - p.t) / p.t, (1 - q.t) / q.t
        r = sigma_next**2 / sigma**2
        spread = (sigma**2 - sigma_next**2) * r
        y, y_next = p.x / p.t, q.x / q.t
        errors = [(y_next - r * y - (1 - r) * m).square().sum(1) for m in (p.m_c, p.m_u)]
        log_posterior = log_posterior - tau / (2 * spread) * (errors[0] - errors[1]) + delta
        log_posterior = log_posterior.clamp(math.log((1 - pi) * 6 / 5), 3.0)
    assert torch.stack(scales).std() > 0.01  # it did something


def test_feedback_derives_its_constants_from_the_grid_and_starts_at_the_noise():
    times = uniform(10)
    rule = fbg(10, pi=0.95, t0=0.5, t1=0.4)
    assert rule.delta == pytest.approx(math.log(0.05 * 1.5) / (0.5 * 10))
    noise = [((1 - t) / t) ** 2 if t else math.inf for t in times]
    assert rule.tau == pytest.approx(
        abs(2 * noise[6] * (1 - noise[6] / noise[5]) * rule.delta / 10)
    )  # index 4 from the data end is step 5

    def predict(x, t):
        return Prediction.from_mean(x, t, 0.9 * x + 0.2, 0.9 * x)

    assert sample(predict, rule, torch.randn(4, 3), times).isfinite().all()
    assert sample(predict, rule, torch.randn(4, 3), times, heun).isfinite().all()
    hybrid = fbg(10, constant=2.6, interval=(0.48, 6.84))
    inside, outside = (displace(hybrid, random_prediction(2, 5, t=t))[0].coefficient for t in (0.5, 0.9))
    torch.testing.assert_close(inside - outside, torch.full((2,), 1.6, dtype=torch.float64))


def test_rules_that_count_count_steps_and_not_evaluations():
    seen = []

    def predict(x, t):
        seen.append(t)
        return Prediction.from_mean(x, t, 0.5 * x + 1, 0.5 * x)

    x = torch.ones(1, 2, dtype=torch.float64)
    for step in (euler, heun):
        gated = list(trajectory(predict, CFG(3) | StepInterval(1, 2), x, uniform(4), step))
        for one in gated:
            active = one.index in (1, 2)
            torch.testing.assert_close(one.m, one.prediction.m_c + (2 if active else 0))
        still = list(trajectory(predict, CFG(3) | ZeroInit(2), x, uniform(4), step))
        assert [torch.equal(one.m, one.x) for one in still] == [True, True, False, False]
        assert torch.equal(still[1].x_next, x)
    assert len(seen) == 2 * 4 + 2 * 7


def test_each_sample_stops_computing_gaps_at_its_own_time():
    first, second = random_prediction(2, 6, seed=1), random_prediction(2, 6, seed=2)
    late = replace(second, t=torch.tensor([0.4, 0.7], dtype=torch.float64))
    _, state = guide(Reuse(1, until=0.5), first)
    m, _ = guide(Reuse(1, until=0.5), late, state)
    torch.testing.assert_close(m, late.m_c + torch.stack([late.delta[0], first.delta[1]]))


def test_adaptive_guidance_stops_for_good():
    rule = CFG(4) | Converged(0.9, "mean")
    c = torch.tensor([[1.0, 0.0], [1.0, 0.0]], dtype=torch.float64)
    apart = Prediction(c, 0.5, c, torch.tensor([[0.0, 1.0], [0.0, 1.0]], dtype=torch.float64))
    one = Prediction(c, 0.5, c, torch.tensor([[0.0, 1.0], [0.9, 0.1]], dtype=torch.float64))
    _, state = guide(rule, apart)
    m, state = guide(rule, one, state)
    assert torch.equal(m[1], c[1]) and not torch.equal(m[0], c[0])
    m, _ = guide(rule, apart, state)
    assert torch.equal(m[1], c[1]) and not torch.equal(m[0], c[0])
