"""Where a rule says it is idle, the conditional mean is the answer whatever the unconditional one is."""

from functools import cache

import pytest
import torch
from rule_cases import Network

from cases import random_prediction
from meancap import Piecewise, Prediction, Record, euler, heun, midpoint, sample, trajectory, uniform
from meancap.rules import CFG, Cap, Clip, Gain, Interval, StepInterval, catalogue, guide, parse

ENTRIES = [e for e in catalogue() if e.kind == "rule" and e.name != "cfg_gating"]  # which has its own tests
GATES = [Interval(0.3, 0.5), CFG(1.0), StepInterval(1, 1), Gain(Piecewise([0.5, 0.6], [0, 1]))]
TIMES = (0.15, 0.4, 0.65, 0.9)
SHAPE = (3, 4, 8, 8)


@cache
def shown(i, seed, dtype):
    """The tensors of step i, drawn once for all rules."""
    p, q = (random_prediction(*SHAPE, seed=100 + i + k, t=TIMES[i], dtype=dtype) for k in (0, 10 * seed))
    return p.x, TIMES[i], p.m_c, 5 * q.m_u


def run(rule, seed, dtype):
    """Every step's prediction, whether the rule called itself idle there, its mean, and the state after it.

    The seed changes m_u alone.
    """
    state, found = rule.init(), []
    for i, t in enumerate(TIMES[:-1]):
        p = Prediction(*shown(i, seed, dtype), TIMES[i + 1])
        p = p.beside(**dict.fromkeys(rule.needs, p.out_u + 1))
        idle = rule.idle(t, state)
        m, state = guide(rule, p, state)
        found.append((p, idle, m, state))
    return found


def chains(entry):
    rule = entry.rule()
    yield rule
    if "{scale}" in entry.call:
        yield entry.rule(1.0)
    for gate in GATES:
        yield rule | gate
        yield gate | rule
        yield rule | gate | Clip(0.1) | Cap(1.1)


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda e: e.name)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_an_idle_rule_gives_the_conditional_mean_and_a_state_that_saw_nothing(entry, dtype):
    for rule in chains(entry):
        for (p, idle, m, state), (_, _, _, other) in zip(
            run(rule, 1, dtype), run(rule, 2, dtype), strict=True
        ):
            if idle:
                assert torch.equal(m, p.m_c), (str(rule), p.t)
                assert state == other, (str(rule), p.t)


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda e: e.name)
def test_a_gate_at_the_end_makes_it_idle_unless_it_remembers_predictions(entry):
    rule = entry.rule()
    for gate, seen in (
        (GATES[0], [True, False, True]),
        (CFG(1.0), [True] * 3),
        (GATES[2], [True, False, True]),
    ):
        remembers = any(part.has_state and part.reads_m_u for part in rule.parts)
        expected = [False] * 3 if remembers else seen
        own = [idle for _, idle, _, _ in run(rule, 1, torch.float64)]
        found = [idle for _, idle, _, _ in run(rule | gate, 1, torch.float64)]
        assert found == [a or b for a, b in zip(expected, own, strict=True)]


@pytest.mark.parametrize(
    ("text", "t", "idle"),
    [
        ("CFG(1)", 0.3, True),
        ("CFG(1.0000001)", 0.3, False),
        ("CFG(Linear(1, 4))", 0.0, True),
        ("CFG(Linear(1, 4))", 0.01, False),
        ("CFG([1, 1])", 0.3, False),  # not looked at: it may live on a device
        ("CFG(4) | Interval(0.2, 0.8)", 0.2, False),
        ("CFG(4) | Interval(0.2, 0.8)", 0.8, False),
        ("CFG(4) | Interval(0.2, 0.8) | Cap(1.1)", 0.19, True),
        ("Interval(0.2, 0.8) | CFG(4) | Cap(1.1, anchor=0.5)", 0.9, True),
        ("CFG(4) | Interval(0.2, 0.8) | Cap(1.1, anchor='first')", 0.9, False),  # the first m_u is its anchor
        ("Project() | CFG(1)", 0.3, True),
        ("Gain(0)", 0.3, True),
        ("Gain(1)", 0.3, False),
        ("FromUnconditional(1)", 0.3, False),
        ("CFG(1) | FromUnconditional(4)", 0.3, False),
        ("CFG(1) | ZeroStar()", 0.3, False),
        ("CFG(1) | Rescale()", 0.3, False),
        ("CFG(1) | ZeroInit()", 0.3, False),
        ("apg(4) | Interval(0.2, 0.8)", 0.9, False),
        ("Momentum(0.5) | CFG(1)", 0.9, False),
        ("CFGPP(0.6) | Interval(0.2, 0.8)", 0.9, True),
        ("Phases(2, CFG(1), CFG(4))", 0.3, True),
        ("Phases(2, CFG(1), Momentum(0.5) | CFG(4))", 0.3, False),
        ("Phases(0, CFG(1), CFG(4))", 0.3, False),
        ("StepInterval(2, 5) | CFG(4)", 0.3, True),
        ("Reuse(2) | CFG(4)", 0.3, False),
    ],
)  # fmt: skip
def test_who_is_idle_at_the_first_step(text, t, idle):
    rule = parse(text)
    assert rule.idle(t) is rule.idle(t, rule.init()) is idle


@pytest.mark.parametrize(
    ("after", "idle"),
    [
        ("CFG(4)", True),
        ("CFG(4) | Cap(1.1) | Interval(0.1, 0.9)", True),
        ("Project() | Clip(2.0) | CFG(4) | CapDisplacement(1.2, smooth=0.5)", True),
        ("FromUnconditional(4)", False),
        ("mambo_g(4)", False),
        ("apg(4)", False),  # its momentum would have to be of gaps that are known
        ("CFG(4) | Cap(1.1, anchor='first')", False),
    ],
)
def test_after_a_kept_gap_a_chain_reads_nothing_of_the_unconditional_prediction(after, idle):
    rule = parse(f"Reuse(2) | {after}")
    first, second = (random_prediction(*SHAPE, seed=s, t=0.3) for s in (1, 2))
    _, state = guide(rule, first)
    assert rule.idle(0.4, state) is idle and not rule.idle(0.4)
    if idle:
        other = Prediction(second.x, 0.3, second.m_c, second.m_c + 1)
        a, b = (guide(rule, p, state) for p in (Prediction(second.x, 0.3, second.m_c, second.m_u), other))
        assert torch.equal(a[0], b[0]) and torch.equal(a[1][0][1], b[1][0][1])


@pytest.mark.parametrize("step", [euler, heun, midpoint], ids=lambda s: s.__name__)
@pytest.mark.parametrize(
    "text",
    [
        "CFG(4) | Interval(0.25, 0.75) | Cap(1.1)",
        "CFG(4) | StepInterval(3, 6)",
        "Phases(4, CFG(1), CFG(4) | Cap(1.05))",
        "CFG(Piecewise([0.5, 0.5001], [1, 5]))",
        "apg(4) | Interval(0.25, 0.75)",
        "CFG(3)",
    ],
)
def test_sampling_asks_for_half_where_it_may_and_gets_the_same_bits(text, step):
    rule, x, times = parse(text), torch.randn(3, 5), uniform(8)
    lean, plain = Network(), Network()
    found = sample(lean, rule, x, times, step)
    assert torch.equal(found, sample(plain.__call__, rule, x, times, step))
    assert lean.both + lean.half == plain.both and plain.half == 0
    assert (lean.half > 0) == (text not in ("CFG(3)", "apg(4) | Interval(0.25, 0.75)"))


@pytest.mark.parametrize(
    ("text", "full"),
    [("Reuse(2) | CFG(4) | Cap(1.1)", 4), ("Reuse(4) | CFG(4)", 2), ("cfg_gating(4, gate=0.2)", 2)],
)
def test_steps_that_reuse_a_gap_cost_one_call(text, full):
    rule = parse(text)
    x, network = torch.randn(3, 5), Network()
    found = sample(network, rule, x, uniform(8))
    assert (network.both, network.half) == (full, 8 - full)
    assert torch.equal(found, sample(Network().__call__, rule, x, uniform(8)))


def test_a_record_and_a_trajectory_see_both_predictions():
    x, times, network, record = torch.randn(3, 5), uniform(8), Network(), Record()
    sample(network, CFG(1), x, times, record=record)
    steps = list(trajectory(network, CFG(1), x, times))
    assert network.half == 0 and network.both == 16
    assert (record.stacked()["gap"] > 0).all() and all((one.prediction.delta != 0).any() for one in steps)
