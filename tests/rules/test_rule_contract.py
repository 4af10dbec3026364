"""What every rule of the catalogue keeps, run over all of them."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from meancap import Cap, Prediction, Record, guide, guided_velocity, parse
from meancap.rules import Stepper, catalogue
from meancap.rules.methods import entry

ENTRIES = [e for e in catalogue(forms=True) if e.kind == "rule"]
NAMES = sorted({name for e in ENTRIES for name in e.needs})
# Chains with options of the caps that no method of the catalogue has.
OPTIONS = (
    "CFG(Piecewise([0, 0.3, 1], [1, 6, 2])) | CapDisplacement(1.15)",
    "CFG(7) | Cap(1.1, per='channel')",
    "CFG(7) | Cap(1.1, anchor='first')",
    "CFG(7) | Cap(1.1, anchor=0.5, floor=0.2, smooth=0.5)",
    "CFG(7) | Cap(Linear(1, 2)) | CapDisplacement(1.5, floor=0.1)",
)
CHAINS = [
    replace(entry("CFG"), name=text, call=text, unit=False, state="first mean" if "first" in text else "none")
    for text in OPTIONS
]
every_rule = pytest.mark.parametrize("entry", ENTRIES + CHAINS, ids=lambda e: e.name)
TIMES = (0.15, 0.4, 0.65, 0.9)
SHAPES = {2: (3, 6), 3: (3, 5, 8), 4: (3, 4, 8, 8), 5: (3, 2, 3, 8, 8)}


def run(shape, *, dtype=torch.float64, loud=1.0, gap=1.0):
    """Three successive predictions; `loud` makes their velocities large, so that clips and thresholds act."""
    found = []
    for i, (t, s) in enumerate(pairwise(TIMES)):
        g = torch.Generator().manual_seed(i)
        x, v_c, other = (torch.randn(*shape, generator=g, dtype=torch.float64) for _ in range(3))
        v_c, v_u = loud * v_c, loud * (v_c + gap * 0.7 * other)
        v_n = v_c + gap * torch.randn(*shape, generator=g, dtype=torch.float64)  # for rules that avoid it
        p = Prediction.from_velocity(x.to(dtype), t, v_c.to(dtype), v_u.to(dtype))
        found.append(p.beside(**third(v_n.to(dtype))).until(s))
    return found


def third(v):
    """A third prediction under every name that a rule of the catalogue looks for."""
    return dict.fromkeys(NAMES, v)


def means(rule, predictions):
    state, found = rule.init(), []
    for p in predictions:
        m, state = guide(rule, p, state)
        found.append(m)
    return found


def picked(p, index):
    others = {name: v[index] for name, v in p.extra.items()}
    return replace(p, state=p.state[index], out_c=p.out_c[index], out_u=p.out_u[index], extra=others)


def shapes(entry):
    return [shape for axes, shape in SHAPES.items() if axes >= entry.axes]


@every_rule
def test_a_batch_is_its_samples(entry):
    rule = entry.rule()
    for shape in shapes(entry):
        whole = run(shape, loud=4.0)
        together = means(rule, whole)
        for i in range(shape[0]):
            alone = means(rule, [picked(p, slice(i, i + 1)) for p in whole])
            for a, b in zip(alone, together, strict=True):
                torch.testing.assert_close(a, b[i : i + 1], rtol=1e-9, atol=1e-9)


@every_rule
def test_samples_may_change_places(entry):
    rule, order = entry.rule(), torch.tensor([2, 0, 1])
    whole = run(SHAPES[4])
    for a, b in zip(means(rule, [picked(p, order) for p in whole]), means(rule, whole), strict=True):
        torch.testing.assert_close(a, b[order], rtol=1e-12, atol=1e-12)


@every_rule
def test_shape_and_precision_are_kept(entry):
    rule = entry.rule()
    for shape in shapes(entry):
        exact = means(rule, run(shape))
        for a, b in zip(means(rule, run(shape, dtype=torch.float32)), exact, strict=True):
            assert a.shape == shape and a.dtype == torch.float32
            torch.testing.assert_close(a.double(), b, rtol=2e-3, atol=2e-3)


@every_rule
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_goes_in_and_comes_out(entry, dtype):
    x, v_c, v_u, v_n = (torch.randn(*SHAPES[4]).to(dtype) for _ in range(4))
    v, _ = guided_velocity(entry.rule(), x, 0.4, v_c, v_u, t_next=0.5, extra=third(v_n))
    assert v.dtype == dtype and v.isfinite().all()


@every_rule
def test_velocities_and_means_are_guided_alike(entry):
    rule = entry.rule()
    state_v, state_m = rule.init(), rule.init()
    for t, s in ((0.15, 0.4), (0.4, 0.65)):
        x, v_c, v_u, v_n = (torch.randn(*SHAPES[4], dtype=torch.float64) for _ in range(4))
        v, state_v = guided_velocity(rule, x, t, v_c, v_u, state_v, t_next=s, extra=third(v_n))
        p = Prediction.from_velocity(x, t, v_c, v_u).beside(**third(v_n)).until(s)
        m, state_m = guide(rule, p, state_m)
        torch.testing.assert_close(x + (1 - t) * v, m, rtol=1e-9, atol=1e-9)


@every_rule
def test_each_sample_may_have_its_own_time(entry):
    rule = entry.rule()
    times, ends = (torch.tensor(v, dtype=torch.float64) for v in ([0.2, 0.4, 0.7], [0.3, 0.6, 0.8]))
    x, v_c, v_u, v_n = (torch.randn(*SHAPES[4], dtype=torch.float64) for _ in range(4))
    whole = Prediction.from_velocity(x, times, v_c, v_u).beside(**third(v_n))
    together, _ = guide(rule, whole.until(ends))
    for i, (t, s) in enumerate(zip(times.tolist(), ends.tolist(), strict=True)):
        one = Prediction.from_velocity(x[i : i + 1], t, v_c[i : i + 1], v_u[i : i + 1])
        alone, _ = guide(rule, one.beside(**third(v_n[i : i + 1])).until(s))
        torch.testing.assert_close(alone, together[i : i + 1], rtol=1e-9, atol=1e-9)


@every_rule
def test_zero_gap_gives_the_unguided_mean_where_the_entry_says_so(entry):
    same = [
        Prediction(p.x, p.t, p.m_c, p.m_c, p.t_next).beside(**third(p.m_c)) for p in run(SHAPES[4], loud=3.0)
    ]
    kept = all(
        torch.allclose(m, p.m_c, rtol=1e-12, atol=1e-12)
        for m, p in zip(means(entry.rule(), same), same, strict=True)
    )
    assert kept == entry.zero_gap, f"write zero_gap={kept} into @method above {entry.name}, or mend it"


@every_rule
def test_scale_one_gives_the_conditional_mean_where_the_entry_says_so(entry):
    if "{scale}" not in entry.call:
        assert not entry.unit, f"write unit=False above {entry.name}: it has no scale that could be 1"
        return
    loud = run((2, 3, 48, 48), loud=20.0)
    kept = all(
        torch.allclose(m, p.m_c, rtol=1e-12, atol=1e-12)
        for m, p in zip(means(entry.rule(1.0), loud), loud, strict=True)
    )
    assert kept == entry.unit, f"write unit={kept} into @method above {entry.name}, or mend it"


@every_rule
def test_print_then_parse_is_the_identity(entry):
    rule = entry.rule()
    again = parse(str(rule))
    assert again == rule and hash(again) == hash(rule) and str(again) == str(rule)
    for a, b in zip(means(rule, run(SHAPES[4])), means(again, run(SHAPES[4])), strict=True):
        assert torch.equal(a, b)


@every_rule
def test_state_advances_once_per_step_whatever_the_solver(entry):
    """Further evaluations of a step, as Heun makes them, do not change what the later steps see."""
    rule, other = entry.rule(), run(SHAPES[4], loud=2.0)

    def first_means(further):
        stepper, means = Stepper(rule), []
        for p in run(SHAPES[4]):
            means.append(stepper.mean(p))
            for q in other[:further]:
                stepper.mean(q, first=False)
        return means

    for a, b in zip(first_means(0), first_means(2), strict=True):
        assert torch.equal(a, b)


@every_rule
def test_a_cap_after_it_keeps_the_bound(entry):
    for loud in (1.0, 10.0):
        whole = run(SHAPES[4], loud=loud)
        for m, p in zip(means(entry.rule() | Cap(1.05), whole), whole, strict=True):
            ratio = m.flatten(1).norm(dim=1) / p.m_c.flatten(1).norm(dim=1)
            assert (ratio <= 1.05 * (1 + 1e-12)).all()


@every_rule
@pytest.mark.parametrize("t", [0.3, torch.tensor([0.3, 0.6], device="meta")], ids=["one time", "times"])
def test_nothing_waits_for_a_value(entry, t):
    """A meta tensor has no values: .item(), .tolist() and bool() all raise."""
    rule = entry.rule()
    x, v_c, v_u, v_n = (torch.empty(2, 4, 16, 16, device="meta") for _ in range(4))
    state, record = None, Record()
    for _ in range(3):
        v, state = guided_velocity(
            rule, x, t, v_c, v_u, state, t_next=t + 0.1, extra=third(v_n), record=record
        )
    assert v.shape == x.shape and v.device.type == "meta"


@every_rule
def test_an_empty_batch_stays_empty(entry):
    x, state, record = torch.zeros(0, 4, 8, 8), None, Record()
    for t in (0.3, 0.4):
        v, state = guided_velocity(
            entry.rule() | Cap(1.1), x, t, x, x, state, t_next=0.5, extra=third(x), record=record
        )
    assert v.shape == x.shape and record.summary() == "no samples"


@every_rule
def test_the_ends_of_the_path_are_finite(entry):
    rule = entry.rule()
    for dtype in (torch.float32, torch.float64):
        x, v_c, v_u, v_n = (torch.randn(*SHAPES[4], dtype=dtype) for _ in range(4))
        none = torch.zeros_like(x)
        for t, s in ((0.0, 0.1), (0.999, 1.0), (1.0, None)):
            for inputs in ((x, v_c, v_u), (none, v_c, v_u), (x, none, v_u), (x, v_c, none), (none,) * 3):
                if s is not None or "cfgpp" not in entry.name:
                    v, _ = guided_velocity(rule, inputs[0], t, *inputs[1:], t_next=s, extra=third(v_n))
                    assert v.isfinite().all(), (t, dtype)


@every_rule
def test_what_an_entry_says_of_state_is_so(entry):
    carries = entry.rule().has_state
    said = 'what it remembers, as state="..."' if carries else 'state="none"'
    assert carries == (not entry.state.startswith("none")), f"write {said} into @method above {entry.name}"


FEW = ("apg_mix", "mambo_g", "fbg", "adg", "fdg", "skimmed")  # the others take minutes


@pytest.mark.parametrize(
    "entry", [pytest.param(e, marks=() if e.name in FEW else pytest.mark.slow, id=e.name) for e in ENTRIES]
)
def test_it_compiles_without_a_graph_break(entry):
    rule = entry.rule()
    given = [torch.randn(2, 4, 16, 16) for _ in range(4)]

    def step(x, v_c, v_u, v_n):
        return guided_velocity(rule, x, 0.3, v_c, v_u, t_next=0.4, extra=third(v_n))[0]

    found = torch.compile(step, fullgraph=True, backend="eager")(*given)
    torch.testing.assert_close(found, step(*given), rtol=1e-4, atol=1e-4)
    torch.compiler.reset()


SMOOTH = ("CFG(4) | Interval(0.2, 0.6)", "CFG(4) | Clip(0.5)", "CFG(4) | Rescale(1, space='mean')")


@pytest.mark.parametrize("text", [*SMOOTH, "CFG(3)", "apg(4, radius=0.3)", *OPTIONS])
def test_the_velocity_is_continuous_at_the_data(text):
    g = torch.Generator().manual_seed(3)
    x, v_c, v_u = (torch.randn(4, 3, 6, generator=g, dtype=torch.float64) for _ in range(3))
    near, at = (guided_velocity(parse(text), x, t, v_c, v_u)[0] for t in (1 - 1e-7, 1.0))
    assert at.isfinite().all()
    if "floor" not in text and "first" not in text:
        torch.testing.assert_close(at, near, rtol=1e-4, atol=1e-4)
