"""The gap, the posterior of a condition and their derivatives, also where p(A | x) or p(B | x) underflows."""

import math

import pytest
import torch
from calculus import (
    CONDITIONS,
    MIXTURES,
    PAPER,
    agree,
    every_condition,
    every_time,
    gradient,
    noise,
    points,
    steepness,
)
from mpmath import mp, mpf

from meancap_lab.mixtures import PAIR, SCENES, SINGLE, TRIPLE, Condition, Mixture
from meancap_lab.mixtures.condition import circle


@every_condition
@every_time
def test_means_and_velocities_are_those_of_the_two_mixtures(condition, t):
    x = points(condition.mixture, t)
    size = steepness(condition.mixture, x, t)
    means = [m.posterior_mean(x, t) for m in (condition.conditional, condition.mixture)]
    velocities = [m.velocity(x, t) for m in (condition.conditional, condition.mixture)]
    assert all(agree(a, b, size) for a, b in zip(condition.means(x, t), means, strict=True))
    assert all(agree(a, b, size) for a, b in zip(condition.velocities(x, t), velocities, strict=True))
    assert agree(
        condition.delta(x, t), means[0] - means[1], float(means[0].abs().max()) + (1 - t) ** 2 * size
    )
    assert agree(condition.force(x, t), velocities[0] - velocities[1], size)


@every_condition
@every_time
def test_gap_and_force_are_the_gradient_of_the_log_posterior(condition, t):
    x = points(condition.mixture, t)
    slope = gradient(lambda y: condition.log_posterior(y, t), x)
    size = steepness(condition.mixture, x, t)
    assert agree(condition.posterior_score(x, t), slope, size)
    assert agree(t * condition.force(x, t), (1 - t) * slope, size)
    assert agree(t * condition.delta(x, t), (1 - t) ** 2 * slope, (1 - t) ** 2 * size)


@every_time
def test_gap_is_alpha_times_the_complement_times_the_distance_of_the_two_centres(t):
    condition = CONDITIONS["plane"]
    mixture, x = condition.mixture, points(condition.mixture, t)
    alpha = (1 - t) ** 2 / ((1 - t) ** 2 + t**2 * 0.3**2)
    pi, inside = mixture.responsibilities(x, t), condition.inside
    centre = [
        pi[:, part] @ mixture.means[part] / pi[:, part].sum(-1, keepdim=True) for part in (inside, ~inside)
    ]
    complement = condition.log_complement(x, t).exp()[:, None]
    # Responsibilities inherit the rounding of exponents of size x^2 / C.
    size = steepness(condition.mixture, x, t) * float(x.abs().max())
    assert agree(condition.delta(x, t), alpha * complement * (centre[0] - centre[1]), size)


@every_condition
def test_fields_of_a_condition_are_regular_at_both_ends(condition):
    x = points(condition.mixture, 0.5)
    shift = condition.conditional.mean - condition.mixture.mean
    assert agree(condition.delta(x, 0.0), shift.expand_as(x))
    assert agree(condition.force(x, 0.0), shift.expand_as(x))
    assert agree(condition.log_posterior(x, 0.0), condition.log_prior.expand(len(x)), x**2)
    assert not condition.posterior_score(x, 0.0).any()
    assert not condition.force(x, 1.0).any()
    slope = gradient(lambda y: condition.log_posterior(y, 1.0), x)
    assert agree(condition.posterior_score(x, 1.0), slope, steepness(condition.mixture, x, 1.0))


def exact(condition, x, t):
    """m_c - m_u, log p(A | x), log p(B | x) and grad log p(A | x) with 800 digits, from the definitions."""
    mp.dps = 800
    mixture, d, time = condition.mixture, len(x), mpf(t)
    eye, point = mp.eye(d), mp.matrix(x)
    mass, means, scores = [], [], []
    for k in range(len(mixture.means)):
        s = mp.matrix(mixture.cov.tolist()) if mixture.cov.ndim == 2 else eye * mpf(float(mixture.cov))
        mu = mp.matrix(mixture.means[k].tolist())
        c = (1 - time) ** 2 * eye + time**2 * s
        pull = mp.inverse(c) * (point - time * mu)
        quadratic = ((point - time * mu).T * pull)[0]
        mass.append(mpf(float(mixture.weights[k])) * mp.exp(-quadratic / 2) / mp.sqrt(mp.det(c)))
        means.append(mu + time * s * pull)
        scores.append(-pull)

    def average(values, index):
        return sum((mass[k] * values[k] for k in index), mp.zeros(d, 1)) / sum(mass[k] for k in index)

    inside = list(condition.members)
    every = list(range(len(mass)))
    a, total = sum(mass[k] for k in inside), sum(mass)
    gap = average(means, inside) - average(means, every)
    ascent = average(scores, inside) - average(scores, every)
    return list(gap), mp.log(a / total), mp.log(1 - a / total), list(ascent)


FAR = {
    "inside": (PAPER["triple"], [0.9, 0.95], 0.9),
    "outside": (PAPER["triple"], [-0.9, -0.8], 0.9),
    "far outside": (PAPER["single"], [-5.0, 0.3], 0.97),
    "far inside": (PAPER["pair"], [2.0, 0.6], 0.7),
    "one covariance": (CONDITIONS["one covariance"], [9.0, -7.0], 0.8),
    "near the end": (PAPER["triple"], [0.4, 0.1], 0.99999),
    "near the start": (PAPER["pair"], [0.4, 0.1], 1e-7),
}


@pytest.mark.parametrize(("condition", "at", "t"), FAR.values(), ids=FAR)
def test_gap_and_posterior_keep_their_digits_everywhere(condition, at, t):
    gap, log_in, log_out, ascent = exact(condition, at, t)
    x = torch.tensor([at], dtype=torch.float64)
    # Exponents reach x^2 / C, and their rounding is the relative error of P_A and of the gap.
    digits = (
        100 * torch.finfo(x.dtype).eps * (1 + steepness(condition.mixture, x, t) * float(x.abs().max() + 1))
    )
    assert digits < 1e-8

    def right(found, value):
        norm = mp.sqrt(sum(v**2 for v in value))
        error = mp.sqrt(sum((mpf(f) - v) ** 2 for f, v in zip(found.tolist(), value, strict=True)))
        return bool(error <= digits * norm)

    assert right(condition.log_posterior(x, t), [log_in])
    assert right(condition.log_complement(x, t), [log_out])
    assert right(condition.delta(x, t)[0], gap)
    assert right(condition.posterior_score(x, t)[0], ascent)


@every_condition
@pytest.mark.parametrize("t", [0.0, 0.6, 1.0])
def test_a_prediction_carries_the_means_and_the_exact_gap(condition, t):
    x = points(condition.mixture, t)
    p = condition.predict(x, t)
    m_c, m_u = condition.means(x, t)
    assert torch.equal(p.m_c, m_c) and torch.equal(p.m_u, m_u)
    assert torch.equal(p.delta, condition.delta(x, t))
    times = torch.full((len(x),), t, dtype=torch.float64)
    assert agree(condition.predict(x, times).m_c, m_c)


def test_a_component_without_weight_changes_nothing():
    mixture = MIXTURES["plane"]
    more = Mixture(
        torch.cat([mixture.means, noise(1, 2)]), torch.cat([mixture.weights, torch.zeros(1)]), std=0.3
    )
    condition, same = CONDITIONS["plane"], Condition(more, (*CONDITIONS["plane"].members, 5))
    x = points(mixture, 0.6)
    assert agree(same.delta(x, 0.6), condition.delta(x, 0.6))


def test_a_condition_without_complement_is_refused():
    with pytest.raises(ValueError, match="a component with weight outside it"):
        Condition(MIXTURES["plane"], (0, 1, 2, 3, 4))
    with pytest.raises(ValueError, match="distinct indices"):
        Condition(MIXTURES["plane"], (7,))


def test_the_eight_components_of_the_paper_go_clockwise_from_the_top():
    root = math.sqrt(0.5)
    expected = [(0, 1), (root, root), (1, 0), (root, -root), (0, -1), (-root, -root), (-1, 0), (-root, root)]
    assert torch.allclose(circle(), torch.tensor(expected, dtype=torch.float64), atol=1e-15)


def test_the_scenes_are_those_of_the_paper_s_appendix():
    assert [str(scene) for scene in SCENES] == ["{0}", "{0,1}", "{0,1,2}"]
    assert all(scene.mixture().std == pytest.approx(0.03) for scene in SCENES)
    assert SINGLE.weights == TRIPLE.weights == (0.125,) * 8
    assert PAIR.weights == (0.17, 0.08, 0.125, 0.125, 0.125, 0.125, 0.125, 0.125)
    assert PAIR.condition().conditional.weights.tolist() == pytest.approx([0.68, 0.32])
    # The pair is off centre and the others are not.
    assert float(PAIR.mixture().mean.norm()) == pytest.approx(0.09 * math.sin(math.pi / 8))
    assert float(SINGLE.mixture().mean.norm()) < 1e-15
