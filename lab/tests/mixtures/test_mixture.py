"""The fields of a mixture against autograd, quadrature and torch.distributions; its forms."""

import math

import pytest
import torch
from calculus import (
    MIXTURES,
    agree,
    circle,
    covariances,
    every_mixture,
    every_time,
    gradient,
    noise,
    points,
    random,
    steepness,
    weights,
)
from torch.distributions import Categorical, MixtureSameFamily, MultivariateNormal

from meancap_lab.mixtures import Condition, Mixture


def full(mixture):
    """S_k, (K, d, d)."""
    k, d = mixture.means.shape
    cov = mixture.cov
    return (
        cov.expand(k, d, d) if cov.ndim > 1 else cov.reshape(-1, 1, 1) * torch.eye(d).double().expand(k, d, d)
    )


@every_mixture
@every_time
def test_density_is_the_gaussian_mixture_at_time_t(mixture, t):
    d = mixture.means.shape[1]
    cov = (1 - t) ** 2 * torch.eye(d, dtype=torch.float64) + t**2 * full(mixture)
    oracle = MixtureSameFamily(Categorical(mixture.weights), MultivariateNormal(t * mixture.means, cov))
    x = points(mixture, t)
    assert agree(mixture.log_density(x, t), oracle.log_prob(x))


@every_mixture
@every_time
def test_score_is_the_gradient_of_the_log_density(mixture, t):
    x = points(mixture, t)
    assert agree(
        mixture.score(x, t), gradient(lambda y: mixture.log_density(y, t), x), steepness(mixture, x, t)
    )


@every_mixture
@every_time
def test_tweedie_joins_mean_score_and_velocity(mixture, t):
    x = points(mixture, t)
    m, v, score = mixture.posterior_mean(x, t), mixture.velocity(x, t), mixture.score(x, t)
    size = steepness(mixture, x, t)
    assert agree((1 - t) ** 2 * score, t * m - x, (1 - t) ** 2 * size + float(x.abs().max()))
    assert agree((1 - t) * v, m - x, x)
    assert agree(t * v, x + (1 - t) * score, size)


@every_time
def test_the_mean_is_that_of_the_posterior_by_quadrature(t):
    mixture = MIXTURES["line"]
    x = points(mixture, t, n=9)
    data = torch.linspace(-12, 12, 40001, dtype=torch.float64)
    likelihood = -0.5 * ((x - t * data) / (1 - t)) ** 2
    weight = (mixture.log_density(data[:, None], 1.0) + likelihood).softmax(-1)
    assert agree(mixture.posterior_mean(x, t)[:, 0], weight @ data, 12.0)


@every_mixture
def test_at_the_start_the_mean_is_the_mean_of_the_data_for_every_x(mixture):
    x = 5 * noise(20, mixture.means.shape[1])
    mean = mixture.mean.expand_as(x)
    assert agree(mixture.posterior_mean(x, 0.0), mean)
    assert agree(mixture.velocity(x, 0.0), mean - x)


@every_mixture
def test_at_the_end_the_mean_is_x_to_the_bit_and_the_velocity_is_x(mixture):
    x = points(mixture, 1.0)
    assert torch.equal(mixture.posterior_mean(x, 1.0), x)
    assert torch.equal(mixture.velocity(x, 1.0), x)


@every_time
def test_point_masses_are_the_limit_of_narrow_components(t):
    means = noise(4, 3, seed=8)
    x = points(Mixture(means, std=0.0), t)
    exact, narrow = Mixture(means, std=0.0), Mixture(means, std=1e-9)
    # The relative change of C is t^2 1e-18 / (1 - t)^2 <= 1e-15, times exponents of a few thousand.
    assert torch.allclose(exact.velocity(x, t), narrow.velocity(x, t), rtol=1e-9, atol=1e-9)
    assert agree(exact.posterior_mean(x, t), exact.responsibilities(x, t) @ means)
    with pytest.raises(ValueError, match="no density at t = 1"):
        exact.velocity(x, 1.0)


@every_time
def test_responsibilities_are_the_papers_softmax_on_a_circle_only(t):
    def softmax(mixture, x):
        c = (1 - t) ** 2 + t**2 * 0.3**2
        return (mixture.weights.log() + t / c * x @ mixture.means.T).softmax(-1)

    on, off = Mixture(circle(7), weights(7), std=0.3), Mixture(circle(7) + 1, weights(7), std=0.3)
    x = points(on, t)
    assert agree(on.responsibilities(x, t), softmax(on, x), steepness(on, x, t))
    assert not torch.allclose(off.responsibilities(x, t), softmax(off, x), atol=1e-3 * t)


@every_mixture
@every_time
def test_given_is_bayes_rule(mixture, t):
    members = [2, 0]
    x = points(mixture, t)
    posterior = mixture.responsibilities(x, t)[:, members].sum(-1)
    ratio = mixture.given(members).log_density(x, t) - mixture.log_density(x, t)
    # One unit of the log densities is lost in their difference.
    size = posterior * mixture.log_density(x, t)
    assert agree(ratio.exp() * mixture.weights[members].sum(), posterior, size)


def test_one_time_per_point_equals_one_call_per_point():
    for mixture in MIXTURES.values():
        x, t = noise(5, mixture.means.shape[1]), torch.tensor([0.0, 0.2, 0.5, 0.9, 1.0], dtype=torch.float64)
        for f in (mixture.velocity, mixture.log_density, mixture.posterior_mean):
            assert agree(f(x, t), torch.stack([f(p, float(s)) for p, s in zip(x, t, strict=True)]))


def test_all_ways_to_state_one_covariance_are_equal():
    means, eye = noise(4, 3, seed=9), torch.eye(3, dtype=torch.float64)
    forms = [
        Mixture(means, std=0.3),
        Mixture(means, std=torch.full((4,), 0.3)),
        Mixture(means, cov=0.09),
        Mixture(means, cov=torch.full((4,), 0.09)),
        Mixture(means, cov=0.09 * eye),
        Mixture(means, cov=(0.09 * eye).expand(4, 3, 3)),
    ]
    x = points(forms[0], 0.6)
    for mixture in forms[1:]:
        # 0.3 as a float32 tensor is off by 4e-8; all others by rounding.
        assert torch.allclose(mixture.velocity(x, 0.6), forms[0].velocity(x, 0.6), rtol=1e-6, atol=1e-6)
    assert agree(forms[4].velocity(x, 0.6), forms[0].velocity(x, 0.6), 100.0)


@every_mixture
def test_samples_have_the_moments_of_the_mixture(mixture):
    n = 20000
    data = mixture.sample(n, random(11))
    centred = mixture.means - mixture.mean
    cov = torch.einsum(
        "k,kij->ij", mixture.weights, full(mixture) + centred[:, :, None] * centred[:, None, :]
    )
    assert (((data.mean(0) - mixture.mean) / (cov.diagonal() / n).sqrt()).abs() < 4.5).all()
    products = (data - mixture.mean)[:, :, None] * (data - mixture.mean)[:, None, :]
    assert (((products.mean(0) - cov) / (products.std(0) / math.sqrt(n))).abs() < 4.5).all()
    assert torch.equal(data, mixture.sample(n, random(11)))


@pytest.mark.parametrize("t", [0.0, 0.5, 0.99, 1.0])
def test_float32_stays_float32_and_keeps_its_digits(t):
    x = noise(30, 2, seed=1)
    single, double = (
        Condition(Mixture(noise(4, 2).to(kind), std=0.2), (0, 2)) for kind in (torch.float32, torch.float64)
    )
    v, gap = single.mixture.velocity(x.float(), t), single.delta(x.float(), t)
    assert v.dtype == gap.dtype == single.predict(x.float(), t).m_c.dtype == torch.float32
    # Exponents as large as x^2 / C round to float32, and that error passes to the responsibilities.
    exponent = float((x.abs().max() + 3) ** 2 / ((1 - t) ** 2 + t**2 * 0.04))
    rounding = 10 * exponent * torch.finfo(torch.float32).eps
    assert torch.allclose(v.double(), double.mixture.velocity(x, t), rtol=0, atol=3 * rounding)
    assert torch.allclose(gap.double(), double.delta(x, t), rtol=rounding, atol=1e-30)


EYE = torch.eye(2, dtype=torch.float64)


@pytest.mark.parametrize(
    ("build", "lesson"),
    [
        (lambda: Mixture(circle(4)), "either std or cov"),
        (lambda: Mixture(circle(4), std=0.1, cov=0.01), "either std or cov"),
        (lambda: Mixture(circle(4)[0], std=0.1), r"means \(K, d\)"),
        (lambda: Mixture(circle(4), std=-0.1), "std is one number >= 0"),
        (lambda: Mixture(circle(4), [1, 1, 1, -1], std=0.1), "number >= 0"),
        (lambda: Mixture(circle(4), [1, 1, 1], std=0.1), "each of 4 means"),
        (lambda: Mixture(circle(4), [0, 0, 0, 0], std=0.1), "not all 0"),
        (lambda: Mixture(circle(4), cov=torch.ones(3)), "got shape"),
        (lambda: Mixture(circle(4), cov=torch.tensor([[1.0, 0.5], [0.0, 1.0]])), "symmetric"),
        (lambda: Mixture(circle(4), cov=EYE - 2), "no negative eigenvalue"),
        (lambda: Mixture(circle(4), cov=covariances(4, 2) - EYE), "no negative eigenvalue"),
        (lambda: Mixture(circle(4), std=0.1).given([]), "at least one"),
        (lambda: Mixture(circle(4), std=0.1).given([1, 1]), "distinct"),
        (lambda: Mixture(circle(4), std=0.1).given([4]), "below 4"),
        (lambda: Mixture(circle(4), std=0.1).velocity(noise(5, 2), 1.5), "t runs from 0"),
        (lambda: Mixture(circle(4), std=0.1).velocity(noise(5, 3), 0.5), r"x \(..., 2\)"),
        (lambda: Mixture(circle(4), std=0.1).velocity(noise(5, 2), torch.rand(4)), "one per point"),
        (lambda: MIXTURES["unequal widths"].std, "one std for all components"),
    ],
)
def test_a_mixture_refuses_with_a_sentence(build, lesson):
    with pytest.raises(ValueError, match=lesson):
        build()
