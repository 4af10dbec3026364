"""A rule at work in a host: laws of the one function that every adapter goes through."""

import json
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from meancap import CFG, Cap, CapDisplacement, Prediction, Rescale, apg, guided_velocity, rules
from meancap.adapters.comfy.hooks import PostCFG
from meancap.adapters.session import RunRecord, Session
from meancap.path import Affine

INF = float("inf")
RULES = [
    Cap(1.05),
    CapDisplacement(1.05),
    CFG(6.0),
    CFG(6.0) | Cap(1.05),
    CFG(6.0) | Rescale(0.7),
    apg(6.0),
]


def drawn(seed, batch=3, dtype=torch.float32):
    """A state, two outputs and a host's own combination of them."""
    x, c, d = torch.randn(3, batch, 4, 6, 6, generator=torch.Generator().manual_seed(seed))
    c, u = c.to(dtype), (c - 0.3 * d).to(dtype)
    return x.to(dtype), c, u, u + 7.0 * (c - u)


def respond(rule, how, x, c, u, nominal, state, record=None):
    return rules.respond(rule, Prediction.from_affine(x, c, u, how), state, nominal=nominal, record=record)


def flow_edge(sigma):
    return Affine(a=1.0, k=-sigma, t=1 - sigma)


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_a_batch_is_its_samples_one_by_one(rule):
    x, c, u, nominal = drawn(0, batch=5)
    whole, _ = respond(rule, flow_edge(0.6), x, c, u, nominal, rule.init())
    for i in range(5):
        one = [v[i : i + 1] for v in (x, c, u, nominal)]
        alone, _ = respond(rule, flow_edge(0.6), *one, rule.init())
        assert torch.equal(alone[0], whole[i])
    for bad in (INF, math.nan, 1e30):  # a neighbour may be anything
        for v in (x, c, u, nominal):
            v[1] = bad
        after, _ = respond(rule, flow_edge(0.6), x, c, u, nominal, rule.init())
        assert torch.equal(whole[0], after[0]) and torch.equal(whole[2:], after[2:])


def test_a_host_refuses_a_cap_before_the_scale():
    with pytest.raises(ValueError, match=r"caps first.*write CFG\(7\) \| Cap\(1.1\)"):
        Session("Cap(1.1) | CFG(7)")
    with pytest.raises(ValueError, match="caps first"):
        PostCFG(CapDisplacement(1.1) | CFG(7))


@pytest.mark.parametrize("rule", [r for r in RULES if not r.caps], ids=str)
def test_on_a_flow_it_is_the_cores_guided_velocity(rule):
    x, c, u, nominal = (v.double() for v in drawn(1))
    out, _ = respond(rule, flow_edge(0.4), x, c, u, nominal, rule.init())
    velocity, _ = guided_velocity(rule, x, 0.6, -c, -u)
    torch.testing.assert_close(out, -velocity, rtol=1e-9, atol=1e-9)


def test_where_the_mean_does_not_depend_on_the_output_nothing_is_made_of_nothing():
    x, c, u, nominal = drawn(2)
    for rule in RULES:
        out, _ = respond(rule, Affine(a=1.0, k=0.0, t=1.0), x, c, u, nominal, rule.init())
        assert out.isfinite().all()
        if rule.caps:
            assert torch.equal(out, nominal)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    sigma=st.floats(1e-3, 1.0),
    gamma=st.floats(1.0, 1.5),
    size=st.floats(1e-3, 1e3),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
)
def test_the_bound_holds_after_rounding_to_the_hosts_dtype(seed, sigma, gamma, size, dtype):
    if dtype == torch.float16:
        size = min(size, 100.0)  # float16 ends at 65504
    x, c, u, nominal = (v.mul(size).to(dtype) for v in drawn(seed))
    out, _ = respond(Cap(gamma), flow_edge(sigma), x, c, u, nominal, None)
    assert out.dtype == dtype
    m, m_c = (x.double() - sigma * v.double() for v in (out, c))
    ratio = m.flatten(1).norm(dim=1) / m_c.flatten(1).norm(dim=1)
    allowed = 4 * 2.0**-24 if dtype == torch.float32 else 2e-3
    assert float(ratio.max()) <= gamma * (1 + allowed)


def test_state_advances_with_the_first_stage_only():
    session, steps = Session(apg(4.0, radius=None)), [drawn(seed) for seed in range(3)]

    def run(*stages):
        session.begin()
        assert len(session.record) == 0
        return [session.guide(flow_edge(0.9), *steps[i], first=i != 1) for i in range(3) if stages[i]][-1]

    two_steps, with_a_stage = run(True, False, True), run(True, True, True)
    assert torch.equal(two_steps, with_a_stage)  # the stage between them is not remembered
    assert not torch.equal(two_steps, run(False, False, True))  # the first step is


def test_the_record_agrees_with_the_definitions():
    late = RunRecord()  # the gap is a millionth of the mean, in float32; the requested scale is known
    respond(Cap(INF), flow_edge(1e-6), *drawn(3), None, late)
    for scale in (late.stacked()["asked"], late.stacked()["scale"]):
        torch.testing.assert_close(scale, torch.full_like(scale, 7.0), rtol=1e-4, atol=0)
    x, c, u, nominal = (v.double() for v in drawn(3))
    record, sigma = RunRecord(), 0.7
    out, _ = respond(Cap(1.02), flow_edge(sigma), x, c, u, nominal, None, record)
    m_c, m_u, m = ((x - sigma * v).flatten(1) for v in (c, u, out))
    s = {k: v[0] for k, v in record.stacked().items()}
    gap = m_c - m_u
    torch.testing.assert_close(s["gap"], gap.norm(dim=1))
    torch.testing.assert_close(s["ratio"], m.norm(dim=1) / m_c.norm(dim=1))
    torch.testing.assert_close(s["cosine"], torch.cosine_similarity(m_c, gap, dim=1))
    torch.testing.assert_close(s["scale"], 1 + ((m - m_c) * gap).sum(1) / gap.square().sum(1))
    torch.testing.assert_close(s["asked"], torch.full_like(s["asked"], 7.0))
    assert s["active"].tolist() == (s["scale"] < 6.999).tolist()


@pytest.fixture
def record():
    session = Session(Cap(1.02))
    for seed, sigma in enumerate((1.0, 0.7, 0.2)):
        session.guide(flow_edge(sigma), *drawn(seed))
    session.record.about = {"pipeline": "Some", "rule": "Cap(1.02)"}
    return session.record


def test_a_record_is_saved_with_what_it_belongs_to(record, tmp_path):
    stored = json.loads(record.save(tmp_path / "run.json").read_text())
    assert stored["rows"] == record.rows() and stored["summary"] == record.summary()
    assert stored["about"] == record.about


def test_the_plot_shows_every_sample_under_the_rule_and_the_summary(record):
    pytest.importorskip("matplotlib")
    figure = record.plot()
    assert figure.get_suptitle() == f"Cap(1.02)\n{record.summary()}"
    ratio = next(axes for axes in figure.axes if axes.get_title().startswith("ratio"))
    lines = [torch.as_tensor(line.get_ydata()) for line in ratio.lines]
    assert len(lines) > 3 and torch.equal(lines[0].double(), record.stacked()["ratio"][:, 0].double())


def test_a_cap_on_a_formula_of_the_host_needs_its_result_alone():
    """The first sample gets no guidance, the second too much, the third a little."""
    x, c = torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(0)).unbind()
    nominal = c + torch.tensor([0.0, 4.0, 1e-3])[:, None] * x
    session = Session(Cap(1.1))
    found = session.limit(Affine(0.0, 1.0, t=0.5), x, c, nominal)
    assert torch.equal(found[[0, 2]], nominal[[0, 2]])
    assert float(found[1].norm() / c[1].norm()) == pytest.approx(1.1)
    scale = session.record.stacked()["scale"][0]
    assert float(scale[0]) == 1 < float(scale[1]) < 1.9 and float(scale[2]) == pytest.approx(2, abs=1e-3)
    assert session.record.summary().startswith("kept 0% to 100% of the host's own guidance; capped on 33%")
    for rule in ("CFG(3)", "Cap(1.1, anchor='first')"):
        with pytest.raises(ValueError, match="Some guides by a formula of its own"):
            Session(rule).need_caps("Some")
