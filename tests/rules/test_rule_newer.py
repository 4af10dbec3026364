"""Formulas that need inputs of their own, written out on velocities; the others are in test_rule_formulas."""

import math

import pytest
import torch
import torch.nn.functional as F
from rule_cases import dot, norm, velocities

from cases import adversarial
from meancap import CFG, Cap, Prediction, guided_velocity
from meancap.rules import (
    LiteralCap,
    SlowBand,
    Transition,
    ZeResFDG,
    cfg_oec,
    displace,
    lf_cfg,
    pmc_literal,
    transition_point,
    tsr,
    zeresfdg,
)

W = 4.0


def stepped(rule, times, inputs=None):
    """The guided velocities of successive steps, and what was predicted at each."""
    inputs = inputs or [velocities(seed) for seed in range(len(times))]
    state, found = rule.init(), []
    for t, (x, v_c, v_u) in zip(times, inputs, strict=True):
        v, state = guided_velocity(rule, x, t, v_c, v_u, state)
        found.append((v, x, v_c, v_u))
    return found


def test_tsr_samples_a_gaussian_at_another_temperature():
    """For data N(0, s^2) the exact score times the factor is the exact score of N(0, s^2 / k)."""
    x, _, _ = velocities(3)
    t, s, k = 0.6, 2.0, 1.7
    mean = t * s**2 / (t**2 * s**2 + (1 - t) ** 2) * x
    sharper = t * s**2 / k / (t**2 * s**2 / k + (1 - t) ** 2) * x
    v = (mean - x) / (1 - t)
    found, _ = guided_velocity(tsr(1.0, k=k, sigma=s), x, t, v, v)
    torch.testing.assert_close(x + (1 - t) * found, sharper)


@pytest.mark.parametrize(("below", "corrected"), [(0.5, 0), (0.911, 1), (1.5, 3)])
def test_oec_is_what_the_paper_writes_with_predictions_carried_on(below, corrected):
    times = (0.2, 0.4)
    first, (v, x, v_c, v_u) = stepped(cfg_oec(W, below=below), times)
    (c0, u0), (c, u) = (
        [x - t * v for v in pair] for t, x, pair in ((0.2, first[1], first[2:]), (0.4, x, (v_c, v_u)))
    )
    ahead_c, ahead_u = 2 * c - c0, 2 * u - u0
    a, b = c - ahead_c, u - ahead_u
    s = dot(a, b) / (norm(a) * norm(b))
    moved = ahead_u + b - dot(a, b) / dot(a, a) * a
    reference = torch.where(s < below, (1 - s) * moved + s * u, u)
    torch.testing.assert_close(x - times[1] * v, reference + W * (c - reference))
    assert int((s < below).sum()) == corrected


def test_guidance_begins_when_the_gap_has_passed_its_first_minimum():
    x, v_c, other = velocities(5)
    t, gaps = 0.5, (3.0, 2.0, 1.0, 1.5, 0.5)  # the minimum is the third, so the fourth step is guided
    inputs = [(x, v_c, v_c - gap * other) for gap in gaps]
    scales = (1, 1, 1, W, W)
    for (v, _, c, u), scale in zip(stepped(transition_point(W), [t] * 5, inputs), scales, strict=True):
        torch.testing.assert_close(v, u + scale * (c - u))
    falling = [(x, v_c, v_c - gap * other) for gap in (3.0, 2.0, 1.0)]
    for v, _, c, u in stepped(Transition(W, before=-1.0), [t] * 3, falling):
        torch.testing.assert_close(v, u - (c - u))


def test_lf_cfg_is_its_four_terms():
    times, share = (0.2, 0.4), 0.5
    x, v_c, v_u = velocities(7)
    calm = [a + 0.05 * b for a, b in zip((v_c, v_u), velocities(8)[1:], strict=True)]
    (first, _, _, _), (v, _, c, u) = stepped(SlowBand(W, share, 2), times, [(x, v_c, v_u), (x, *calm)])
    torch.testing.assert_close(first, v_u + W * (v_c - v_u))

    def low(v):
        return F.interpolate(F.avg_pool2d(v, 2), scale_factor=2, mode="bilinear", align_corners=False)

    def mask(now, last):
        rate = (low(now) - low(last)).square().sum(1, keepdim=True).sqrt()
        flat = rate.flatten(1)
        return (rate < (flat.mean(1) + flat.std(1)).reshape(-1, 1, 1, 1)).double()

    m_c, m_u, c_low, u_low = mask(c, v_c), mask(u, v_u), low(c), low(u)
    wanted = (
        u_low
        + share * W * (m_c * c_low - m_u * u_low)
        + W * ((1 - m_c) * c_low - (1 - m_u) * u_low)
        + (u - u_low)
        + W * ((c - c_low) - (u - u_low))
    )
    assert 0 < m_c.mean() < 1
    torch.testing.assert_close(v, wanted)
    assert lf_cfg(W) == SlowBand(W)


def blurred(v):
    line = torch.tensor([math.exp(-0.5), 1, math.exp(-0.5)], dtype=torch.float64)
    kernel = line[:, None] * line[None, :] / line.sum() ** 2
    padded = F.pad(v, (1, 1, 1, 1), mode="reflect")
    return F.conv2d(padded, kernel.expand(v.shape[1], 1, 3, 3), groups=v.shape[1])


def test_zeresfdg_is_one_of_its_two_forms_and_keeps_it_between_the_thresholds():
    x, v_c, v_u = velocities(9)
    fine, coarse = v_c - v_u, blurred(blurred(blurred(v_c - v_u)))

    def weighed(v):
        return 0.6 * blurred(v) + 1.3 * (v - blurred(v))

    def share(d):
        low, high = blurred(d).square().sum(), (d - blurred(d)).square().sum()
        return float(high / (low + high))

    def zero(c, u):
        a = dot(c, u) / dot(u, u)
        return a * u + W * weighed(c - a * u)

    def rescale(c, u):
        y = u + W * weighed(c - u)
        ratio = (u + weighed(c - u)).flatten(1).std(1) / y.flatten(1).std(1)
        return (0.7 * ratio + 0.3).reshape(-1, 1, 1, 1) * y

    assert share(fine[:1]) > 0.6 > 0.45 > share(coarse[:1])
    inputs = [(x[:1], (v_u + d)[:1], v_u[:1]) for d in (coarse, fine, fine, fine, coarse)]
    rule, running, form = zeresfdg(W, keep=0.5), None, zero
    forms = []
    for v, _, c, u in stepped(rule, [0.4] * 5, inputs):
        now = share(c - u)
        running = now if running is None else 0.5 * running + 0.5 * now
        form = rescale if running >= 0.6 else zero if running <= 0.45 else form
        forms.append(form)
        torch.testing.assert_close(v, form(c, u))
    assert {zero, rescale} == set(forms) and rule == ZeResFDG(W, keep=0.5)


def printed_steps(m, d, scale, gamma, tiny):
    """The numbered steps of the paper's appendix for one sample, in Python's numbers."""
    if math.sqrt(sum((u + (scale - 1) * v) ** 2 for u, v in zip(m, d, strict=True))) <= gamma * math.hypot(
        *m
    ):
        return scale - 1
    a, b, q = (sum(u * v for u, v in zip(*pair, strict=True)) for pair in ((d, d), (m, d), (m, m)))
    if a <= tiny:
        return 0.0
    root = math.sqrt(max(0.0, b * b + (gamma**2 - 1) * a * q))
    if b < 0:
        return min(scale - 1, (root - b) / a)
    return min(scale - 1, (gamma**2 - 1) * q / (b + root)) if b + root > 0 else 0.0


@pytest.mark.parametrize("gamma", [1.05, 2.0])
def test_the_literal_cap_is_the_papers_numbered_steps(gamma):
    m, gap = (v.double() for v in adversarial(3, 200, 5))
    p = Prediction.from_mean(m, 0.4, m, m - gap)
    found = displace(pmc_literal(7, gamma, tiny=1e-4), p)[0].coefficient
    lists = zip(p.m_c.tolist(), p.delta.tolist(), strict=True)
    wanted = torch.tensor([printed_steps(a, b, 7, gamma, 1e-4) for a, b in lists], dtype=torch.float64)
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-12)
    assert (wanted == 0).any() and (wanted == 6).any()


def test_the_literal_cap_is_the_cap_where_its_epsilon_does_not_act():
    m, gap = (v.double() for v in adversarial(1, 500, 12))
    p = Prediction.from_mean(m, 0.4, m, m - gap)
    ours, printed = (displace(CFG(7) | cap, p)[0].coefficient for cap in (Cap(1.1), LiteralCap(1.1, 0.0)))
    torch.testing.assert_close(ours, printed, rtol=1e-11, atol=1e-11)
    tiny = Prediction.from_mean(m, 0.4, 1e-9 * m, 1e-9 * (m - gap))
    assert (displace(CFG(7) | LiteralCap(1.1), tiny)[0].coefficient == 0).any()
