"""The theorems of the paper, the conditions they need, the capped field, the exact law of its samples."""

import math

import pytest
import torch
from calculus import (
    CONDITIONS,
    IMBALANCED,
    OCTAGON,
    PAPER,
    TIMES,
    agree,
    along,
    circle,
    covariances,
    every_condition,
    every_mixture,
    every_time,
    gradient,
    jacobian,
    noise,
    points,
    random,
    steepness,
    weights,
)

from meancap.rules.caps import cap_fraction
from meancap_lab.mixtures import Condition, Mixture
from meancap_lab.mixtures.theory import (
    Guided,
    branch_time,
    cap_beta,
    energy,
    energy_balance,
    euler_variance_ratio,
    gap_envelope,
    graded_times,
    linearise,
    posterior_covariance,
    pushforward,
    release_by_envelope,
    release_by_posterior,
    splitting_eigenvalue,
    transport,
)

ORIGIN = torch.zeros(1, 2, dtype=torch.float64)
TRIPLE = Condition(Mixture(circle(), std=0.25), (0, 1, 2))
anchors = pytest.mark.parametrize("anchored", [False, True], ids=["origin", "anchored"])
every_paper_condition = pytest.mark.parametrize("condition", PAPER.values(), ids=PAPER)


def variance(t, std=0.03):
    return (1 - t) ** 2 + t**2 * std**2


def uniform(n):
    return torch.arange(n + 1, dtype=torch.float64) / n


def random_circle(seed):
    """2 to 11 components at random angles, with random weights and width."""
    generator = random(seed)
    k, std = 2 + seed % 10, 0.02 + float(torch.rand((), generator=generator))
    angle = 2 * math.pi * torch.rand(k, generator=generator, dtype=torch.float64)
    return Mixture(1.5 * torch.stack([angle.cos(), angle.sin()], -1), weights(k, seed), std=std)


def size_of(mixture, x, t):
    """How large the terms are that cancel in a potential or a velocity."""
    return steepness(mixture, x, t) * float(x.abs().max() + 3) / t


# A condition's posterior and the density: potentials, growth, volume.


@every_mixture
@every_time
def test_velocity_is_the_gradient_of_the_potential(mixture, t):
    x = points(mixture, t)
    slope = gradient(lambda y: ((y**2).sum(-1) / 2 + (1 - t) * mixture.log_density(y, t)) / t, x)
    assert agree(slope, mixture.velocity(x, t), size_of(mixture, x, t))


@every_condition
@every_time
def test_guided_velocity_is_minus_the_gradient_of_the_energy(condition, t):
    x = points(condition.mixture, t)
    slope = gradient(lambda y: energy(condition, y, t, 3.0), x)
    assert agree(-slope, Guided(condition, 3.0).velocity(x, t), 4 * size_of(condition.mixture, x, t))


@every_condition
@every_time
def test_a_schedule_adds_its_slope_times_h_to_the_change_of_the_energy(condition, t):
    """Against the chain rule for U(x_t, t) with g(t) = 1 + 4 t^2, and without a schedule."""
    x = points(condition.mixture, t)
    size = 50 * size_of(condition.mixture, x, t) ** 2
    for scale, slope in ((lambda s: 1 + 4 * s**2, 8 * t), (lambda s: 3.0 + 0 * s, 0.0)):
        v = Guided(condition, scale(t)).velocity(x, t)
        change, dissipated = energy_balance(condition, x, t, scale(t), slope)
        expected = along(lambda y, s, g=scale: energy(condition, y, s, g(s)), x, t, v)
        assert agree(change - dissipated, expected, size)
        still, _ = energy_balance(condition, x, t, scale(t))
        h = condition.log_posterior(x, t) - condition.log_prior
        assert agree(still - change, slope * (1 - t) / t * h, size)


def test_energy_along_a_path_is_the_integral_of_its_balance_and_may_rise():
    """Simpson's rule over Runge-Kutta paths from t = 0.2 to 0.8; each of the two has order four."""
    grid, x = torch.linspace(0.2, 0.8, 121, dtype=torch.float64), points(TRIPLE.mixture, 0.2)
    first, rates = energy(TRIPLE, x, 0.2, 3.0), []
    for i, t in enumerate(grid.tolist()):
        change, dissipated = energy_balance(TRIPLE, x, t, 3.0)
        rates.append(change - dissipated)
        if i < len(grid) - 1:
            x, _ = transport(Guided(TRIPLE, 3.0), x, grid[i : i + 2])
    r = torch.stack(rates)
    total = (grid[1] - grid[0]) / 3 * (r[0] + 4 * r[1:-1:2].sum(0) + 2 * r[2:-1:2].sum(0) + r[-1])
    torch.testing.assert_close(energy(TRIPLE, x, 0.8, 3.0) - first, total, rtol=1e-5, atol=1e-5)
    assert (r > 0).any() and (r < 0).any()


@every_condition
@every_time
def test_jacobians_are_posterior_covariances(condition, t):
    """grad m = t/(1 - t)^2 Cov; H_g - H_c = (g - 1) t/(1 - t)^3 (Cov_c - Cov_u), with its trace."""
    x, eye = points(condition.mixture, t), torch.eye(condition.mixture.means.shape[1], dtype=torch.float64)
    both = [posterior_covariance(m, x, t) for m in (condition.conditional, condition.mixture)]
    size = size_of(condition.mixture, x, t) ** 2
    for mixture, cov in zip((condition.conditional, condition.mixture), both, strict=True):
        assert agree(jacobian(lambda y, m=mixture: m.posterior_mean(y, t), x), t / (1 - t) ** 2 * cov, size)
        assert agree(linearise(mixture, x, t)[1], t / (1 - t) ** 3 * cov - eye / (1 - t), size / (1 - t))
    extra = linearise(Guided(condition, 3.0), x, t)[1] - linearise(condition.conditional, x, t)[1]
    closed = 2 * t / (1 - t) ** 3 * (both[0] - both[1])
    assert agree(extra, closed, size / (1 - t))
    assert agree(
        extra, 2 * (1 - t) / t * jacobian(lambda y: condition.posterior_score(y, t), x), size / (1 - t)
    )


def test_volume_along_a_path_is_that_of_the_flow_map():
    """log|det J| from the divergence against the determinant of the differentiated steps."""
    field, grid, x = (
        Guided(TRIPLE, 3.0),
        torch.linspace(0.1, 0.7, 61, dtype=torch.float64),
        noise(5, 2, seed=9),
    )
    eps = 1e-5 * torch.eye(2, dtype=torch.float64)
    ends = [transport(field, x + sign * e, grid)[0] for e in eps for sign in (1, -1)]
    columns = torch.stack([(ends[0] - ends[1]) / 2e-5, (ends[2] - ends[3]) / 2e-5], -1)
    torch.testing.assert_close(
        torch.linalg.det(columns).log(), transport(field, x, grid)[1], rtol=0, atol=1e-6
    )


@every_condition
@every_time
def test_guidance_raises_the_posterior_along_the_flow_by_the_square_of_its_slope(condition, t):
    """d/dt h along the guided flow is that along the conditional one plus (g - 1) (1 - t)/t |grad h|^2."""
    x, field = points(condition.mixture, t), Guided(condition, 3.0)
    v_c, _ = condition.velocities(x, t)
    guided, free = (along(condition.log_posterior, x, t, v) for v in (field.velocity(x, t), v_c))
    slope = condition.posterior_score(x, t)
    size = 4 * size_of(condition.mixture, x, t) / (1 - t) / t
    assert agree(guided - free, 2 * (1 - t) / t * (slope**2).sum(-1), size)


@every_time
@pytest.mark.parametrize("d", [2, 4])
def test_on_a_sphere_guidance_contracts_where_the_conditional_centre_is_farther_out(t, d):
    """div(v_g - v_c) = (g - 1) t (1 - t)/C^2 (|mu|^2 - |mu_A|^2), the means of mu_k at x."""
    means = 1.3 * torch.nn.functional.normalize(noise(6, d, seed=d), dim=-1)
    condition = Condition(Mixture(means, weights(6), std=0.25), (1, 4))
    x = points(condition.mixture, t)
    mu_c, mu_u = (m.responsibilities(x, t) @ m.means for m in (condition.conditional, condition.mixture))
    closed = t * (1 - t) / variance(t, 0.25) ** 2 * ((mu_u - mu_c) * (mu_u + mu_c)).sum(-1)
    gradients = jacobian(lambda y: condition.force(y, t), x)
    assert agree(closed, gradients.diagonal(dim1=1, dim2=2).sum(1), size_of(condition.mixture, x, t))


# Circles.


@pytest.mark.parametrize("seed", range(30))
def test_confidence_rises_and_density_falls_beyond_the_mean(seed):
    mixture = random_circle(seed)
    u = mixture.means[0] / 1.5
    for t in (1e-3, 0.2, 0.7, 0.999):
        s, c = torch.linspace(0, 12, 100, dtype=torch.float64), variance(t, mixture.std)
        rounding = 1000 * torch.finfo(s.dtype).eps * (s + t * 1.5) / c
        parts = mixture.components((radius := s.clone().requires_grad_())[:, None] * u, t).log_joint
        for value, sign, bound in (
            (parts.log_softmax(-1)[:, 0], -1, 0 * s),
            (parts.logsumexp(-1), 1, -(s - t * 1.5) / c),
        ):
            (slope,) = torch.autograd.grad(value.sum(), radius, retain_graph=True)
            assert (sign * slope <= bound + rounding).all()
            assert sign == 1 or (slope.diff() <= 2 * rounding[1:]).all()  # log p(0 | x) is concave


@every_time
@pytest.mark.parametrize("k", [2, 3, 5, 8])
def test_given_one_of_k_equal_components_the_centre_moves_out_and_contracts(k, t):
    condition = Condition(Mixture(circle(k, 1.5), std=0.03), (0,))
    c, mu = variance(t), condition.mixture.means[0]
    bend = 2 * t * (1 - t) * 1.5**2 / c**2
    assert agree(2 * condition.force(ORIGIN, t)[0], 2 * (1 - t) / c * mu, 1 / c)
    curvature = 2 * jacobian(lambda y: condition.force(y, t), ORIGIN)[0]
    eye = torch.eye(2, dtype=torch.float64)
    # The paper says only "rotationally symmetric"; a pair has rank one.
    expected = -bend * torch.outer(eye[0], eye[0]) if k == 2 else -bend / 2 * eye
    assert agree(curvature, expected, bend)


@every_time
def test_splitting_of_a_quarter_turn_pair_does_not_depend_on_the_scale(t):
    condition = Condition(OCTAGON, (0, 2))
    slope = (t * 0.03**2 - (1 - t)) / variance(t)
    closed = slope + t * (1 - t) / (2 * variance(t) ** 2)
    u = torch.tensor([1.0, -1.0], dtype=torch.float64) / math.sqrt(2)
    for scale in (1.0, 3.0, 9.0):
        assert agree(splitting_eigenvalue(condition, t, scale), closed, scale / variance(t) ** 2)
        _, field = linearise(Guided(condition, scale), ORIGIN, t)
        assert agree(field[0] @ u, closed * u, scale / variance(t) ** 2)


@pytest.mark.parametrize("scale", [1.0, 3.0])
def test_splitting_in_general_is_the_slope_of_the_field_between_the_branches(scale):
    condition = Condition(random_circle(5), (3, 1))
    first, second = condition.conditional.means
    u = (first - second) / (first - second).norm()
    _, field = linearise(Guided(condition, scale), ORIGIN, 0.5)
    assert agree(splitting_eigenvalue(condition, 0.5, scale), u @ field[0] @ u)


def test_branch_time_of_the_paper_is_one_half():
    condition = Condition(OCTAGON, (0, 2))
    t = branch_time(condition)
    assert round(t, 4) == 0.5
    # (t s^2 - (1 - t)) C + t (1 - t) r^2 / 2 = 0 at the crossing; (1 - t)^2 = t/2 for point masses.
    assert abs((t * 0.03**2 - (1 - t)) * variance(t) + t * (1 - t) / 2) < 1e-14
    assert abs(branch_time(Condition(Mixture(circle(), std=0.0), (0, 2))) - 0.5) < 1e-14
    assert branch_time(condition, 9.0) == pytest.approx(t, abs=1e-12)
    assert splitting_eigenvalue(condition, t - 1e-6) < 0 < splitting_eigenvalue(condition, t + 1e-6)


def test_formulas_of_circles_need_a_pair_on_one_sphere_with_one_width():
    with pytest.raises(ValueError, match="two branches"):
        splitting_eigenvalue(PAPER["triple"], 0.5)
    with pytest.raises(ValueError, match="one sphere"):
        splitting_eigenvalue(Condition(Mixture(noise(4, 2), std=0.1), (0, 1)), 0.5)
    with pytest.raises(ValueError, match="one std"):
        splitting_eigenvalue(Condition(Mixture(circle(), std=weights(8)), (0, 1)), 0.5)


def shell(rho, phi):
    """Points at distance rho, phi counter-clockwise from the middle of {0, 1, 2}."""
    angle = math.pi / 4 + phi
    return rho * torch.stack([angle.cos(), angle.sin()], -1)


@pytest.mark.parametrize("rho", [0.05, 0.5, 1.0, 3.0])
@pytest.mark.parametrize("t", [0.02, 0.3, 0.6, 0.9])
def test_on_every_shell_the_posterior_falls_away_from_the_middle_branch(rho, t):
    """Proved to pi/4 by the paper and to pi/2 by its proof; true to pi on this grid."""
    condition = Condition(Mixture(circle(), std=0.2), (0, 1, 2))
    phi = torch.linspace(0.01, math.pi - 0.01, 60, dtype=torch.float64)
    assert (gradient(lambda p: condition.log_posterior(shell(rho, p), t), phi) < 0).all()


def branch_bias(mixture, t):
    """log p(A | t mu_0) - log p(A | t mu_1) for the pair A = (0, 1)."""
    first, second = Condition(mixture, (0, 1)).log_posterior(t * mixture.means[:2], t)
    return float(first - second)


@pytest.mark.parametrize("seed", range(20))
def test_with_a_symmetric_complement_the_heavier_branch_has_the_higher_posterior(seed):
    w = weights(5, seed)
    heavy, light = w[:2].max(), w[:2].min()
    mixture = Mixture(circle(), [heavy, light, w[2], w[3], w[4], w[4], w[3], w[2]], std=0.03 + 0.03 * seed)
    assert all(branch_bias(mixture, t) > 0 for t in (0.01, 0.2, 0.5, 0.8, 0.95))


def test_without_symmetry_the_heavier_branch_can_have_the_lower_posterior():
    w = (0.020, 0.016, 0.012, 0.223, 0.001, 0.033, 0.033, 0.661)
    assert branch_bias(Mixture(circle(), w, std=0.382), 0.902) == pytest.approx(-1.556, abs=5e-4)


def test_the_bias_of_the_papers_pair_is_small_and_early():
    times = [i / 100 for i in range(1, 101)]
    bias = [branch_bias(IMBALANCED, t) for t in times]
    assert max(bias) == pytest.approx(0.083, abs=5e-4) and times[bias.index(max(bias))] == 0.65
    assert max(bias[-2:]) < 1e-15 and min(bias) >= 0


# The capped field.


def field_of(condition, anchored):
    return Guided(condition, 4.0, 1.2, condition.mixture.mean if anchored else None)


def test_beta_agrees_with_the_rule_that_samplers_use():
    z, delta = noise(500, 6), noise(500, 6, seed=1) * noise(500, 1, seed=2).exp()
    for gamma in (1.0, 1.1, 2.0):
        share = cap_fraction(z, 2 * delta, gamma)[:, 0]
        # The rule gives up a margin for rounding: four units of float64 here.
        assert torch.allclose(2 * share, cap_beta(z, delta, 3.0, gamma), rtol=1e-11, atol=0)


@pytest.mark.parametrize("gamma", [1.0, 1.1, 3.0])
def test_the_cap_depends_on_the_angle_as_the_paper_says(gamma):
    """beta |D| / |m_c| = sqrt(cos^2 + Gamma^2 - 1) - cos: Gamma - 1, sqrt(Gamma^2 - 1), Gamma + 1."""
    angle = torch.linspace(0, math.pi, 9, dtype=torch.float64)
    gap = 0.7 * torch.stack([angle.cos(), angle.sin()], -1)
    z = torch.tensor([[2.0, 0.0]], dtype=torch.float64).expand_as(gap)
    found = cap_beta(z, gap, 1e6, gamma) * 0.7 / 2
    cos = angle.cos()
    assert agree(found, (cos**2 + gamma**2 - 1).sqrt() - cos, 1e4)
    for place, value in ((0, gamma - 1), (4, math.sqrt(gamma**2 - 1)), (8, gamma + 1)):
        assert found[place].item() == pytest.approx(value, abs=1e-7)


def test_the_cap_keeps_its_scale_under_rotation_and_common_scaling_only():
    z, gap, q = noise(200, 5), noise(200, 5, seed=1), torch.linalg.qr(noise(5, 5, seed=2)).Q
    beta = cap_beta(z, gap, 5.0, 1.1)
    assert agree(cap_beta(7 * z @ q, 7 * gap @ q, 5.0, 1.1), beta, 1e3)
    stretch = torch.tensor([1.0, 1, 1, 1, 3], dtype=torch.float64)
    for other in (cap_beta(z + 1, gap, 5.0, 1.1), cap_beta(z * stretch, gap * stretch, 5.0, 1.1)):
        assert (other - beta).abs().max() > 0.1


def test_no_gap_keeps_the_nominal_scale_and_no_room_forbids_growth():
    z, zero = noise(5, 3), torch.zeros(5, 3, dtype=torch.float64)
    assert torch.equal(cap_beta(z, zero, 3.0, 1.1), torch.full((5,), 2.0).double())
    assert not cap_beta(z, 0.5 * z, 3.0, 1.0).any()
    # Gamma = 1 is not guidance off: inward the ball lets the mean through to the other side.
    assert agree(cap_beta(z, -z, 3.0, 1.0), torch.full((5,), 2.0).double())
    x = points(TRIPLE.mixture, 1.0)
    assert torch.equal(Guided(TRIPLE, 3.0, 1.1).beta(x, 1.0), torch.full((40,), 2.0).double())
    with pytest.raises(ValueError, match="gamma >= 1 and scale >= 1"):
        Guided(TRIPLE, 3.0, 0.9)


@every_condition
@anchors
def test_the_gradient_of_beta_is_that_of_the_active_root(condition, anchored):
    """grad beta = -((grad m_c + beta grad D)^T y - Gamma^2 (grad m_c)^T z) / <y, D>, and 0 elsewhere."""
    field, t = field_of(condition, anchored), 0.3
    x = points(condition.mixture, t, n=200)
    beta, found = field.beta(x, t), gradient(lambda y: field.beta(y, t), x)
    m_c, delta = condition.means(x, t)[0], condition.delta(x, t)
    z = m_c if field.anchor is None else m_c - field.anchor
    y = z + beta[:, None] * delta
    grad_m, grad_d = (
        jacobian(f, x) for f in (lambda v: condition.means(v, t)[0], lambda v: condition.delta(v, t))
    )
    push = ((grad_m + beta[:, None, None] * grad_d).mT @ y[..., None])[..., 0]
    pull = field.gamma**2 * (grad_m.mT @ z[..., None])[..., 0]
    active = beta < 3
    expected = (pull - push) / (y * delta).sum(-1, keepdim=True)
    torch.testing.assert_close(found[active], expected[active], rtol=1e-6, atol=1e-9)
    assert active.any() and not found[~active].any()


def test_fixed_guidance_is_a_gradient_and_the_cap_is_not():
    x, t = points(PAPER["triple"].mixture, 0.6, n=400), 0.6
    curl = []
    for field in (Guided(PAPER["triple"], 3.0), Guided(PAPER["triple"], 3.0, 1.1)):
        _, h = linearise(field, x, t)
        curl.append(float(((h - h.mT).norm(dim=(1, 2)) / h.norm(dim=(1, 2))).max()))
    assert curl[0] < 1e-12 < 0.05 < curl[1]


@pytest.mark.parametrize("condition", [TRIPLE, CONDITIONS["one covariance"], CONDITIONS["covariances"]])
def test_at_scale_one_the_law_of_the_samples_is_the_conditional_density(condition):
    d = condition.mixture.means.shape[1]
    x, log_q = pushforward(Guided(condition), noise(40, d, seed=5), graded_times(80, 0.3))
    torch.testing.assert_close(log_q, condition.conditional.log_density(x, 1.0), rtol=0, atol=1e-5)


@pytest.mark.parametrize(("gamma", "kl"), [(math.inf, 1.045), (1.1, 0.118)], ids=["fixed", "capped"])
def test_divergence_from_the_condition_is_exact_up_to_sampling(gamma, kl):
    x, log_q = pushforward(Guided(TRIPLE, 3.0, gamma), noise(2000, 2, seed=7), graded_times(20, 0.25))
    ratio = log_q - TRIPLE.conditional.log_density(x, 1.0)
    assert abs(float(ratio.mean()) - kl) < 4 * float(ratio.std()) / math.sqrt(len(ratio))


# The first step, and the release of the cap.


@pytest.mark.parametrize(("scale", "gamma"), [(3.0, math.inf), (3.0, 1.1), (1.05, 1.1), (9.0, 1.5)])
def test_the_first_step_is_clipped_to_the_smaller_of_scale_and_gamma(scale, gamma):
    """v(x, 0) = m - x with one guided mean m for every x; at least with the anchor E[data]."""
    least = min(scale, gamma)
    for condition in (*CONDITIONS.values(), *PAPER.values()):
        mean, x = condition.mixture.mean, 4 * noise(9, condition.mixture.means.shape[1])
        found = x + Guided(condition, scale, gamma, mean).velocity(x, 0.0)
        assert agree(found, (mean + least * (condition.conditional.mean - mean)).expand_as(x), 20.0)
    single = PAPER["single"]
    assert agree(Guided(single, scale, gamma).velocity(ORIGIN, 0.0)[0], least * single.mixture.means[0])


def test_the_papers_first_step_needs_a_centred_mixture():
    mu, skewed = IMBALANCED.means[0], Condition(IMBALANCED, (0,))
    off = Guided(skewed, 3.0).velocity(ORIGIN, 0.0)[0] - 3 * mu
    assert agree(off, -2 * IMBALANCED.mean, 3 * mu)
    assert IMBALANCED.mean.norm().item() == pytest.approx(0.09 * math.sin(math.pi / 8), rel=1e-12)
    assert Guided(PAPER["pair"], 3.0, 1.1).beta(ORIGIN, 0.0).item() == pytest.approx(0.10054, abs=5e-6)


@pytest.mark.parametrize("t", TIMES)
@every_paper_condition
def test_gap_stays_below_its_envelope(condition, t):
    x = points(condition.mixture, t, n=400)
    envelope = gap_envelope(condition.mixture, t)
    gap = condition.delta(x, t).norm(dim=-1)
    assert (gap <= envelope * condition.log_complement(x, t).exp() * (1 + 1e-12)).all()
    later = gap_envelope(condition.mixture, torch.linspace(t, 1, 50, dtype=torch.float64))
    assert (later.diff() < 0).all() and later[-1] == 0


def test_the_papers_certificate_first_holds_beyond_its_own_grid():
    for scale, gamma, first in ((3.0, 1.1, 0.9952), (9.0, 1.15, 0.9971)):
        odds = math.sqrt(2 * (scale - 1) / (gamma - 1) - 1) / 0.03
        t = odds / (1 + odds)
        assert round(t, 4) == first
        due = (gamma - 1) / (scale - 1)
        assert gap_envelope(PAPER["single"].mixture, t).item() == pytest.approx(due, rel=1e-9)


def test_certificates_along_the_papers_runs():
    """n = 2000 capped Euler runs with scale 3, gamma 1.1; 0.506, 0.836, 0.892 measured with n = 4000."""
    n, share = 2000, {"single": 0.51, "pair": 0.84, "triple": 0.89}
    for name, condition in PAPER.items():
        x, field = noise(n, 2, seed=3), Guided(condition, 3.0, 1.1)
        for i in range(50):
            t = i / 50
            by_posterior = release_by_posterior(condition, x, t, 3.0, 1.1)
            released = field.beta(x, t) == 2.0
            assert not release_by_envelope(condition, x, t, 3.0, 1.1).any()  # empty on the whole grid
            assert (released | ~by_posterior).all()  # a certificate never lies
            if i == 40:
                p = share[name]
                assert abs(by_posterior.double().mean() - p) < 4 * math.sqrt(p * (1 - p) / n)
            if i >= 45:
                assert by_posterior.all()
            x = x + field.velocity(x, t) / 50


def test_the_papers_certificate_implies_the_sharper_one():
    condition, x = PAPER["triple"], 3 * noise(300, 2)
    for t in (0.99, 0.995, 0.997, 0.999):
        by_envelope = release_by_envelope(condition, x, t, 3.0, 1.1)
        assert (release_by_posterior(condition, x, t, 3.0, 1.1) | ~by_envelope).all()
        assert ((Guided(condition, 3.0, 1.1).beta(x, t) == 2.0) | ~by_envelope).all()
    assert by_envelope.any()


# The variance that Euler loses.


def test_euler_keeps_057_of_the_variance_in_fifty_steps():
    ratio = euler_variance_ratio(uniform(50), 0.03).item()
    assert abs(ratio - 0.57065062097524040673) < 1e-15
    with pytest.raises(ValueError, match="a point mass has no variance"):
        euler_variance_ratio(uniform(5), 0.0)


@pytest.mark.parametrize(
    "grid", [uniform(50), uniform(20) ** 2, torch.tensor([0.0, 0.2, 0.3, 0.9, 1.0]).double()]
)
def test_euler_ratio_has_one_factor_per_eigenvector_and_the_mean_is_exact(grid):
    mixture = Mixture(noise(1, 3), cov=covariances(1, 3)[0])
    x = start = noise(6, 3, seed=1)
    rest = mixture.means * 0
    for i in range(len(grid) - 1):
        t, h = float(grid[i]), grid[i + 1] - grid[i]
        # Affine steps: the noise 0 stays on the mean t mu, and the rest is a linear image of the noise.
        x, rest = x + h * mixture.velocity(x, t), rest + h * mixture.velocity(rest, t)
        assert agree(rest, grid[i + 1] * mixture.means)
    values, axes = torch.linalg.eigh(mixture.cov)
    gain = (x - mixture.mean) @ axes / (start @ axes)
    assert agree(gain**2 / values, euler_variance_ratio(grid, values.sqrt()).expand(6, 3), 100.0)


def euler_loss(std):
    """2 + L: -n log R of n uniform steps, to leading order."""
    return 1 + math.pi * (1 + std**2) / (4 * std)


@pytest.mark.parametrize("std", [0.03, 0.1, 0.7])
def test_euler_ratio_meets_its_limit_to_third_order(std):
    error = [
        float(euler_variance_ratio(uniform(n), std)) - math.exp(-euler_loss(std) / n) for n in (2000, 4000)
    ]
    assert error[0] / error[1] == pytest.approx(8.0, rel=0.05)


def test_one_percent_of_bias_takes_thousands_of_steps():
    for std, steps in ((0.03, 2700), (0.1, 900), (1.0, 260)):
        needed = -euler_loss(std) / math.log(0.99)
        assert needed == pytest.approx(steps, rel=0.02)
        assert euler_variance_ratio(uniform(round(needed)), std).item() == pytest.approx(0.99, abs=2e-4)
