"""Density-ratio feedback as a rule, its probes' signs, and FBG by its own code's formulas."""

import math
from itertools import pairwise

import pytest
import torch

from cases import random_prediction
from meancap import (
    Prediction,
    guide,
    noise,
    parse,
    sample,
    uniform,
)
from meancap.rules import density_feedback, displace, fbg
from meancap.sampling.ratio_tracker import keys, signs


def test_signs_are_fair_and_belong_to_samples_and_steps():
    x = noise(range(256), (16,)).double()
    z = signs(keys(x), 0, x)
    assert set(z.unique().tolist()) == {-1.0, 1.0}
    assert abs(float(z.mean())) < 4.5 / 64 and abs(float((z[:, 1:] * z[:, :-1]).mean())) < 4.5 / 62
    assert abs(float((z * signs(keys(x), 1, x)).mean())) < 4.5 / 64
    assert torch.equal(signs(keys(x[5:9]), 0, x[5:9]), z[5:9])


def test_errors_teach_and_text_is_read_back():
    p = Prediction(torch.zeros(2, 3), 0.5, torch.ones(2, 3), torch.zeros(2, 3))
    with pytest.raises(TypeError, match=r"sample\(\) and trajectory\(\) track"):
        guide(density_feedback(0.5), p)
    for text in ("density_feedback(0.5)", "DensityFeedback(0.7, most=10, every=3) | Cap(1.1)"):
        assert parse(str(parse(text))) == parse(text)
    with pytest.raises(ValueError, match="has two scales"):
        rule = density_feedback(0.5) | density_feedback(0.6)
        sample(lambda x, t: Prediction(x, t, x + 1, x), rule, torch.zeros(1, 8).double(), uniform(2))


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
    levels = [((1 - t) / t) ** 2 if t else math.inf for t in times]
    assert rule.tau == pytest.approx(
        abs(2 * levels[6] * (1 - levels[6] / levels[5]) * rule.delta / 10)
    )  # index 4 from the data end is step 5
    hybrid = fbg(10, constant=2.6, interval=(0.48, 6.84))
    inside, outside = (displace(hybrid, random_prediction(2, 5, t=t))[0].coefficient for t in (0.5, 0.9))
    torch.testing.assert_close(inside - outside, torch.full((2,), 1.6, dtype=torch.float64))
