"""Parts that scale or turn the gap, beside their formulas written out in the space of their authors."""

import math

import pytest
import torch
import torch.nn.functional as F
from rule_cases import SHAPE, norm, velocities

from cases import random_prediction
from meancap import CFG, Prediction, guide, guided_velocity, heun, trajectory
from meancap.rules import (
    CFGPP,
    Aligned,
    Damp,
    FromUnconditional,
    Gain,
    Normalise,
    PowerLaw,
    Rectify,
    Renorm,
    adg,
    beta_cfg,
    displace,
    recfg,
    tag,
    tcfg,
)


def test_from_unconditional_is_cfg_until_the_gap_is_touched():
    p = random_prediction(*SHAPE)
    torch.testing.assert_close(guide(FromUnconditional(4), p)[0], guide(CFG(4), p)[0])
    m, _ = guide(Renorm() | FromUnconditional(4), p)
    changed, _ = guide(Renorm(), p)
    torch.testing.assert_close(m, p.m_u + 4 * (changed - p.m_c))
    torch.testing.assert_close(guide(Gain(3), p)[0], guide(CFG(4), p)[0])


@pytest.mark.parametrize("renoise", ["noise", "velocity"])
def test_an_euler_step_under_cfgpp_is_the_cfgpp_step(renoise):
    scale, (x, v_c, v_u) = 0.6, velocities(0)
    for t, s in ((0.0, 0.1), (0.4, 0.5), (0.8, 0.97)):
        v, _ = guided_velocity(CFGPP(scale, renoise), x, t, v_c, v_u, t_next=s)
        m = x + (1 - t) * (v_u + scale * (v_c - v_u))
        step = s * m + (1 - s) * (x - t * v_u) if renoise == "noise" else m - (1 - s) * v_u
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


def test_tangential_damping_is_the_singular_value_decomposition():
    x, v_c, v_u = velocities(2, (5, 30))
    v, _ = guided_velocity(tcfg(4), x, 0.4, v_c, v_u)
    for i in range(5):
        e = torch.linalg.svd(torch.stack([v_c[i], v_u[i]]), full_matrices=False).Vh[0]
        kept = (v_u[i] @ e) * e
        torch.testing.assert_close(v[i], kept + 4 * (v_c[i] - kept))


def test_tag_stretches_the_step_across_the_state():
    x, v_c, v_u = velocities(2, (5, 30))
    v = v_u + 4 * (v_c - v_u)
    along = ((v * x).sum(1) / x.square().sum(1))[:, None] * x
    found, _ = guided_velocity(tag(4, eta=1.3), x, 0.4, v_c, v_u)
    torch.testing.assert_close(found, along + 1.3 * (v - along))
    torch.testing.assert_close(guided_velocity(tag(4, eta=1), x, 0.4, v_c, v_u)[0], v)
    # On a DDIM step of the same network in a rescaled state the next state is the same.
    s, unit, unit_next = 0.5, 1.7, 1.2
    delta = unit_next * (x + (s - 0.4) * v) - unit * x
    radial = ((delta * x).sum(1) / x.square().sum(1))[:, None] * x
    torch.testing.assert_close(
        (unit * x + radial + 1.3 * (delta - radial)) / unit_next, x + (s - 0.4) * found
    )


def test_adg_is_its_formula_up_to_the_limit():
    p = random_prediction(6, 30)
    theta = torch.acos(F.cosine_similarity(p.m_c, p.m_u))
    for scale in (1.0, 1.3, 4.0, 12.0):
        turn = ((scale - 1) * theta).clamp(max=math.pi / 3)
        across = p.m_c - ((p.m_c * p.m_u).sum(1) / p.m_u.square().sum(1))[:, None] * p.m_u
        expected = turn.cos()[:, None] * p.m_c + (turn.sin() / theta.sin())[:, None] * across
        m, _ = guide(adg(scale), p)
        torch.testing.assert_close(m, expected)
        assert (m.norm(dim=1) <= math.sqrt(2) * p.m_c.norm(dim=1) * (1 + 1e-12)).all()


def test_recfg_is_stated_for_noise_predictions():
    x, v_c, v_u = velocities(1)
    ratios = [torch.rand(4, 8, 8, dtype=torch.float64) for _ in range(2)]
    rule = recfg(3.0, [0.2, 0.6], [r.tolist() for r in ratios])
    for t in (0.2, 0.3, 0.6, torch.tensor([0.2, 0.3, 0.6], dtype=torch.float64)):
        v, _ = guided_velocity(rule, x, t, v_c, v_u)
        share = (torch.as_tensor(t, dtype=torch.float64) - 0.2) / 0.4
        time, share = (torch.as_tensor(a, dtype=torch.float64).reshape(-1, 1, 1, 1) for a in (t, share))
        r = (1 - share) * ratios[0] + share * ratios[1]
        noise = 3 * (x - time * v_c) - 2 * r * (x - time * v_u)
        torch.testing.assert_close(v, (x - noise) / time)
    one = Rectify([0.0, 1.0], [1.0, 1.0]) | CFG(3)
    torch.testing.assert_close(guided_velocity(one, x, 0.0, v_c, v_u)[0], v_u + 3 * (v_c - v_u))


def test_beta_cfg_is_stated_for_noise_predictions():
    x, v_c, v_u = velocities(5)
    t = 0.3
    v, _ = guided_velocity(beta_cfg(7.5, a=2, b=3, gamma=0.5), x, t, v_c, v_u)
    d = -t * (v_c - v_u)
    density = t * (1 - t) ** 2 * math.gamma(5) / (math.gamma(2) * math.gamma(3))
    noise = (x - t * v_u) + 7.5 * density * d / norm(d) ** 0.5
    torch.testing.assert_close(v, (x - noise) / t)
    for end in (0.0, 1.0):
        torch.testing.assert_close(guided_velocity(beta_cfg(7.5), x, end, v_c, v_u)[0], v_u)
    p = random_prediction(2, 6)
    g, _ = displace(Normalise(1.0, "mean"), p)
    torch.testing.assert_close(g.vector.norm(dim=1), torch.ones(2, dtype=torch.float64))


@pytest.mark.parametrize("rule", [Damp(-1e6), PowerLaw(1.0, 400.0), Aligned(4.0, -1e9), Normalise(-1e4)])
def test_what_is_too_large_is_too_large_for_few_samples_and_for_many(rule):
    x, m_c, m_u = (1e3 * v for v in velocities(3, (20, 5)))
    p, one = Prediction(x, 0.4, m_c, m_u), Prediction(x[:1], 0.4, m_c[:1], m_u[:1])
    many = guide(rule, p)[0]
    assert not many[0].isfinite().any()
    assert torch.equal(guide(rule, one)[0].isfinite(), many[:1].isfinite())
