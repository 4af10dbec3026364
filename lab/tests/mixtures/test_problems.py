"""The problems are wrong in exactly the way they say, and the scale that undoes it is the one they state."""

from dataclasses import replace

import pytest
import torch

from meancap import CFG, Cap, sample, uniform
from meancap_lab.mixtures import Mixture
from meancap_lab.mixtures.problems import PROBLEMS, Circle, Cloud, Model, Problem, problem

NAMES = [one.name for one in PROBLEMS]


def states(model, n=64, seed=0):
    d = model.condition.mixture.means.shape[1]
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(n, d, generator=draw, dtype=torch.float64)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("t", [0.0, 0.3, 0.8])
def test_the_stated_scale_leads_to_the_true_conditional_mean(name, t):
    model = problem(name).model()
    x = states(model)
    p = model.predict(x, t)
    scale = model.best_scale(x, t)
    kept = scale < 1e6  # with a leak it has no bound, and multiplying by it loses digits
    guided = p.m_u + scale[:, None] * p.delta
    truth, _ = model.condition.means(x, t)
    assert kept.any()
    torch.testing.assert_close(guided[kept], truth[kept], rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("name", ["triple", "off-centre-8", "off-centre-64", "both-8"])
def test_noise_of_another_precision_is_guided_in_that_of_the_mixture(name):
    """Layouts with one covariance and with many; `noise` draws float32, and the mixtures are float64."""
    model, rule = problem(name).model(), CFG(3) | Cap(1.1)
    x = states(model).float()
    for predict in (model.predict, model.condition.predict):
        exact = sample(predict, rule, x.double(), uniform(2))
        for dtype in (torch.float32, torch.bfloat16):
            found = sample(predict, rule, x.to(dtype), uniform(2))
            assert found.dtype == torch.float32 and predict(x.to(dtype), 0.5).m_c.dtype == torch.float64
        found = sample(predict, rule, x, uniform(2))
        torch.testing.assert_close(found.double(), exact, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["under-single", "under-triple", "under-8"])
def test_an_under_conditioned_model_is_exact_at_one_over_one_minus_eta(name):
    wrong = problem(name)
    x = states(wrong.model())
    guided = sample(wrong.model().predict, CFG(1 / (1 - wrong.eta)), x, uniform(20))
    perfect = sample(wrong.exact().model().predict, CFG(1), x, uniform(20))
    torch.testing.assert_close(guided, perfect, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["leak-single", "leak-8"])
def test_a_leaky_model_is_the_posterior_mean_of_the_leaky_data(name):
    leaky = problem(name)
    condition = leaky.condition()
    whole = condition.mixture
    weights = torch.where(
        condition.inside,
        (1 - leaky.leak) * whole.weights / whole.weights[condition.inside].sum(),
        leaky.leak * whole.weights / whole.weights[~condition.inside].sum(),
    )
    data = Mixture(whole.means, weights, cov=whole.cov)
    for t in (0.0, 0.4, 0.9):
        x = states(leaky.model())
        p = leaky.model().predict(x, t)
        torch.testing.assert_close(p.m_c, data.posterior_mean(x, t), rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(p.m_u, whole.posterior_mean(x, t), rtol=1e-9, atol=1e-9)


def test_no_fixed_scale_undoes_a_leak():
    model = problem("leak-triple").model()
    scale = model.best_scale(states(model, 500), 0.6)
    assert scale.max() / scale.min() > 10


@pytest.mark.parametrize("dimensions", [2, 8])
def test_one_covariance_for_all_gives_the_means_of_one_for_each(dimensions):
    cloud = Cloud(dimensions, common=True)
    short = Problem("p", cloud, (1, 4), eta=0.2, leak=0.1).model()
    one = cloud.mixture()
    repeated = Mixture(one.means, one.weights, cov=one.cov.expand(len(one.means), -1, -1).clone())
    long = Model(replace(short.condition, mixture=repeated), 0.2, 0.1)
    for t in (0.0, 0.5, 0.95):
        x = states(short)
        a, b = short.predict(x, t), long.predict(x, t)
        torch.testing.assert_close(a.m_c, b.m_c, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(a.delta, b.delta, rtol=1e-8, atol=1e-12)


def test_the_gap_keeps_its_digits_where_the_condition_is_certain():
    model = Problem("p", Circle(0.03), (0,), leak=0.3).model()
    x = model.condition.mixture.means[:1] * 0.95
    p = model.predict(x, 0.95)
    assert 0 < p.delta.norm() < 1e-16  # the means differ by less than their own rounding
    truth = model.condition.delta(x, 0.95)
    assert (model.best_scale(x, 0.95) * p.delta - truth).norm() < 1e-9 * truth.norm()


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: replace(problem("single"), eta=1.0), "eta and leak"),
        (lambda: replace(problem("single"), leak=-0.1), "eta and leak"),
        (lambda: replace(problem("single"), leak=0.9).model(), "does not favour"),
        (lambda: problem("singel"), "off-centre-64"),
    ],
)
def test_a_wrong_problem_is_refused_in_a_sentence(build, words):
    with pytest.raises(ValueError, match=words):
        build()
