"""Potential, energy, posterior growth and curvature: every identity against autograd."""

import pytest
import torch
from calculus import (
    MIXTURES,
    PAPER,
    agree,
    along,
    circle,
    every_condition,
    every_mixture,
    every_time,
    gradient,
    jacobian,
    noise,
    points,
    steepness,
    weights,
)

from meancap.lab import Condition, Mixture
from meancap.lab.mixture import trace
from meancap.lab.theory import Guided, posterior_growth, potential, tilted_log_density

every_scale = pytest.mark.parametrize("scale", [0.0, 1.0, 3.0])


def size_of(mixture, x, t):
    """Exponents of the components, x^2 / C, over t: the largest numbers in a potential."""
    return steepness(mixture, x, t) * float(x.abs().max() + mixture.means.abs().max()) / t


def guided(condition, x, t, scale):
    v_c, v_u = condition.velocities(x, t)
    return v_u + scale * (v_c - v_u)


def density_rate(mixture, x, t):
    """d/dt log p_t(x) at fixed x, by the equation of continuity."""
    return -mixture.divergence(x, t) - (mixture.velocity(x, t) * mixture.score(x, t)).sum(-1)


def potential_rate(mixture, x, t):
    """dPhi/dt at fixed x."""
    fixed = -((x**2).sum(-1) / 2 + mixture.log_density(x, t)) / t**2
    return fixed + (1 - t) / t * density_rate(mixture, x, t)


def cfg_potential(condition, x, t, scale):
    """Phi_c + (g - 1) (1 - t)/t h + K_t, with the constant K_t = -(g - 1) (1 - t)/t log p(A)."""
    tilt = (scale - 1) * (1 - t) / t * (condition.log_posterior(x, t) - condition.log_prior)
    return potential(condition.conditional, x, t) + tilt


def energy_terms(condition, x, t, scale, scale_rate=0.0):
    """dU/dt at fixed x, and -|v_g|^2; a schedule g(t) with this slope injects -g' (Phi_c - Phi_u) more."""
    rate_c, rate_u = (potential_rate(m, x, t) for m in (condition.conditional, condition.mixture))
    gap = (1 - t) / t * (condition.log_posterior(x, t) - condition.log_prior)
    injection = -(1 - scale) * rate_u - scale * rate_c - scale_rate * gap
    return injection, -(guided(condition, x, t, scale) ** 2).sum(-1)


@every_mixture
@every_time
def test_velocity_is_the_gradient_of_the_potential(mixture, t):
    x = points(mixture, t)
    slope = gradient(lambda y: potential(mixture, y, t), x)
    assert agree(slope, mixture.velocity(x, t), size_of(mixture, x, t))


@every_mixture
@every_time
def test_density_and_potential_rates_are_derivatives_in_time(mixture, t):
    x = points(mixture, t)
    times = torch.full_like(x[:, 0], t)
    size = size_of(mixture, x, t) / (1 - t) / t
    assert agree(density_rate(mixture, x, t), gradient(lambda s: mixture.log_density(x, s), times), size)
    assert agree(potential_rate(mixture, x, t), gradient(lambda s: potential(mixture, x, s), times), size)


@every_condition
@every_time
@every_scale
def test_cfg_potential_is_the_affine_combination_with_its_constant(condition, t, scale):
    x = points(condition.mixture, t)
    phi = cfg_potential(condition, x, t, scale)
    phi_c, phi_u = potential(condition.conditional, x, t), potential(condition.mixture, x, t)
    size = 4 * size_of(condition.mixture, x, t)
    assert agree(phi, (1 - scale) * phi_u + scale * phi_c, size)
    slope = gradient(lambda y: cfg_potential(condition, y, t, scale), x)
    assert agree(slope, guided(condition, x, t, scale), size)


@every_condition
@every_time
@every_scale
def test_the_energy_changes_by_injection_and_dissipation_along_the_flow(condition, t, scale):
    x, slope = points(condition.mixture, t), 0.7

    def energy(y, s):
        return -cfg_potential(condition, y, s, scale + slope * (s - t))

    size = 4 * size_of(condition.mixture, x, t) / (1 - t) / t
    change = along(energy, x, t, guided(condition, x, t, scale))
    assert agree(sum(energy_terms(condition, x, t, scale, slope)), change, size)


def test_energy_need_not_decrease():
    condition, x, rates = PAPER["single"], noise(200, 2), []
    for i in range(50):
        if i > 0:
            rates.append(sum(energy_terms(condition, x, i / 50, 3.0)))
        x = x + guided(condition, x, i / 50, 3.0) / 50
    rate = torch.stack(rates)
    assert rate.min() < -100 and rate.max() > 5


@every_condition
@every_time
@every_scale
def test_posterior_growth_is_the_derivative_along_the_flow(condition, t, scale):
    x = points(condition.mixture, t)
    growth = posterior_growth(condition, x, t, scale)
    size = 4 * size_of(condition.mixture, x, t) / (1 - t) / t
    change = along(condition.log_posterior, x, t, guided(condition, x, t, scale))
    assert agree(sum(growth), change, size)
    times = torch.full_like(x[:, 0], t)
    assert agree(growth.explicit, gradient(lambda s: condition.log_posterior(x, s), times), size)
    ascent = condition.posterior_score(x, t)
    assert agree(growth.guidance, (scale - 1) * (1 - t) / t * (ascent**2).sum(-1), size)
    assert (growth.guidance * (scale - 1) >= 0).all()


@every_condition
def test_growth_is_regular_at_both_ends(condition):
    x = points(condition.mixture, 0.5)
    for t in (0.0, 1.0):
        growth = posterior_growth(condition, x, t, 3.0)
        assert all(term.isfinite().all() for term in growth) and not growth.guidance.any()
    # At t = 0 the posterior is the prior for every x, and turns with slope <x, E[data | A] - E[data]>.
    shift = condition.conditional.mean - condition.mixture.mean
    assert agree(posterior_growth(condition, x, 0.0, 3.0).explicit, x @ shift, x**2)


@every_condition
@every_time
def test_guidance_adds_a_multiple_of_the_force(condition, t):
    x = points(condition.mixture, t)
    v_c, _ = condition.velocities(x, t)
    force, size = 2 * condition.force(x, t), 4 * size_of(condition.mixture, x, t)
    assert agree(force, guided(condition, x, t, 3.0) - v_c, size)
    assert agree(force, Guided(condition, 3.0).velocity(x, t) - v_c, size)


@every_condition
@every_time
@every_scale
def test_tilted_density_has_the_guided_score(condition, t, scale):
    x = points(condition.mixture, t)
    slope = gradient(lambda y: tilted_log_density(condition, y, t, scale), x)
    score_u, score_c = condition.mixture.score(x, t), condition.conditional.score(x, t)
    size = 4 * size_of(condition.mixture, x, t)
    assert agree(slope, (1 - scale) * score_u + scale * score_c, size)
    log_c, log_u = condition.conditional.log_density(x, t), condition.mixture.log_density(x, t)
    assert agree(tilted_log_density(condition, x, t, scale), (1 - scale) * log_u + scale * log_c, size)


@every_condition
@every_time
def test_guidance_changes_the_jacobian_by_a_hessian_and_a_difference_of_covariances(condition, t):
    x = points(condition.mixture, t)
    shift = condition.jet(x, t).grad_force
    size = 2 * (size_of(condition.mixture, x, t) * t) ** 2
    assert agree(t * shift, (1 - t) * jacobian(lambda y: condition.posterior_score(y, t), x), size)
    cov_c, cov_u = (m.posterior_covariance(x, t) for m in (condition.conditional, condition.mixture))
    assert agree((1 - t) ** 3 * shift, t * (cov_c - cov_u), (1 - t) ** 3 * size + float(cov_u.abs().max()))


@every_time
@pytest.mark.parametrize("d", [2, 4])
def test_on_a_sphere_guidance_contracts_where_the_conditional_centre_is_farther_out(t, d):
    """div(v_g - v_c) = (g - 1) t (1 - t)/C^2 (|mu|^2 - |mu_A|^2), the means of mu_k at x."""
    means = 1.3 * torch.nn.functional.normalize(noise(6, d, seed=d), dim=-1)
    condition = Condition(Mixture(means, weights(6), std=0.25), (1, 4))
    x = points(condition.mixture, t)
    mu_c, mu_u = (m.responsibilities(x, t) @ m.means for m in (condition.conditional, condition.mixture))
    gain = t * (1 - t) / ((1 - t) ** 2 + t**2 * 0.25**2) ** 2
    closed = gain * ((mu_u - mu_c) * (mu_u + mu_c)).sum(-1)
    assert agree(closed, trace(condition.jet(x, t).grad_force), size_of(condition.mixture, x, t))


def test_given_two_opposite_components_guidance_expands_across_them_and_contracts_along():
    condition = Condition(Mixture(circle(), std=0.25), (0, 4))
    across, along_them = torch.tensor([[0.0, 0.3], [0.3, 0.0]], dtype=torch.float64)
    assert trace(condition.jet(across, 0.5).grad_force) > 0 > trace(condition.jet(along_them, 0.5).grad_force)


def test_a_potential_needs_t_above_zero():
    with pytest.raises(ValueError, match="t > 0"):
        potential(MIXTURES["plane"], noise(3, 2), 0.0)
