"""Stating a mixture, sampling it, its precision, and what it refuses."""

import math

import pytest
import torch
from calculus import MIXTURES, agree, circle, covariances, noise, points, random

from meancap.lab import Condition, Mixture

every_mixture = pytest.mark.parametrize("mixture", MIXTURES.values(), ids=MIXTURES)


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
    cov = mixture.posterior_covariance(data[:1], 0.0)[0]
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


def test_weights_are_relative():
    mixture = Mixture(circle(4), [1, 2, 3, 2], std=0.1)
    assert torch.equal(mixture.weights, torch.tensor([1, 2, 3, 2], dtype=torch.float64) / 8)
    exact = Mixture(circle(3), [0.7, 0.2, 0.1], std=0.1).weights
    assert agree(exact, torch.tensor([0.7, 0.2, 0.1], dtype=torch.float64))  # and not through float32


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
