"""Each measure is zero, one or a known number where it should be, with tolerances from n."""

import math

import pytest
import torch

from meancap import CFG, Cap, sample, uniform
from meancap.lab import Condition, Mixture
from meancap.lab.condition import TRIPLE, circle
from meancap.lab.measures import MEASURES, Line, Projected, Ruler, fan, line
from meancap.lab.problems import problem
from meancap.lab.theory import Guided, euler_variance_ratio, graded_times, pushforward
from meancap.lab.volume import displaced, kl_terms, log_volumes


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def two_sided():
    return Mixture(
        torch.tensor([[-1.0], [2.0]], dtype=torch.float64), [0.3, 0.7], std=torch.tensor([0.5, 0.2])
    )


def test_samples_in_one_point_are_as_far_as_the_second_moment_says():
    law = two_sided()
    point = torch.full((50, 1), 0.7, dtype=torch.float64)
    along = line(law, torch.ones(1, dtype=torch.float64))
    expected = (along.second_moment() - 2 * 0.7 * law.mean[0] + 0.7**2).sqrt()
    found = Projected(law, torch.ones(1, 1, dtype=torch.float64), 50).distances(point)
    torch.testing.assert_close(found[0], expected, rtol=1e-10, atol=0)


def test_the_distance_is_the_integral_of_the_squared_quantile_gap():
    law, n = two_sided(), 40
    x = law.sample(n, generator()) + 0.1
    along = line(law, torch.ones(1, dtype=torch.float64))
    u = (torch.arange(n * 500, dtype=torch.float64) + 0.5) / (n * 500)
    own = x[:, 0].sort().values.repeat_interleave(500)
    integral = ((own - along.quantile(u)) ** 2).mean().sqrt()
    found = Projected(law, torch.ones(1, 1, dtype=torch.float64), n).distances(x)[0]
    torch.testing.assert_close(found, integral, rtol=2e-4, atol=0)  # the midpoint rule, not the formula


def test_a_shifted_gaussian_is_as_far_as_the_shift():
    law = Mixture(torch.zeros(1, 1, dtype=torch.float64), std=1.0)
    n = 4096
    u = (torch.arange(n, dtype=torch.float64) + 0.5) / n
    x = torch.special.ndtri(u)[:, None] + 0.25
    found = Projected(law, torch.ones(1, 1, dtype=torch.float64), n).distances(x)
    assert abs(float(found) - 0.25) < 2e-3  # what n quantiles miss of the tails


def test_several_sets_are_read_as_one_by_one():
    condition = problem("off-centre-8").condition()
    ruler = Ruler(condition, 40, 4)
    x = condition.conditional.sample(3 * 40, generator()).reshape(3, 40, 8)
    both = ruler.read(x)
    for i in range(3):
        one = ruler.read(x[i])
        for name in both:
            torch.testing.assert_close(both[name][i], one[name], rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(ruler.sw2(x), both["sw2"])


@pytest.mark.parametrize(
    "name", ["pair", "overlap-triple", "off-centre-8", pytest.param("off-centre-64", marks=pytest.mark.slow)]
)
def test_exact_samples_are_found_exact_also_where_members_overlap(name):
    condition = problem(name).condition()
    n = 2000
    ruler = Ruler(condition, n, 8)
    found = {k: float(v) for k, v in ruler.read(condition.conditional.sample(n, generator(3))).items()}
    assert found["occupancy"] < 5 * math.sqrt(len(condition.members) / n) / 2
    # A variance ratio has relative error sqrt(2 / n) along one direction: 5 of them, twice for the shares.
    assert abs(found["radial"] - 1) < 10 * math.sqrt(2 / n)
    assert abs(found["tangential"] - 1) < 10 * math.sqrt(2 / n)
    assert found["coverage"] > 0.999
    trace = float(condition.conditional.variances.sum(1).max()) + float(
        (condition.conditional.means - condition.conditional.mean).square().sum(1).max()
    )
    assert found["mean_error"] < 5 * math.sqrt(trace / n)


def test_radial_and_tangential_tell_which_variance_is_gone():
    condition = problem("single").condition()
    law, n = condition.conditional, 4000
    x = law.sample(n, generator())
    e = law.means[0] / law.means[0].norm()
    away = x - law.means[0]
    thin = law.means[0] + (away @ e)[:, None] * e  # nothing left across the radius
    found = Ruler(condition, n, 4).read(thin)
    assert abs(float(found["radial"]) - 1) < 10 * math.sqrt(2 / n)
    assert float(found["tangential"]) < 1e-9


def test_coverage_and_occupancy_see_a_missing_member():
    condition = problem("triple").condition()
    only = Condition(condition.mixture, condition.members[:2]).conditional.sample(3000, generator())
    found = Ruler(condition, 3000, 4).read(only)
    assert abs(float(found["coverage"]) - 2 / 3) < 0.01
    assert abs(float(found["occupancy"]) - 1 / 3) < 0.03
    assert float(found["alignment"]) > 1 - 1e-9


def test_alignment_is_the_posterior_of_the_condition():
    condition = problem("leak-triple").condition()
    whole = condition.mixture.sample(5000, generator())
    found = Ruler(condition, 5000, 4).read(whole)["alignment"]
    share = condition.log_prior.exp()
    assert abs(float(found - share)) < 5 * math.sqrt(float(share) / 5000)


def test_slices_are_unit_vectors_and_even_in_the_plane():
    torch.testing.assert_close(fan(2, 6).norm(dim=1), torch.ones(6, dtype=torch.float64))
    second = fan(2, 6).T @ fan(2, 6) / 6
    torch.testing.assert_close(second, torch.eye(2, dtype=torch.float64) / 2)
    many = fan(8, 20)
    torch.testing.assert_close(many[:8] @ many[:8].T, torch.eye(8, dtype=torch.float64))


def test_quantiles_invert_the_distribution_function():
    along = Line(*(torch.tensor(v, dtype=torch.float64) for v in ([0.5, 0.5], [0.0, 3.0], [0.1, 0.4])))
    u = torch.tensor([1e-9, 0.2, 0.5, 0.99, 1 - 1e-9], dtype=torch.float64)
    torch.testing.assert_close(along.below(along.quantile(u)), u, rtol=1e-9, atol=1e-12)


def test_the_volume_of_euler_steps_on_one_gaussian_is_the_closed_form():
    model = problem("single").model()
    start = torch.randn(20, 2, generator=generator(), dtype=torch.float64)
    ends = sample(model.predict, CFG(1), displaced(start), uniform(50))
    ratio = euler_variance_ratio(torch.tensor(uniform(50)), 0.03)
    expected = (ratio * 0.03**2).log().expand(20)
    torch.testing.assert_close(log_volumes(ends), expected, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("gamma", [math.inf, 1.1])
def test_kl_of_fine_steps_is_that_of_liouville(gamma):
    condition = Condition(Mixture(circle(), std=0.25), TRIPLE.members)
    start = torch.randn(200, 2, generator=generator(1), dtype=torch.float64)
    x, log_q = pushforward(Guided(condition, 3.0, gamma), start, graded_times(64, 0.25))
    law = condition.conditional
    exact = (log_q - law.log_density(x, 1.0)).mean()
    rule = CFG(3) if gamma == math.inf else CFG(3) | Cap(gamma)
    found = {}
    for steps in (100, 200):
        end = sample(condition.predict, rule, torch.cat([start, displaced(start)]), uniform(steps))
        found[steps] = kl_terms(start, end[:200], log_volumes(end[200:]), law).mean()
    # Euler is of first order: halving the step halves the error, and the extrapolation meets the integral.
    assert abs(2 * found[200] - found[100] - exact) < 0.01
    assert abs(found[200] - exact) < abs(found[100] - exact)


def test_every_measure_but_kl_is_read():
    condition = problem("overlap-single").condition()
    assert set(Ruler(condition, 32, 4).read(condition.conditional.sample(32))) | {"kl"} == set(MEASURES)
