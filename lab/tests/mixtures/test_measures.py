"""Distance and alignment are known numbers where they should be; so are volumes of the sampler's map."""

import math

import pytest
import torch

from meancap import CFG, Cap, sample, uniform
from meancap_lab.mixtures import Condition, Mixture
from meancap_lab.mixtures.condition import TRIPLE, circle
from meancap_lab.mixtures.measures import Lines, Ruler, displaced, fan, kl_terms, log_volumes
from meancap_lab.mixtures.problems import problem
from meancap_lab.mixtures.theory import Guided, euler_variance_ratio, graded_times, pushforward


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def two_sided():
    means = torch.tensor([[-1.0, 0.0], [2.0, 1.0], [9.0, 9.0]], dtype=torch.float64)
    return Condition(Mixture(means, [0.3, 0.6, 0.1], std=torch.tensor([0.5, 0.2, 0.3])), (0, 1))


def test_samples_in_one_point_are_as_far_as_the_second_moments_say():
    condition, point = two_sided(), torch.tensor([0.7, -0.2], dtype=torch.float64)
    ruler = Ruler(condition, 50, 6)
    law = condition.conditional
    along, at = Lines.of(law, ruler.directions), ruler.directions @ point
    squares = along.second_moment() - 2 * at * (ruler.directions @ law.mean) + at**2
    torch.testing.assert_close(ruler.sw2(point.expand(50, 2)), squares.mean().sqrt(), rtol=1e-10, atol=0)


def test_the_distance_is_the_integral_of_the_squared_quantile_gap():
    condition, n = two_sided(), 40
    ruler = Ruler(condition, n, 4)
    x = condition.conditional.sample(n, generator()) + 0.1
    u = (torch.arange(n * 500, dtype=torch.float64) + 0.5) / (n * 500)
    own = (x @ ruler.directions.T).T.sort(1).values.repeat_interleave(500, 1)
    integral = (own - Lines.of(condition.conditional, ruler.directions).quantile(u)).square().mean().sqrt()
    torch.testing.assert_close(ruler.sw2(x), integral, rtol=2e-4, atol=0)  # by the midpoint rule


def test_several_sets_are_read_as_one_by_one_in_either_precision():
    condition = problem("off-centre-8").condition()
    ruler = Ruler(condition, 40, 4)
    x = condition.conditional.sample(3 * 40, generator()).reshape(3, 40, 8)
    both = ruler.read(x)
    for i in range(3):
        one = ruler.read(x[i])
        for name in both:
            torch.testing.assert_close(both[name][i], one[name], rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(ruler.sw2(x.float()), both["sw2"], rtol=1e-5, atol=1e-6)


def test_exact_samples_are_at_the_floor_and_others_are_not():
    condition = problem("overlap-triple").condition()
    ruler = Ruler(condition, 2000, 8)
    floor = ruler.floor()
    assert floor["sw2"] < 5 * math.sqrt(0.5 / 2000)  # E W2^2 of n samples is of the order of the variance / n
    only = Condition(condition.mixture, condition.members[:2]).conditional.sample(2000, generator())
    assert float(ruler.sw2(only)) > 5 * floor["sw2"]


def test_alignment_is_the_posterior_of_the_condition():
    condition = problem("leak-triple").condition()
    whole = condition.mixture.sample(5000, generator())
    found = Ruler(condition, 5000, 4).read(whole)["alignment"]
    share = condition.log_prior.exp()
    assert abs(float(found - share)) < 5 * math.sqrt(float(share) / 5000)


def test_quantiles_invert_the_distribution_function():
    along = Lines.of(two_sided().conditional, fan(2, 3))
    u = torch.tensor([1e-9, 0.2, 0.5, 0.99, 1 - 1e-9], dtype=torch.float64)
    torch.testing.assert_close(along.below(along.quantile(u)), u.expand(3, -1), rtol=1e-9, atol=1e-12)


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


def test_numpy_sorts_what_torch_sorts_and_gradients_stay():
    x = torch.randn(3, 64, 2, dtype=torch.float64)
    ruler = Ruler(two_sided(), 64)
    through_torch = ruler.sw2(x.clone().requires_grad_())
    assert through_torch.requires_grad and torch.equal(ruler.sw2(x), through_torch.detach())
