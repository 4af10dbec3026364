"""Mixtures on a circle: the theorems, the conditions they need, and where they fail without them."""

import math

import pytest
import torch
from calculus import IMBALANCED, OCTAGON, PAPER, agree, circle, every_time, gradient, noise, random, weights

from meancap.lab import Condition, Mixture
from meancap.lab.theory import (
    Guided,
    angular_force,
    branch_bias,
    branch_time,
    centre_curvature,
    ray_profile,
    splitting_eigenvalue,
)

ORIGIN = torch.zeros(1, 2, dtype=torch.float64)


def variance(t, std=0.03):
    return (1 - t) ** 2 + t**2 * std**2


def random_circle(seed):
    """2 to 11 components at random angles, with random weights and width."""
    generator = random(seed)
    k, std = 2 + seed % 10, 0.02 + float(torch.rand((), generator=generator))
    angle = 2 * math.pi * torch.rand(k, generator=generator, dtype=torch.float64)
    return Mixture(1.5 * torch.stack([angle.cos(), angle.sin()], -1), weights(k, seed), std=std)


@pytest.mark.parametrize("seed", range(30))
def test_confidence_rises_and_density_falls_beyond_the_mean(seed):
    mixture = random_circle(seed)
    for t in (1e-3, 0.2, 0.7, 0.999, 1.0):
        s = torch.linspace(0, 12, 100, dtype=torch.float64)
        ray, c = ray_profile(mixture, 0, s, t), variance(t, mixture.std)
        assert (ray.posterior_slope >= 0).all() and (ray.posterior_curvature <= 0).all()
        # The bound -(s - t r)/C is met up to the rounding of terms of that size, exactly where pi_0 = 1.
        rounding = 100 * torch.finfo(s.dtype).eps * (s + t * 1.5) / c
        assert (ray.density_slope <= -(s - t * 1.5) / c + rounding).all()
        beyond = s > t * 1.5 + 1e-6
        assert (ray.density_slope[beyond] < 0).all()


@pytest.mark.parametrize("seed", range(5))
@every_time
def test_ray_slopes_are_derivatives(seed, t):
    mixture = random_circle(seed)
    u = mixture.means[0] / 1.5
    s = torch.linspace(0, 4, 30, dtype=torch.float64)
    ray, c = ray_profile(mixture, 0, s, t), variance(t, mixture.std)

    def log_density(r):
        return mixture.log_density(r[:, None] * u, t)

    def log_posterior(r):
        return mixture.responsibilities(r[:, None] * u, t)[:, 0].log()

    assert agree(ray.log_density, log_density(s))
    assert agree(ray.log_posterior, log_posterior(s), ray.log_density)
    assert agree(ray.density_slope, gradient(log_density, s), 4 / c)
    assert agree(ray.posterior_slope, gradient(log_posterior, s), 4 / c)
    assert agree(
        ray.posterior_curvature,
        gradient(lambda r: ray_profile(mixture, 0, r, t).posterior_slope, s),
        16 / c**2,
    )


def test_far_out_confidence_is_one_and_density_zero():
    s = torch.tensor([2.0, 5.0, 20.0], dtype=torch.float64)
    ray = ray_profile(OCTAGON, 0, s, 0.6)
    assert (ray.log_posterior.diff() > 0).all() and ray.log_posterior[-1] > -1e-9
    assert (ray.log_density.diff() < 0).all() and ray.log_density[-1] < -1000


def test_the_ray_needs_a_component_with_weight_and_a_circle():
    with pytest.raises(ValueError, match="its weight is 0"):
        ray_profile(Mixture(circle(3), [0, 1, 1], std=0.1), 0, torch.ones(1).double(), 0.5)
    with pytest.raises(ValueError, match="one sphere"):
        ray_profile(Mixture(circle(3) + 1, std=0.1), 0, torch.ones(1).double(), 0.5)


def centre_force(condition, t, scale):
    """(v_g - v_c)(0) = (g - 1) (1 - t)/C (mu_A - mu)."""
    gap = condition.conditional.mean - condition.mixture.mean
    return (scale - 1) * (1 - t) / variance(t, condition.mixture.std) * gap


@every_time
@pytest.mark.parametrize("seed", range(4))
def test_centre_force_and_curvature_are_those_of_the_field_at_zero(seed, t):
    condition = Condition(random_circle(seed + 1), (0, 2))
    size = 1 / variance(t, condition.mixture.std) ** 2
    jet = condition.jet(ORIGIN, t)
    assert agree(centre_force(condition, t, 3.0), 2 * jet.force[0], size)
    assert agree(centre_curvature(condition, t, 3.0), 2 * jet.grad_force[0], size)


@every_time
@pytest.mark.parametrize("k", [2, 3, 5, 8])
def test_given_one_of_k_equal_components_the_centre_moves_out_and_contracts(k, t):
    condition = Condition(Mixture(circle(k, 1.5), std=0.03), (0,))
    c, mu = variance(t), condition.mixture.means[0]
    bend = 2 * t * (1 - t) * 1.5**2 / c**2
    assert agree(centre_force(condition, t, 3.0), 2 * (1 - t) / c * mu, 1 / c)
    curvature = centre_curvature(condition, t, 3.0)
    assert agree(curvature.trace(), -bend, bend)
    eye = torch.eye(2, dtype=torch.float64)
    isotropic = -bend / 2 * eye
    if k == 2:  # the paper says only "rotationally symmetric"; a pair has rank one
        assert agree(curvature, -bend * torch.outer(eye[0], eye[0]))
        assert agree((curvature - isotropic).abs(), bend / 2 * eye)
    else:
        assert agree(curvature, isotropic)


def test_centre_divergence_needs_only_a_centred_mixture():
    # Weights 1, 2, 1, 2 on a square are centred but not equal.
    condition = Condition(Mixture(circle(4), [1, 2, 1, 2], std=0.1), (0,))
    t, c = 0.4, variance(0.4, 0.1)
    assert agree(centre_curvature(condition, t, 3.0).trace(), -2 * t * (1 - t) / c**2)


@every_time
def test_splitting_of_a_quarter_turn_pair_does_not_depend_on_the_scale(t):
    condition = Condition(OCTAGON, (0, 2))
    slope = (t * 0.03**2 - (1 - t)) / variance(t)
    closed = slope + t * (1 - t) / (2 * variance(t) ** 2)
    u = torch.tensor([1.0, -1.0], dtype=torch.float64) / math.sqrt(2)
    for scale in (1.0, 3.0, 9.0):
        assert agree(splitting_eigenvalue(condition, t, scale), closed, scale / variance(t) ** 2)
        field = Guided(condition, scale).jacobian(ORIGIN, t)[0]
        assert agree(field @ u, closed * u, scale / variance(t) ** 2)


@pytest.mark.parametrize("scale", [1.0, 3.0])
def test_splitting_in_general_is_the_slope_of_the_field_between_the_branches(scale):
    condition = Condition(random_circle(5), (3, 1))
    first, second = condition.conditional.means
    u = (first - second) / (first - second).norm()
    found = splitting_eigenvalue(condition, 0.5, scale)
    assert agree(found, u @ Guided(condition, scale).jacobian(ORIGIN, 0.5)[0] @ u)


def test_branch_time_of_the_paper_is_one_half():
    condition = Condition(OCTAGON, (0, 2))
    t = branch_time(condition)
    assert round(t, 4) == 0.5
    # (t s^2 - (1 - t)) C + t (1 - t) r^2 / 2 = 0 at the crossing; (1 - t)^2 = t/2 for point masses.
    assert abs((t * 0.03**2 - (1 - t)) * variance(t) + t * (1 - t) / 2) < 1e-14
    assert abs(branch_time(Condition(Mixture(circle(), std=0.0), (0, 2))) - 0.5) < 1e-14
    assert branch_time(condition, 9.0) == pytest.approx(t, abs=1e-12)
    assert splitting_eigenvalue(condition, t - 1e-6) < 0 < splitting_eigenvalue(condition, t + 1e-6)


def shell(rho, phi):
    """Points at distance rho, phi counter-clockwise from the middle of {0, 1, 2}."""
    angle = math.pi / 4 + phi
    return rho * torch.stack([angle.cos(), angle.sin()], -1)


@pytest.mark.parametrize("rho", [0.05, 0.5, 1.0, 3.0])
@pytest.mark.parametrize("t", [0.02, 0.3, 0.6, 0.9])
def test_on_every_shell_the_posterior_falls_away_from_the_middle_branch(rho, t):
    condition = Condition(Mixture(circle(), std=0.2), (0, 1, 2))
    phi = torch.linspace(0.01, math.pi - 0.01, 60, dtype=torch.float64)
    x = shell(rho, phi)

    def odds(angle):
        kappa, q = t * rho / variance(t, 0.2), 1 / math.sqrt(2)
        a, b = kappa * angle.cos(), kappa * angle.sin()
        inside = a.exp() + 2 * (q * a).exp() * (q * b).cosh()
        return inside.log() - ((-a).exp() + 2 * (-q * a).exp() * (q * b).cosh() + 2 * b.cosh()).log()

    found = condition.log_posterior(x, t) - condition.log_complement(x, t)
    size = 2 * (rho + t) ** 2 / variance(t, 0.2)
    assert agree(found, odds(phi), size)
    # Proved to pi/4 by the paper and to pi/2 by its proof; true to pi on this grid.
    assert (gradient(odds, phi) < 0).all()
    force = angular_force(condition, x, t, 3.0)
    slope = gradient(lambda p: condition.log_posterior(shell(rho, p), t), phi)
    assert agree(force, 2 * (1 - t) / (t * rho) * slope, size / t / rho)
    assert (force < 0).all()
    assert agree(force, -angular_force(condition, shell(rho, -phi), t, 3.0), size / t / rho)


@pytest.mark.parametrize("seed", range(60))
def test_with_a_symmetric_complement_the_heavier_branch_has_the_higher_posterior(seed):
    w = weights(5, seed)
    heavy, light = w[:2].max(), w[:2].min()
    mixture = Mixture(circle(), [heavy, light, w[2], w[3], w[4], w[4], w[3], w[2]], std=0.03 + 0.01 * seed)
    for t in (0.01, 0.2, 0.5, 0.8, 0.95):
        assert branch_bias(Condition(mixture, (0, 1)), t) > 0
    # At t = 1 both posteriors may round to one.
    assert branch_bias(Condition(mixture, (0, 1)), 1.0) >= 0


def test_without_symmetry_the_heavier_branch_can_have_the_lower_posterior():
    w = (0.020, 0.016, 0.012, 0.223, 0.001, 0.033, 0.033, 0.661)
    bias = branch_bias(Condition(Mixture(circle(), w, std=0.382), (0, 1)), 0.902)
    assert bias == pytest.approx(-1.556, abs=5e-4)


def test_the_bias_of_the_papers_pair_is_small_and_early():
    times = [i / 100 for i in range(1, 101)]
    bias = torch.stack([branch_bias(PAPER["pair"], t) for t in times])
    assert bias.max().item() == pytest.approx(0.083, abs=5e-4)
    assert times[int(bias.argmax())] == 0.65
    assert bias[-2:].max() < 1e-15 and bias.min() >= 0


def test_pairs_are_needed_where_pairs_are_meant():
    for f in (branch_bias, splitting_eigenvalue):
        with pytest.raises(ValueError, match="two branches"):
            f(PAPER["triple"], 0.5)
    assert agree(IMBALANCED.mean, 0.045 * (circle()[0] - circle()[1]))
    with pytest.raises(ValueError, match="one sphere"):
        centre_curvature(Condition(Mixture(noise(4, 2), std=0.1), (0,)), 0.5, 3.0)
    with pytest.raises(ValueError, match="one std"):
        centre_curvature(Condition(Mixture(circle(), std=weights(8)), (0,)), 0.5, 3.0)
