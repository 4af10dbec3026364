"""The contract that every rule keeps, and the published formulas written out."""

import math
from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cases import V_C, V_U, T, X, random_prediction
from meancap import (
    CFG,
    Cap,
    CapDisplacement,
    Clip,
    Constant,
    Cosine,
    Exponential,
    Interval,
    Linear,
    Momentum,
    Piecewise,
    Prediction,
    Project,
    Rescale,
    Rule,
    apg,
    guide,
    guided_velocity,
    parse,
    pmc,
)
from meancap.rules import Factor
from meancap.rules.rule import Chain

RULES = [
    CFG(3),
    CFG(0),
    CFG(-2.5),
    CFG(Linear(1, 7)),
    CFG(Cosine(1, 5)),
    CFG(Exponential(2, 0.2)),
    CFG(Constant(4)),
    CFG(Piecewise([0, 0.3, 1], [1, 6, 2])),
    CFG(4) | Interval(0.2, 0.6),
    CFG(4) | Interval(0.6, 0.9),
    CFG(4) | Clip(0.5),
    Project() | CFG(4),
    Project(0.3) | CFG(4),
    CFG(4) | Rescale(),
    CFG(4) | Rescale(1.0, space="mean"),
    Momentum(-0.5) | CFG(4),
    apg(7),
    apg(4, radius=0.3, momentum=None),
    pmc(7, 1.1),
    CFG(7) | CapDisplacement(1.15),
    CFG(7) | Cap(1.1, per="channel"),
    CFG(7) | Cap(1.1, anchor="first"),
    CFG(7) | Cap(1.1, anchor=0.5, smooth=0.5, floor=0.2),
    CFG(7) | Cap(Linear(1, 2)) | CapDisplacement(1.5, floor=Constant(0.1)),
    apg(7) | Cap(1.05),
]
every_rule = pytest.mark.parametrize("rule", RULES, ids=str)


@every_rule
@pytest.mark.parametrize("shape", [(4, 6), (4, 3, 8), (4, 3, 8, 8), (4, 2, 3, 4, 5), (4, 4096)])
def test_a_batch_is_its_samples(rule, shape):
    p = random_prediction(*shape)
    m, _ = guide(rule, p)
    assert m.shape == p.x.shape and m.dtype == p.x.dtype
    for i in range(4):
        one = replace(p, shown=p.shown[i : i + 1], out_c=p.out_c[i : i + 1], out_u=p.out_u[i : i + 1])
        torch.testing.assert_close(guide(rule, one)[0], m[i : i + 1], rtol=1e-6, atol=1e-9)


@every_rule
def test_samples_may_change_places(rule):
    p = random_prediction(5, 3, 4)
    order = torch.tensor([3, 1, 4, 0, 2])
    q = replace(p, shown=p.shown[order], out_c=p.out_c[order], out_u=p.out_u[order])
    assert torch.equal(guide(rule, q)[0], guide(rule, p)[0][order])


@every_rule
def test_zero_gap_gives_the_unguided_mean(rule):
    p = random_prediction(3, 3, 8)
    q = Prediction(p.x, p.t, p.m_c, p.m_c)
    torch.testing.assert_close(guide(rule, q)[0], p.m_c, rtol=1e-14, atol=1e-14)


@every_rule
def test_print_then_parse_is_the_identity(rule):
    again = parse(str(rule))
    assert again == rule and hash(again) == hash(rule) and str(again) == str(rule)


@every_rule
def test_velocities_and_means_are_guided_alike(rule):
    g = torch.Generator().manual_seed(3)
    x, v_c, v_u = (torch.randn(4, 3, 6, generator=g, dtype=torch.float64) for _ in range(3))
    for t in (0.0, 0.35, 0.8, torch.tensor([0.1, 0.25, 0.5, 0.7], dtype=torch.float64)):
        v, _ = guided_velocity(rule, x, t, v_c, v_u)
        p = Prediction.from_velocity(x, t, v_c, v_u)
        w = 1 - (t[:, None, None] if isinstance(t, torch.Tensor) else t)
        torch.testing.assert_close(x + w * v, guide(rule, p)[0])


@every_rule
def test_the_velocity_is_continuous_at_the_data(rule):
    g = torch.Generator().manual_seed(3)
    x, v_c, v_u = (torch.randn(4, 3, 6, generator=g, dtype=torch.float64) for _ in range(3))
    near, _ = guided_velocity(rule, x, 1 - 1e-7, v_c, v_u)
    at, _ = guided_velocity(rule, x, 1.0, v_c, v_u)
    assert at.isfinite().all()
    if "floor" not in str(rule) and "first" not in str(rule):
        torch.testing.assert_close(at, near, rtol=1e-4, atol=1e-4)


@every_rule
def test_state_is_a_value(rule):
    first, second = random_prediction(2, 3, 4, seed=1), random_prediction(2, 3, 4, seed=2)
    _, state = guide(rule, first)
    once, _ = guide(rule, second, state)
    twice, _ = guide(rule, second, state)
    assert torch.equal(once, twice)
    assert rule.has_state == any(name in str(rule) for name in ("Momentum", "'first'"))


@every_rule
def test_a_cap_after_any_rule_keeps_the_bound(rule):
    p = random_prediction(6, 3, 8)
    m, _ = guide(rule | Cap(1.05), p)
    assert (m.flatten(1).norm(dim=1) <= 1.05 * p.m_c.flatten(1).norm(dim=1) * (1 + 1e-12)).all()


@given(st.floats(-4, 15), st.floats(0, 0.99), st.integers(0, 999))
def test_cfg_is_the_affine_combination(scale, t, seed):
    g = torch.Generator().manual_seed(seed)
    x, v_c, v_u = (torch.randn(2, 5, generator=g, dtype=torch.float64) for _ in range(3))
    v, _ = guided_velocity(CFG(scale), x, t, v_c, v_u)
    torch.testing.assert_close(v, v_u + scale * (v_c - v_u))


def apg_written_out(x, t, v_c, v_u, scale, eta, radius):
    m_c, m_u = (x + (1 - t) * v for v in (v_c, v_u))
    g = m_c - m_u
    g = g * min(1, radius / float(g.norm()))
    unit = m_c / m_c.norm()
    parallel = (g * unit).sum() * unit
    return v_c + (scale - 1) * (g - parallel + eta * parallel) / (1 - t)


def test_apg_is_the_published_formula():
    v, _ = guided_velocity(apg(4, eta=0, radius=0.3, momentum=None), X, T, V_C, V_U)
    expected = torch.tensor([[0.119065, -1.672382, 0.071411, 0.426050]], dtype=torch.float64)
    torch.testing.assert_close(v, expected, rtol=0, atol=1e-6)
    v, _ = guided_velocity(apg(4, eta=0.3, radius=0.3, momentum=None), X, T, V_C, V_U)
    torch.testing.assert_close(v, apg_written_out(X, T, V_C, V_U, 4, 0.3, 0.3))


def test_momentum_adds_the_running_displacement():
    first, second, third = (random_prediction(2, 5, seed=s) for s in range(3))
    rule = Momentum(-0.5) | CFG(4)
    _, state = guide(rule, first)
    m, state = guide(rule, second, state)
    running = second.delta - 0.5 * first.delta
    torch.testing.assert_close(m, second.m_c + 3 * running)
    m, _ = guide(rule, third, state)
    torch.testing.assert_close(m, third.m_c + 3 * (third.delta - 0.5 * running))


@pytest.mark.parametrize(
    ("space", "expected"),
    [
        ("velocity", [0.512466, -1.708221, 0.056941, 1.252696]),
        ("mean", [0.205118, -1.962190, -0.039879, 0.701943]),
    ],
)
def test_rescale_matches_the_standard_deviation(space, expected):
    v, _ = guided_velocity(CFG(4) | Rescale(0.7, space=space), X, T, V_C, V_U)
    torch.testing.assert_close(v, torch.tensor([expected], dtype=torch.float64), rtol=0, atol=1e-6)


@pytest.mark.parametrize("t", [0.0, 0.2, 0.5, 1.0])
def test_outside_its_interval_a_rule_is_idle(t):
    g = torch.Generator().manual_seed(3)
    x, v_c, v_u = (torch.randn(2, 600, generator=g) for _ in range(3))
    v, _ = guided_velocity(CFG(4) | Interval(0.2, 0.6), x, t, v_c, v_u)
    inside = 0.2 <= t <= 0.6
    assert torch.equal(v, guided_velocity(CFG(4 if inside else 1), x, t, v_c, v_u)[0])


@pytest.mark.parametrize(
    "schedule",
    [Linear(1, 7), Cosine(1, 5), Exponential(2, 0.2), Constant(4), Piecewise([0.2, 0.6], [1, 3])],
    ids=str,
)
def test_a_schedule_is_one_function_of_floats_and_of_tensors(schedule):
    times = torch.linspace(0, 1, 41, dtype=torch.float64)
    many = torch.as_tensor(schedule(times), dtype=torch.float64).expand(41)
    one = torch.tensor([schedule(float(t)) for t in times], dtype=torch.float64)
    torch.testing.assert_close(many, one)


def test_schedules_have_the_values_they_promise():
    assert Linear(1, 7)(0.5) == 4 and Cosine(1, 5)(0.5) == pytest.approx(3)
    assert Exponential(2, 0.2)(1.0) == pytest.approx(2 * math.exp(0.2))
    assert [Piecewise([0.2, 0.6], [1, 3])(t) for t in (0, 0.4, 1)] == pytest.approx([1, 2, 3])
    assert Piecewise([0.5], [4])(0.1) == 4 and Piecewise([0.5], [4])(torch.tensor([0.9])).tolist() == [4]


def test_a_schedule_that_grows_out_of_range_is_infinite():
    assert Exponential(1, 1000)(0.9) == math.inf
    assert float(Exponential(1, 1000)(torch.tensor(0.9, dtype=torch.float64))) == math.inf


@pytest.mark.parametrize("batch", [1, 3, 40])
@pytest.mark.parametrize(
    "rule", [CFG(torch.ones(5)), CFG(torch.ones(5)) | Cap(1.1), CFG(3) | Cap(torch.ones(5))]
)
def test_numbers_for_another_batch_get_one_sentence(rule, batch):
    x, v_c, v_u = torch.randn(3, batch, 4, 16, 16).unbind(0)
    with pytest.raises(ValueError, match="one number for all samples, or one for each; got"):
        guided_velocity(rule, x, 0.3, v_c, v_u)


def test_a_clip_of_few_samples_is_that_of_many_to_the_last_bit():
    x, v_c, v_u = torch.randn(3, 400, 4, 8, dtype=torch.float64).unbind(0)
    rule = CFG(5) | Clip(2.0)
    few = [
        guided_velocity(rule, x[i : i + 8], 0.3, v_c[i : i + 8], v_u[i : i + 8])[0] for i in range(0, 400, 8)
    ]
    assert torch.equal(torch.cat(few), guided_velocity(rule, x, 0.3, v_c, v_u)[0])


def test_a_host_may_pass_its_own_nominal_displacement():
    p = random_prediction(3, 6)
    nominal = torch.randn(3, 6, dtype=torch.float64)
    m, _ = guide(Cap(1.1), p, g=nominal)
    q = Prediction(p.x, p.t, p.m_c, p.m_c - nominal)
    torch.testing.assert_close(m, guide(Cap(1.1), q)[0])
    assert torch.equal(guide(Cap(math.inf), p, g=nominal)[0], p.m_c + nominal)


def test_a_rule_of_ones_own_is_six_lines():
    class Half(Factor):
        def factor(self, g, p):
            return 0.5

        def __str__(self):
            return "Half()"

    p = random_prediction(2, 6)
    torch.testing.assert_close(guide(CFG(5) | Half(), p)[0], guide(CFG(3), p)[0])
    again = parse("CFG(5) | Half()", extra={"Half": Half})
    assert torch.equal(guide(again, p)[0], guide(CFG(5) | Half(), p)[0])
    with pytest.raises(NotImplementedError, match="must define update"):
        guide(Rule(), p)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: CFG(math.nan), "finite"),
        (lambda: CFG(math.inf), "finite"),
        (lambda: CFG("7"), "finite"),
        (lambda: CFG(True), "finite"),
        (lambda: Interval(0.6, 0.2), "lo <= hi"),
        (lambda: Clip(0), "above 0"),
        (lambda: Rescale(2), "between 0"),
        (lambda: Rescale(0.5, space="noise"), "'velocity' or 'mean'"),
        (lambda: Piecewise([0, 0], [1, 2]), "increasing"),
        (lambda: Piecewise([0, 1], [1]), "one value per time"),
        (lambda: Linear(1, math.inf), "finite"),
    ],
)
def test_nonsense_gets_one_sentence(make, message):
    with pytest.raises(ValueError, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)


def test_rules_join_only_rules():
    with pytest.raises(TypeError):
        CFG(3) | 4


def test_a_class_of_somebody_elses_is_called_for_its_own_factor():
    class Half(CFG):
        def factor(self, g, p):
            return 0.5

    @dataclass(frozen=True)
    class Twice(Chain):
        def update(self, g, p, state):
            g, state = super().update(g, p, state)
            return g.times(2), state

    p = random_prediction(2, 6)
    m, _ = guide(Half(7), p)
    torch.testing.assert_close(m, p.m_c + 0.5 * p.delta)
    m, _ = guide(Twice((CFG(2), CFG(3))), p)
    torch.testing.assert_close(m, p.m_c + 4 * p.delta)
