"""What rules and schedules accept, rules of one's own, and a host's nominal displacement."""

import math
from dataclasses import dataclass

import pytest
import torch

from cases import random_prediction
from meancap import (
    CFG,
    Cap,
    Cosine,
    Exponential,
    Linear,
    Piecewise,
    Prediction,
    Rule,
    Values,
    guide,
    guided_velocity,
    parse,
)
from meancap.rules import Factor
from meancap.rules.rule import Chain


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


def test_given_values_may_differ_between_samples_print_parse_and_compare():
    x, v_c, v_u = torch.randn(3, 3, 4, 8, 8, generator=torch.Generator().manual_seed(0))
    scales, gammas = [1.5, 4.0, 9.0], [1.0625, 1.5, 1.0]
    rule = CFG(torch.tensor(scales)) | Cap(torch.tensor(gammas, dtype=torch.float64))
    together = guided_velocity(rule, x, 0.4, v_c, v_u)[0]
    for i, (scale, gamma) in enumerate(zip(scales, gammas, strict=True)):
        x_i, c_i, u_i = (v[i : i + 1] for v in (x, v_c, v_u))
        alone = guided_velocity(CFG(scale) | Cap(gamma), x_i, 0.4, c_i, u_i)[0]
        assert torch.equal(together[i : i + 1], alone)
    assert str(rule) == "CFG([1.5, 4, 9]) | Cap([1.0625, 1.5, 1])"
    assert parse(str(rule)) == rule and hash(parse(str(rule))) == hash(rule)
    assert rule != CFG(torch.tensor(6.0)) | rule.rules[1]


@pytest.mark.parametrize(
    ("made", "given"),
    [
        (CFG, torch.tensor(float("nan"))),
        (CFG, torch.ones(2, 2)),
        (CFG, torch.tensor(3)),
        (Cap, torch.tensor(0.9)),
        (Values, float("inf")),
    ],
)
def test_a_given_value_that_cannot_be_is_refused(made, given):
    with pytest.raises(ValueError, match="needs"):
        made(given)


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
    ("scale", "message"),
    [
        ("7", "finite"),
        (True, "finite"),
        (lambda t: 7 * t, "CFG needs a number or a schedule for scale"),
        ([1, "a"], "Values needs numbers"),
    ],
)
def test_a_scale_is_a_number_or_a_schedule(scale, message):
    with pytest.raises(ValueError, match=message) as caught:
        CFG(scale)
    assert "\n" not in str(caught.value)


def test_rules_join_only_rules_and_their_texts():
    for other in (4, lambda g, p: g):
        with pytest.raises(TypeError, match=r"\| joins rules, such as CFG\(7\) \| Cap\(1.1\); got a "):
            CFG(3) | other
    assert CFG(3) | "Cap(1.1)" == CFG(3) | Cap(1.1)


def test_a_rule_that_is_no_dataclass_says_so_when_printed():
    class Half(Factor):
        def __init__(self, share):
            self.share = share

    for text in (lambda: str(Half(0.5)), lambda: f"{CFG(3) | Half(0.5)}"):
        with pytest.raises(TypeError, match=r"write @dataclass\(frozen=True\) above class Half"):
            text()


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
