"""Density-ratio feedback on mixtures: its scale, how log R is followed on ODEs and with noise, its worth."""

import math
from itertools import islice

import pytest
import torch

from meancap import (
    CFG,
    Cap,
    Interval,
    ancestral,
    euler,
    heun,
    noise,
    sample,
    trajectory,
    uniform,
)
from meancap.rules import DensityFeedback, Gain, density_feedback, feedback_scale
from meancap.sampling.ratio_tracker import log_ratio_rate, signs, trace_estimate
from meancap_lab.mixtures.measures import Ruler
from meancap_lab.mixtures.problems import Cloud, Problem, problem

WIDE = Problem("wide", Cloud(8, spread=0.8, least=0.4), (0, 1), leak=0.3)
FLAT = Problem("flat", Cloud(2, 6, spread=1.0, least=0.3), (0, 1), leak=0.25)


def points(case, n=64, t=0.5, seed=0):
    draw = torch.Generator().manual_seed(seed)
    data = case.condition().mixture.sample(n, draw)
    return t * data + (1 - t) * torch.randn(data.shape, generator=draw, dtype=torch.float64)


def trusted_share(model):
    """pi = 1 - e / w_B, for which  (1 - e) p(x | A) + e p(x | B)  =  pi p(x | A) + (1 - pi) p(x)."""
    return 1 - model.leak / (1 - math.exp(float(model.condition.log_prior)))


def log_ratio(model, x, t):
    """log R of a label with the leak e:  R = p(x | label) / p(x) = (1 - e)/w_A P_A + e/w_B P_B."""
    condition, prior = model.condition, float(model.condition.log_prior)
    inside = math.log1p(-model.leak) - prior + condition.log_posterior(x, t)
    outside = math.log(model.leak) - math.log1p(-math.exp(prior)) + condition.log_complement(x, t)
    return torch.logaddexp(inside, outside)


@pytest.mark.parametrize("case", [WIDE, FLAT, problem("leak-triple")], ids=lambda c: c.name)
def test_the_scale_of_the_ratio_is_the_scale_that_undoes_the_leak(case):
    model, pi = case.model(), trusted_share(case.model())
    for t in (0.05, 0.4, 0.8):
        x = points(case, t=t)
        r = log_ratio(model, x, t)
        due = 1 / model.best_scale(x, t)  # the scale grows without bound where R comes to 1 - pi
        torch.testing.assert_close(1 / feedback_scale(r, pi), due, rtol=1e-7, atol=1e-12)
        assert (r >= math.log1p(-pi) - 1e-12).all()


def exact_trace(predict, x, t):
    """The trace itself, by the derivative along each coordinate."""
    x = x.detach().requires_grad_()
    columns = predict(x, t).delta.unbind(1)
    rows = [torch.autograd.grad(v.sum(), x, retain_graph=True)[0][:, i] for i, v in enumerate(columns)]
    return torch.stack(rows).sum(0)


@pytest.mark.parametrize("case", [FLAT, WIDE], ids=lambda c: f"{c.layout.dimensions}-D")
@pytest.mark.parametrize("rule", [CFG(1), CFG(3), CFG(4) | Cap(1.2)], ids=str)
def test_the_evolution_of_log_r_along_any_guided_ode_is_exact(case, rule):
    """Simpson's rule on straight pieces of the path, exact trace: 1e-6 against the exact log-densities."""
    model = case.model()
    x = points(case, 16, t=0.1)
    steps = trajectory(model.predict, rule, x, [0.1 + 0.01 * i for i in range(41)])
    for one in islice(steps, 0, None, 4):  # each piece by itself: every fourth will do
        t, h = one.t, one.t_next - one.t
        w, total = (one.x_next - one.x) / h, 0.0
        for weight, share in ((1, 0.0), (4, 0.5), (1, 1.0)):
            y, s = one.x + share * h * w, t + share * h
            p = model.predict(y, s)
            total = total + weight / 6 * h * log_ratio_rate(p, w, exact_trace(model.predict, y, s))
        gained = log_ratio(model, one.x_next, one.t_next) - log_ratio(model, one.x, t)
        torch.testing.assert_close(total, gained, rtol=0, atol=1e-6)


def test_probes_have_the_trace_as_their_mean():
    model, t, n = WIDE.model(), 0.5, 2048
    x = points(WIDE, 1, t=t).expand(n, -1).contiguous()
    probes = trace_estimate(model.predict, model.predict(x, t), signs(torch.arange(n), 3, x))
    due = float(exact_trace(model.predict, x[:1], t))
    assert float(probes.mean()) == pytest.approx(due, abs=4.5 * float(probes.std()) / math.sqrt(n))


def test_probes_along_the_coordinates_add_up_to_the_trace():
    model, t, x = WIDE.model(), 0.5, points(WIDE, 16)
    p, axes = model.predict(x, t), torch.eye(8, dtype=x.dtype)
    added = sum(trace_estimate(model.predict, p, axis.expand_as(x)) for axis in axes)
    torch.testing.assert_close(added, exact_trace(model.predict, x, t), rtol=1e-5, atol=1e-5)


def followed(case, rule, n, steps, stochastic, probe="difference"):
    """log R as the loop followed it and as it is, at every evaluation before t = 0.8."""
    model, seeds = case.model(), range(n)
    follow = DensityFeedback(0.999999, most=1e9, probe=probe) | Gain(rule - 1)  # log R is not held above -13
    x = noise(seeds, (case.layout.dimensions,)).double()
    step = ancestral(seeds) if stochastic else euler
    seen = [one for one in trajectory(model.predict, follow, x, uniform(steps), step) if 0 < one.t < 0.8]
    return [(one.prediction.extra["log_ratio"], log_ratio(model, one.x, one.t)) for one in seen]


def test_without_guidance_by_the_other_model_the_mean_of_r_stays_one_on_any_grid():
    """CFG(0) steps by the unconditional model; R is then a likelihood ratio of two discrete chains."""
    n = 2048
    model, seeds = FLAT.model(), range(n)
    assert DensityFeedback(0.999999, most=1e9).lowest < -13

    class Unconditional(DensityFeedback):
        def factor(self, g, p):
            return -1.0

    x = noise(seeds, (2,)).double()
    rule = Unconditional(0.999999, most=1e9)
    for grid in (uniform(5), uniform(12)):
        for one in trajectory(model.predict, rule, x, grid, ancestral(seeds)):
            r = one.prediction.extra["log_ratio"].exp()
            assert float(r.mean()) == pytest.approx(1, abs=4.5 * float(r.std()) / math.sqrt(n) + 1e-12)


@pytest.mark.parametrize("stochastic", [False, True])
def test_the_followed_ratio_comes_nearer_to_the_exact_one_with_shorter_steps(stochastic):
    """On an ODE (second order, but one probe per step is noise), and with noise (first order)."""
    errors = []
    for steps in (10, 80):
        pairs = followed(FLAT, 1, 256, steps, stochastic)
        errors.append(float((pairs[-1][0] - pairs[-1][1]).square().mean().sqrt()))
    assert errors[1] < 0.6 * errors[0]


def test_the_trace_matters_on_an_ode():
    with_, without = (followed(WIDE, 1, 128, 40, False, probe)[-1] for probe in ("difference", "none"))
    assert (with_[0] - with_[1]).abs().mean() < 0.5 * (without[0] - without[1]).abs().mean()


def test_a_batch_is_its_samples_and_evaluations_are_counted():
    calls = []

    def predict(x, t):
        calls.append(t)
        return WIDE.model().predict(x, t)

    seeds, rule = range(6), density_feedback(0.6) | Interval(0.1, 0.9) | Cap(1.3)
    x = noise(seeds, (8,)).double()
    for step, some, count in ((euler, euler, 19), (ancestral(seeds), ancestral([2, 3]), 10)):
        calls.clear()
        whole = sample(predict, rule, x, uniform(10), step)
        assert len(calls) == count
        torch.testing.assert_close(sample(predict, rule, x[2:4], uniform(10), some), whole[2:4])
    calls.clear()
    sample(predict, density_feedback(0.6, every=3), x, uniform(10))
    assert len(calls) == 10 + 4
    calls.clear()
    sample(predict, density_feedback(0.6, until=0.35), x, uniform(10))
    assert len(calls) == 10 + 4
    assert sample(predict, rule, x, uniform(10), heun).isfinite().all()
    assert sample(predict, rule, x, uniform(10), ancestral(seeds, 0.5)).isfinite().all()


@pytest.mark.parametrize("seed", [11, 12])
def test_it_undoes_a_leak_on_mixtures_that_nobody_tuned_on(seed):
    case = Problem("held out", Cloud(8, spread=0.5, seed=seed), (0, 1, 2), leak=0.3)
    model, seeds = case.model(), range(1024)
    ruler, x = Ruler(case.condition(), 1024), noise(seeds, (8,)).double()
    rule = density_feedback(round(trusted_share(model), 6))
    for step, share in ((euler, 0.75), (ancestral(seeds), 0.9)):
        fixed = [
            float(ruler.read(sample(model.predict, CFG(v), x, uniform(50), step))["sw2"]) for v in (1.5, 2)
        ]
        own = float(ruler.read(sample(model.predict, rule, x, uniform(50), step))["sw2"])
        assert own < share * min(fixed)
