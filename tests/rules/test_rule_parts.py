"""Laws of single parts beside their formulas: what they miss, refuse and share."""

from dataclasses import replace

import pytest
import torch
from rule_cases import SHAPE, dot, velocities

import meancap
from cases import random_prediction
from meancap import CFG, Prediction, euler, guide, guided_velocity, heun, trajectory, uniform
from meancap.rules import (
    CFGPP,
    Aligned,
    Converged,
    Damp,
    FromUnconditional,
    Normalise,
    PowerLaw,
    Renorm,
    Rescale,
    Reuse,
    StepInterval,
    ZeroInit,
    catalogue,
    tag,
    zeresfdg,
)
from meancap.rules.frequency import collapse, pyramid


def test_from_unconditional_counts_a_changed_gap_from_the_unconditional_mean():
    p = random_prediction(*SHAPE)
    m, _ = guide(Renorm() | FromUnconditional(4), p)
    changed, _ = guide(Renorm(), p)
    torch.testing.assert_close(m, p.m_u + 4 * (changed - p.m_c))


@pytest.mark.parametrize("form", ["published", "adg"])
def test_an_euler_step_under_cfgpp_is_the_cfgpp_step(form):
    scale, (x, v_c, v_u) = 0.6, velocities(0)
    for t, s in ((0.0, 0.1), (0.4, 0.5), (0.8, 0.97)):
        v, _ = guided_velocity(CFGPP(scale, form), x, t, v_c, v_u, t_next=s)
        m = x + (1 - t) * (v_u + scale * (v_c - v_u))
        step = s * m + (1 - s) * (x - t * v_u) if form == "published" else m - (1 - s) * v_u
        torch.testing.assert_close(x + (s - t) * v, step)


def test_cfgpp_uses_one_scale_per_step():
    def predict(x, t):
        return Prediction.from_mean(x, t, 0.5 * x + 1, 0.5 * x)

    x = torch.ones(2, 3, dtype=torch.float64)
    times = (0.2, 0.5, 0.7)
    for one in trajectory(predict, CFGPP(0.6), x, times, heun):
        w = 0.6 * (1 - one.t) * one.t_next / (one.t_next - one.t)
        plain = heun(lambda y, t, w=w: guide(CFG(w), predict(y, t))[0], one.x, one.t, one.t_next)
        torch.testing.assert_close(one.x_next, plain)


def test_cfgpp_says_what_it_misses():
    x, v_c, v_u = velocities(0)
    with pytest.raises(ValueError, match="needs the time at which the step ends"):
        guided_velocity(CFGPP(0.6), x, 0.4, v_c, v_u)
    with pytest.raises(ValueError, match="moves towards the data"):
        guided_velocity(CFGPP(0.6), x, 0.4, v_c, v_u, t_next=0.4)


def test_tag_of_a_ddim_step_in_a_rescaled_state_is_tag_of_the_flow():
    x, v_c, v_u = velocities(2, (5, 30))
    v = v_u + 4 * (v_c - v_u)
    found, _ = guided_velocity(tag(4, eta=1.3), x, 0.4, v_c, v_u)
    s, unit, unit_next = 0.5, 1.7, 1.2
    delta = unit_next * (x + (s - 0.4) * v) - unit * x
    radial = dot(delta, x) / dot(x, x) * x
    torch.testing.assert_close(
        (unit * x + radial + 1.3 * (delta - radial)) / unit_next, x + (s - 0.4) * found
    )


@pytest.mark.parametrize("rule", [Damp(-1e6), PowerLaw(1.0, 400.0), Aligned(4.0, -1e9), Normalise(-1e4)])
def test_what_is_too_large_is_too_large_for_few_samples_and_for_many(rule):
    x, m_c, m_u = (1e3 * v for v in velocities(3, (20, 5)))
    p, one = Prediction(x, 0.4, m_c, m_u), Prediction(x[:1], 0.4, m_c[:1], m_u[:1])
    many = guide(rule, p)[0]
    assert not many[0].isfinite().any()
    assert torch.equal(guide(rule, one)[0].isfinite(), many[:1].isfinite())


def test_a_pyramid_collapses_to_its_image():
    for size in ((8, 8), (9, 13), (12, 20)):
        image = torch.randn(2, 3, *size, dtype=torch.float64)
        for levels in (1, 2, 3):
            torch.testing.assert_close(collapse(pyramid(image, levels), image.shape), image)
    with pytest.raises(ValueError, match="too small for 4 levels"):
        pyramid(torch.randn(1, 1, 8, 8), 4)


@pytest.mark.parametrize("entry", [e for e in catalogue() if e.axes > 3], ids=lambda e: e.name)
def test_a_rule_for_images_refuses_vectors_and_tokens(entry):
    for shape in ((2, 12), (2, 16, 12)):
        with pytest.raises(ValueError, match="needs images"):
            guide(entry.rule(), random_prediction(*shape))


def test_zeresfdg_smooths_over_both_sides_of_an_image():
    with pytest.raises(ValueError, match="height and width of 2 or more"):
        guide(zeresfdg(4), random_prediction(2, 3, 1, 8))


def test_a_sample_of_one_value_has_no_spread_to_match():
    x, v_c, v_u = velocities(4, (3, 1))
    assert torch.equal(
        guided_velocity(CFG(3) | Rescale(0.7), x, 0.4, v_c, v_u)[0],
        guided_velocity(CFG(3) | Rescale(0), x, 0.4, v_c, v_u)[0],
    )


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


@pytest.mark.parametrize(
    "text", ["tonemap(4)", "power_law(0.5)", "power_law(0.5, 0)", "samg()", "Balanced()"]
)
@pytest.mark.parametrize("apart", ["no", "in one sample", "in one pixel"])
def test_where_the_predictions_agree_the_gradient_is_finite(text, apart):
    x, c = (torch.randn(2, 3, 4, 4, dtype=torch.float64) for _ in range(2))
    u = c.clone()
    u[:1] += {"no": 0.0, "in one sample": 1.0}.get(apart, torch.eye(4, dtype=torch.float64))
    c.requires_grad_(), u.requires_grad_()
    v, _ = guided_velocity(meancap.parse(text), x, 0.4, c, u)
    assert all(slope.isfinite().all() for slope in torch.autograd.grad(v.square().sum(), (c, u)))
