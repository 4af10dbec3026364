"""Potential, energy, posterior growth and curvature: every identity against autograd."""

from __future__ import annotations

import pytest
import torch
from calculus import (
    CONDITIONS,
    MIXTURES,
    PAPER,
    TIMES,
    agree,
    along,
    circle,
    gradient,
    jacobian,
    noise,
    points,
    weights,
)
from torch import Tensor

from meancap.lab import Condition, Mixture
from meancap.lab.components import trace
from meancap.lab.theory import (
    Guided,
    cfg_potential,
    circle_divergence_shift,
    density_rate,
    divergence_shift,
    energy_balance,
    gauge_constant,
    jacobian_shift,
    posterior_force,
    posterior_growth,
    potential,
    potential_rate,
    tilted_log_density,
)

every_mixture = pytest.mark.parametrize("mixture", MIXTURES.values(), ids=MIXTURES)
every_condition = pytest.mark.parametrize("condition", CONDITIONS.values(), ids=CONDITIONS)
every_time = pytest.mark.parametrize("t", TIMES)
every_scale = pytest.mark.parametrize("scale", [0.0, 1.0, 3.0])


def size_of(mixture: Mixture, x: Tensor, t: float) -> float:
    """Exponents of the components, x^2 / C, over t: the largest numbers in a potential."""
    least = float((1 - t) ** 2 + t**2 * mixture.variances.min())
    return float((x.abs().max() + mixture.means.abs().max()) ** 2) / least / t


def guided(condition: Condition, x: Tensor, t: float, scale: float) -> Tensor:
    v_c, v_u = condition.velocities(x, t)
    return v_u + scale * (v_c - v_u)


@every_mixture
@every_time
def test_velocity_is_the_gradient_of_the_potential(mixture: Mixture, t: float) -> None:
    x = points(mixture, t)
    assert agree(
        gradient(lambda y: potential(mixture, y, t), x), mixture.velocity(x, t), size_of(mixture, x, t)
    )


@every_mixture
@every_time
def test_density_and_potential_rates_are_derivatives_in_time(mixture: Mixture, t: float) -> None:
    x = points(mixture, t)
    times = torch.full_like(x[:, 0], t)
    size = size_of(mixture, x, t) / (1 - t) / t
    assert agree(density_rate(mixture, x, t), gradient(lambda s: mixture.log_density(x, s), times), size)
    assert agree(potential_rate(mixture, x, t), gradient(lambda s: potential(mixture, x, s), times), size)


@every_condition
@every_time
@every_scale
def test_cfg_potential_is_the_affine_combination_with_its_constant(
    condition: Condition, t: float, scale: float
) -> None:
    x = points(condition.mixture, t)
    phi = cfg_potential(condition, x, t, scale)
    phi_c, phi_u = potential(condition.conditional, x, t), potential(condition.mixture, x, t)
    size = 4 * size_of(condition.mixture, x, t)
    assert agree(phi, (1 - scale) * phi_u + scale * phi_c, size)
    slope = gradient(lambda y: cfg_potential(condition, y, t, scale), x)
    assert agree(slope, guided(condition, x, t, scale), size)
    constant = -(scale - 1) * (1 - t) / t * condition.log_prior
    assert agree(gauge_constant(condition, t, scale), constant)


@every_condition
@every_time
@every_scale
def test_energy_balance_is_the_derivative_along_the_flow(
    condition: Condition, t: float, scale: float
) -> None:
    x = points(condition.mixture, t)
    v, slope = guided(condition, x, t, scale), 0.7

    def energy(y: Tensor, s: Tensor) -> Tensor:
        return -cfg_potential(condition, y, s, scale + slope * (s - t))  # type: ignore[arg-type]

    size = 4 * size_of(condition.mixture, x, t) / (1 - t) / t
    balance = energy_balance(condition, x, t, scale, slope)
    assert agree(balance.injection + balance.dissipation, along(energy, x, t, v), size)
    assert agree(balance.dissipation, -(v**2).sum(-1), size)


def test_energy_need_not_decrease() -> None:
    condition = PAPER["single"]
    x = noise(200, 2)
    rates = []
    for i in range(50):
        if i > 0:
            rates.append(sum(energy_balance(condition, x, i / 50, 3.0)))
        x = x + guided(condition, x, i / 50, 3.0) / 50
    rate = torch.stack(rates)
    assert rate.min() < -100 and rate.max() > 5


@every_condition
@every_time
@every_scale
def test_posterior_growth_is_the_derivative_along_the_flow(
    condition: Condition, t: float, scale: float
) -> None:
    x = points(condition.mixture, t)
    v = guided(condition, x, t, scale)
    growth = posterior_growth(condition, x, t, scale)
    size = 4 * size_of(condition.mixture, x, t) / (1 - t) / t
    assert agree(sum(growth), along(condition.log_posterior, x, t, v), size)
    times = torch.full_like(x[:, 0], t)
    assert agree(growth.explicit, gradient(lambda s: condition.log_posterior(x, s), times), size)
    ascent = condition.posterior_score(x, t)
    assert agree(growth.guidance, (scale - 1) * (1 - t) / t * (ascent**2).sum(-1), size)
    assert (growth.guidance * (scale - 1) >= 0).all()


@every_condition
def test_growth_is_regular_at_both_ends(condition: Condition) -> None:
    x = points(condition.mixture, 0.5)
    for t in (0.0, 1.0):
        assert all(term.isfinite().all() for term in posterior_growth(condition, x, t, 3.0))
        assert not posterior_growth(condition, x, t, 3.0).guidance.any()
    # At t = 0 the posterior is the prior for every x, and turns with slope <x, E[data | A] - E[data]>.
    shift = condition.conditional.mean - condition.mixture.mean
    assert agree(posterior_growth(condition, x, 0.0, 3.0).explicit, x @ shift, x**2)


@every_condition
@every_time
def test_force_is_what_guidance_adds(condition: Condition, t: float) -> None:
    x = points(condition.mixture, t)
    v_c, _ = condition.velocities(x, t)
    force, size = posterior_force(condition, x, t, 3.0), 4 * size_of(condition.mixture, x, t)
    assert agree(force, guided(condition, x, t, 3.0) - v_c, size)
    assert agree(force, Guided(condition, 3.0).velocity(x, t) - v_c, size)


@every_condition
@every_time
@every_scale
def test_tilted_density_has_the_guided_score(condition: Condition, t: float, scale: float) -> None:
    x = points(condition.mixture, t)
    slope = gradient(lambda y: tilted_log_density(condition, y, t, scale), x)
    score_u, score_c = condition.mixture.score(x, t), condition.conditional.score(x, t)
    size = 4 * size_of(condition.mixture, x, t)
    assert agree(slope, (1 - scale) * score_u + scale * score_c, size)
    log_c, log_u = condition.conditional.log_density(x, t), condition.mixture.log_density(x, t)
    assert agree(tilted_log_density(condition, x, t, scale), (1 - scale) * log_u + scale * log_c, size)


@every_condition
@every_time
def test_jacobian_shift_is_a_hessian_and_a_difference_of_covariances(condition: Condition, t: float) -> None:
    x = points(condition.mixture, t)
    shift = jacobian_shift(condition, x, t, 3.0)
    size = 4 * (size_of(condition.mixture, x, t) * t) ** 2
    assert agree(shift, jacobian(lambda y: posterior_force(condition, y, t, 3.0), x), size)
    assert agree(t * shift, 2 * (1 - t) * condition.posterior_hessian(x, t), size)
    cov_c, cov_u = (m.posterior_covariance(x, t) for m in (condition.conditional, condition.mixture))
    assert agree(
        (1 - t) ** 3 * shift, 2 * t * (cov_c - cov_u), (1 - t) ** 3 * size + float(cov_u.abs().max())
    )
    assert agree(divergence_shift(condition, x, t, 3.0), trace(shift))


@every_time
@pytest.mark.parametrize("d", [2, 4])
def test_on_a_sphere_guidance_contracts_where_the_conditional_centre_is_farther_out(t: float, d: int) -> None:
    means = 1.3 * torch.nn.functional.normalize(noise(6, d, seed=d), dim=-1)
    condition = Condition(Mixture(means, weights(6), std=0.25), (1, 4))
    x = points(condition.mixture, t)
    closed = circle_divergence_shift(condition, x, t, 3.0)
    assert agree(closed, divergence_shift(condition, x, t, 3.0), size_of(condition.mixture, x, t))


def test_given_two_opposite_components_guidance_expands_across_them_and_contracts_along() -> None:
    condition = Condition(Mixture(circle(), std=0.25), (0, 4))
    across, along_them = torch.tensor([[0.0, 0.3], [0.3, 0.0]], dtype=torch.float64)
    assert (
        divergence_shift(condition, across, 0.5, 3.0) > 0 > divergence_shift(condition, along_them, 0.5, 3.0)
    )


def test_sphere_formulas_and_potentials_refuse_what_they_do_not_cover() -> None:
    off = Condition(Mixture(circle() + 0.1, std=0.1), (0,))
    with pytest.raises(ValueError, match="one sphere"):
        circle_divergence_shift(off, noise(3, 2), 0.5, 3.0)
    with pytest.raises(ValueError, match="one std"):
        circle_divergence_shift(Condition(Mixture(circle(), std=weights(8)), (0,)), noise(3, 2), 0.5, 3.0)
    with pytest.raises(ValueError, match="t > 0"):
        potential(MIXTURES["plane"], noise(3, 2), 0.0)
