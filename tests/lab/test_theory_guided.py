"""The capped field, its feedback, what it does to volume, and the exact likelihood of its samples."""

import math

import pytest
import torch
from calculus import CONDITIONS, PAPER, agree, circle, every_condition, gradient, jacobian, noise, points

from meancap.lab import Condition, Mixture
from meancap.lab.mixture import trace
from meancap.lab.theory import (
    Guided,
    cap_beta,
    graded_times,
    log_likelihood,
    pushforward,
    transport,
)
from meancap.rules.caps import cap_fraction

every_time = pytest.mark.parametrize("t", [0.05, 0.3, 0.6, 0.85])
anchors = pytest.mark.parametrize("anchored", [False, True], ids=["origin", "anchored"])

TRIPLE = Condition(Mixture(circle(), std=0.25), (0, 1, 2))


def root(z, delta, gamma):
    """The positive root as the paper prints it."""
    a, b, q = (delta**2).sum(-1), (z * delta).sum(-1), (z**2).sum(-1)
    return (-b + (b**2 + (gamma**2 - 1) * a * q).sqrt()) / a


def field_of(condition, anchored):
    return Guided(condition, 4.0, 1.2, condition.mixture.mean if anchored else None)


def printed_beta(field, x, t):
    m_c, m_u = field.condition.means(x, t)
    z = m_c if field.anchor is None else m_c - field.anchor
    return root(z, m_c - m_u, field.gamma).clamp_max(field.scale - 1)


@every_condition
@every_time
@anchors
def test_beta_is_the_largest_feasible_guidance(condition, t, anchored):
    field = field_of(condition, anchored)
    x = points(condition.mixture, t, n=200)
    beta = field.beta(x, t)
    m_c, _ = condition.means(x, t)
    z, delta = (m_c if field.anchor is None else m_c - field.anchor), condition.delta(x, t)
    bound = field.gamma * z.norm(dim=-1)
    length = (z + beta[:, None] * delta).norm(dim=-1)
    more = (z + 1.001 * beta[:, None] * delta).norm(dim=-1)
    rounding = 1e-14 * (x.norm(dim=-1) + m_c.norm(dim=-1))  # of z, where the mean is near the anchor
    assert (beta >= 0).all() and (beta <= 3).all()
    assert (length <= bound * (1 + 1e-14) + rounding).all()
    assert ((beta == 3) | (more > bound)).all()


@every_condition
@anchors
def test_caps_of_these_conditions_are_active_somewhere_and_not_everywhere(condition, anchored):
    field = field_of(condition, anchored)
    active = [field.beta(points(condition.mixture, t, n=200), t) < 3 for t in (0.05, 0.3, 0.6, 0.85)]
    assert 0 < int(torch.cat(active).sum()) < 800


def test_beta_agrees_with_the_rule_that_samplers_use():
    z, delta = noise(500, 6), noise(500, 6, seed=1) * noise(500, 1, seed=2).exp()
    for gamma in (1.0, 1.1, 2.0):
        share = cap_fraction(z, 2 * delta, gamma)[:, 0]
        # The rule gives up a margin for rounding: four units of float64 here.
        assert torch.allclose(2 * share, cap_beta(z, delta, 3.0, gamma), rtol=1e-11, atol=0)


def test_no_gap_keeps_the_nominal_scale_and_no_room_forbids_growth():
    z, zero = noise(5, 3), torch.zeros(5, 3, dtype=torch.float64)
    assert torch.equal(cap_beta(z, zero, 3.0, 1.1), torch.full((5,), 2.0).double())
    assert not cap_beta(z, 0.5 * z, 3.0, 1.0).any()
    # Gamma = 1 is not guidance off: inward the ball lets the mean through to the other side.
    assert agree(cap_beta(z, -z, 3.0, 1.0), torch.full((5,), 2.0).double())
    x = points(TRIPLE.mixture, 1.0)
    assert torch.equal(Guided(TRIPLE, 3.0, 1.1).beta(x, 1.0), torch.full((40,), 2.0).double())


@every_condition
@every_time
@anchors
def test_feedback_is_the_gradient_of_the_active_root(condition, t, anchored):
    field = field_of(condition, anchored)
    x = points(condition.mixture, t, n=200)
    expected = gradient(lambda y: printed_beta(field, y, t), x)
    # The printed root divides by the gap, to which its numerator and m_c - m_u cancel.
    size = 4 * (x.norm(dim=-1) + 3) ** 2 / condition.delta(x, t).norm(dim=-1)
    active = field.beta(x, t) < field.scale - 1
    found = field.beta_gradient(x, t)
    assert all(agree(found[i], expected[i], size[i]) for i in active.nonzero()[:, 0])
    assert not found[~active].any()


@every_condition
@every_time
@anchors
def test_jacobian_of_the_capped_field(condition, t, anchored):
    field = field_of(condition, anchored)
    x = points(condition.mixture, t)
    h, turn = field.jacobian(x, t), field.rotation(x, t)
    size = 100 * float(h.abs().max()) + float((x.abs().max() + 3) ** 2) / float((1 - t) ** 2)
    assert agree(h, jacobian(lambda y: field.velocity(y, t), x), size)
    assert agree((h - h.mT) / 2, turn, size)
    d, slope = condition.force(x, t), field.beta_gradient(x, t)
    jet = condition.jet(x, t)
    parts = trace(jet.grad_v_c) + field.beta(x, t) * trace(jet.grad_force) + (slope * d).sum(-1)
    assert agree(trace(h), parts, size)
    assert torch.equal(field.velocity(x, t), field.linearise(x, t)[0])


def test_the_root_is_smooth_because_its_denominator_is_the_discriminant():
    z, delta = noise(200, 4), noise(200, 4, seed=1)
    beta = cap_beta(z, delta, 1e9, 1.1)
    a, b, q = (delta**2).sum(-1), (z * delta).sum(-1), (z**2).sum(-1)
    assert agree(a * beta + b, (b**2 + 0.21 * a * q).sqrt())


def test_fixed_guidance_is_a_gradient_and_the_cap_is_not():
    x, t = points(PAPER["triple"].mixture, 0.6, n=400), 0.6
    assert not Guided(PAPER["triple"], 3.0).rotation(x, t).any()
    capped = Guided(PAPER["triple"], 3.0, 1.1)
    share = capped.rotation(x, t).flatten(1).norm(dim=1) / capped.jacobian(x, t).flatten(1).norm(dim=1)
    assert share.max() > 0.1
    one_dimensional = Guided(CONDITIONS["line"], 3.0, 1.1)
    assert not one_dimensional.rotation(points(CONDITIONS["line"].mixture, t), t).any()


def test_a_cap_below_one_is_refused():
    for scale, gamma in ((3.0, 0.9), (0.5, 1.1)):
        with pytest.raises(ValueError, match="gamma >= 1 and scale >= 1"):
            Guided(TRIPLE, scale, gamma)


def flow_jacobian(field, x, times, h=1e-4):
    """Gradient of the flow map by central differences."""
    step = h * torch.eye(2, dtype=torch.float64)
    moved, _ = transport(field, torch.cat([*(x + e for e in step), *(x - e for e in step)]), times)
    up_1, up_2, down_1, down_2 = moved.chunk(4)
    return torch.stack([up_1 - down_1, up_2 - down_2], -1) / (2 * h)


@pytest.mark.parametrize(
    "field", [Guided(TRIPLE, 3.0), Guided(CONDITIONS["one covariance"], 2.0)], ids=["iso", "full"]
)
def test_log_volume_is_the_log_determinant_of_the_flow_map(field):
    x, times = noise(4, 2), graded_times(40, 0.25)
    _, log_volume = transport(field, x, times)
    # Differences are off by h^2 = 1e-8 times third derivatives, some hundred times J near a branch point.
    assert torch.allclose(flow_jacobian(field, x, times).det().log(), log_volume, rtol=0, atol=1e-5)


def test_the_cap_turns_and_moves_volume_as_its_feedback_says():
    # Up to t = 1/2 the cap stays active on these paths, so the flow map is smooth, and it rotates.
    field, x, times = Guided(TRIPLE, 3.0, 1.1), noise(6, 2, seed=5), graded_times(40, 0.25)
    early = times[times <= 0.5]
    j = flow_jacobian(field, x, early)
    assert torch.allclose(j.det().log(), transport(field, x, early)[1], rtol=0, atol=1e-6)
    assert (j - j.mT).abs().max() > 1e-2
    # Of second order where the cap releases, and the longest step is 1/40.
    whole = flow_jacobian(field, x, times).det().log()
    assert torch.allclose(whole, transport(field, x, times)[1], rtol=0, atol=40**-2.0)


@pytest.mark.parametrize("condition", [TRIPLE, CONDITIONS["one covariance"], CONDITIONS["covariances"]])
def test_at_scale_one_the_likelihood_is_the_conditional_density(condition):
    x0 = noise(50, condition.mixture.means.shape[1], seed=6)
    times = graded_times(100, float(condition.mixture.variances.min()) ** 0.5)
    x, log_q = pushforward(Guided(condition), x0, times)
    exact = condition.conditional.log_density(x, 1.0)
    assert (log_q - exact).abs().max() < 1e-6
    assert (log_likelihood(condition.conditional, x, times) - exact).abs().max() < 1e-6
    assert torch.equal(Guided(condition).velocity(x, 0.5), Guided(condition, 1.0, 1.1).velocity(x, 0.5))


def test_likelihood_is_of_fourth_order_and_a_graded_grid_is_worth_a_factor_of_ten():
    x0, density = noise(50, 2, seed=6), PAPER["triple"].conditional.log_density

    def error(times):
        x, log_q = pushforward(Guided(PAPER["triple"]), x0, times)
        return float((log_q - density(x, 1.0)).abs().median())

    coarse, fine = error(graded_times(40, 0.03)), error(graded_times(80, 0.03))
    assert coarse > 10 * fine
    assert error(torch.arange(161, dtype=torch.float64) / 160) > 10 * fine


@pytest.mark.parametrize("gamma", [math.inf, 1.1])
def test_guided_likelihoods_integrate_to_one(gamma):
    side = torch.linspace(-2.5, 2.5, 51, dtype=torch.float64)
    grid = torch.cartesian_prod(side, side)
    wide = Condition(Mixture(circle(), std=0.35), (0, 1, 2))
    log_q = log_likelihood(Guided(wide, 1.7, gamma), grid, graded_times(15, 0.35))
    # Peaks 0.2 wide on a mesh of 1/10: the sum itself is good to 1e-8, with kinks to a share of 1/100.
    assert float(log_q.exp().sum()) * (5 / 50) ** 2 == pytest.approx(1.0, abs=1e-3)


@pytest.mark.parametrize(("gamma", "kl"), [(math.inf, 1.045), (1.1, 0.118)], ids=["fixed", "capped"])
def test_divergence_from_the_condition_is_exact_up_to_sampling(gamma, kl):
    x, log_q = pushforward(Guided(TRIPLE, 3.0, gamma), noise(2000, 2, seed=7), graded_times(20, 0.25))
    ratio = log_q - TRIPLE.conditional.log_density(x, 1.0)
    assert abs(float(ratio.mean()) - kl) < 4 * float(ratio.std()) / math.sqrt(len(ratio))
