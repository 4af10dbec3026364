"""The guidance meter."""

import json
import math
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cases import Blobs, random_prediction
from meancap import (
    CFG,
    Cap,
    CapDisplacement,
    Certificate,
    Prediction,
    Record,
    Rescale,
    apg,
    guide,
    guided_velocity,
    measure,
    noise,
    sample,
    uniform,
)


@given(st.floats(-3, 12), st.integers(0, 999))
def test_the_effective_scale_of_cfg_is_its_scale(scale, seed):
    p = random_prediction(3, 6, seed=seed)
    m, _ = guide(CFG(scale), p)
    found = measure(p, m)
    torch.testing.assert_close(
        found.scale, torch.full((3,), scale, dtype=torch.float64), rtol=1e-9, atol=1e-9
    )
    torch.testing.assert_close(found.gap, p.delta.norm(dim=1))
    torch.testing.assert_close(found.ratio, m.norm(dim=1) / p.m_c.norm(dim=1))
    torch.testing.assert_close(found.cosine, torch.cosine_similarity(p.m_c, p.delta))
    assert not found.active.any()


@pytest.mark.parametrize(
    "rule",
    [CFG(7) | Cap(1.1), CFG(1.1) | CapDisplacement(1.2), apg(7) | Cap(1.05), CFG(4) | Rescale()],
    ids=str,
)
@pytest.mark.parametrize("shape", [(1, 700), (5, 700), (3, 2)])
def test_what_a_record_keeps_is_what_measure_finds(rule, shape):
    p = random_prediction(*shape)
    record = Record()
    m, _ = guide(rule, p, record=record)
    (kept,) = record.measures
    direct = measure(p, m)
    for name in ("t", "gap", "scale", "ratio", "cosine", "length"):
        torch.testing.assert_close(getattr(kept, name), getattr(direct, name), rtol=1e-6, atol=1e-9)


def test_a_cap_is_active_where_it_shortened_something():
    p = random_prediction(6, 20)
    record = Record()
    m, _ = guide(CFG(3) | Cap(1.25), p, record=record)
    nominal, _ = guide(CFG(3), p)
    expected = nominal.norm(dim=1) > 1.25 * p.m_c.norm(dim=1)
    assert expected.any() and not expected.all()
    assert torch.equal(record.measures[0].active, expected)
    assert torch.equal(measure(p, m, nominal).active, expected)


def test_recording_velocities_changes_nothing_and_agrees_with_means():
    g = torch.Generator().manual_seed(0)
    x, v_c, v_u = (torch.randn(4, 3, 16, 16, generator=g) for _ in range(3))
    record, other = Record(), Record()
    v, _ = guided_velocity(CFG(7) | Cap(1.1), x, 0.3, v_c, v_u, record=record)
    assert torch.equal(v, guided_velocity(CFG(7) | Cap(1.1), x, 0.3, v_c, v_u)[0])
    guide(CFG(7) | Cap(1.1), Prediction.from_velocity(x, 0.3, v_c, v_u), record=other)
    for name in ("gap", "scale", "asked", "ratio", "cosine"):
        a, b = (getattr(r.measures[0], name) for r in (record, other))
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def predict(x, t):
    return Prediction.from_velocity(x, t, 1 - x, -x)


def test_the_summary_has_the_requested_and_the_applied_scale():
    record = Record()
    sample(predict, CFG(7) | Cap(1.1), noise(range(5), (3, 8, 8)), uniform(10), record=record)
    s = record.stacked()
    share = s["active"].double().mean()
    assert record.summary() == (
        f"requested scale 7.0, applied {s['scale'].min():.1f} to {s['scale'].max():.1f}; "
        f"capped on {share:.0%} of steps; largest ratio {s['ratio'].max():.3f}"
    )
    assert len(record) == 10 and s["ratio"].max() <= 1.1 * (1 + 1e-6)
    free = Record()
    sample(predict, CFG(2), noise(range(2), (3, 8, 8)), uniform(4), record=free)
    assert free.summary().startswith("requested scale 2.0, applied 2.0; never capped")


@pytest.mark.parametrize("rule", ["apg(8)", "CFG(8) | Interval(0.2, 0.8)", "apg(8) | Cap(1.05)"])
def test_the_summary_prints_the_typed_scale_and_calls_the_rest_effective(rule, tmp_path):
    record = Record()
    sample(predict, rule, noise(range(5), (3, 8, 8)), uniform(10), record=record)
    asked = record.stacked()["asked"]
    effective = f"{asked.min():.1f} to {asked.max():.1f}"
    assert record.summary().startswith(f"requested scale 8.0 (effective {effective}), applied ")
    assert Record.load(record.save(tmp_path / "meter.json")).summary() == record.summary()
    sample(predict, "CFG(3)", noise(range(5), (3, 8, 8)), uniform(10), record=record)
    assert record.summary().startswith("requested scale 3.0, applied 3.0"), (
        "a record that is used again forgets"
    )


@pytest.mark.parametrize("name", ["meter.csv", "meter.json"])
def test_a_saved_record_comes_back(tmp_path, name):
    record = Record()
    sample(predict, CFG(7) | Cap(1.1), noise(range(2), (3, 4)), uniform(3), record=record)
    path = record.save(tmp_path / name)
    assert path.read_text().startswith("step,sample,t,gap" if name.endswith("csv") else "{")
    back = Record.load(path)
    assert back.summary() == record.summary() and len(back.rows()) == 6
    assert [f.name for f in tmp_path.iterdir()] == [name]
    for field, values in record.stacked().items():
        assert torch.equal(back.stacked()[field].double(), values.double())
    for other in ("meter.txt", "meter"):
        with pytest.raises(ValueError, match=rf"saved as \.json or \.csv; got '{other}'"):
            record.save(tmp_path / other)


def test_records_rules_and_predictions_show_themselves_in_a_line():
    record = Record()
    assert repr(record) == "<Record: empty>"
    sample(predict, CFG(7) | Cap(1.1), noise(range(2), (3, 4)), uniform(3), record=record)
    assert repr(record) == f"<Record: {record.summary()}>"
    assert record._repr_html_().startswith("<pre>&lt;Record: requested scale 7.0")
    assert repr(CFG(7) | "Cap(1.1)") == str([CFG(7) | Cap(1.1)])[1:-1] == "CFG(7) | Cap(1.1)"
    assert (
        repr(predict(noise(range(2), (3, 4)), 0.25))
        == "<Prediction at t = 0.25 of a tensor of shape (2, 3, 4)>"
    )


def test_what_json_cannot_say_is_saved_as_null(tmp_path):
    record, nothing = Record(), torch.zeros(1, 3)
    guide(CFG(7), Prediction(nothing, 0.5, nothing, nothing + 1), record=record)
    text = record.save(tmp_path / "meter.json").read_text()
    assert "Infinity" not in text and "NaN" not in text
    assert record.rows()[0]["ratio"] == torch.inf and json.loads(text)["rows"][0]["ratio"] is None


def test_an_empty_record_says_how_to_fill_it():
    with pytest.raises(ValueError, match="record="):
        Record().summary()


def test_no_gap_and_no_mean_have_a_meter_too():
    p = random_prediction(2, 5)
    still = measure(Prediction(p.x, p.t, p.m_c, p.m_c), p.m_c)
    assert (
        still.scale.tolist() == [1, 1] and still.ratio.tolist() == [1, 1] and still.cosine.tolist() == [0, 0]
    )
    zero = torch.zeros_like(p.m_c)
    assert measure(Prediction(p.x, p.t, zero, p.m_u), p.m_c).ratio.isinf().all()


def test_the_meter_shows_the_log_ratio_of_runs_that_follow_it():
    from meancap.rules import density_feedback, feedback_scale

    model, record = Blobs(torch.eye(8).double(), std=0.5), Record()
    x = noise(range(6), (8,)).double()
    sample(model.predict, density_feedback(0.6), x, uniform(8), record=record)
    s = record.stacked()
    assert s["log_ratio"].shape == (8, 6) and float(s["log_ratio"][-1].std()) > 0
    assert torch.allclose(s["asked"], feedback_scale(s["log_ratio"], 0.6, 20.0))
    assert "log R" in record.summary() and "log_ratio" in record.rows()[0]
    sample(model.predict, CFG(2), x, uniform(8), record=record)
    assert "log_ratio" not in record.stacked() and "log R" not in record.summary()


def test_a_lost_sample_takes_nothing_from_what_is_said_of_the_others():
    x, rule = noise(range(4), (3, 5)), CFG(7) | Cap(1.1)

    def predict(y, t, lost):
        m = 0.5 * y
        m[2, 0] = math.nan if lost else m[2, 0]
        return Prediction.from_mean(y, t, m, 0.2 * y)

    whole, broken = Record(), Record()
    sample(partial(predict, lost=False), rule, x, uniform(4), record=whole)
    with pytest.warns(UserWarning, match="1 of 4 samples"):
        sample(partial(predict, lost=True), rule, x, uniform(4), record=broken)
    bound, found = whole.certificate(), broken.certificate()
    others = [0, 1, 3]
    assert found.proved and torch.equal(found.bound[others], bound.bound[others]) and found.bound[2].isnan()
    assert "over 3 samples (nothing of 1, which are NaN), proved" in str(found)
    assert "nan" not in broken.summary() and broken.summary().startswith("requested scale 7.0")


def test_a_bound_stays_one_when_it_is_printed():
    for value in (8.77730, 1.00001, 9.9999, 0.0123449, 12345.6, 3.0):
        printed = float(
            str(Certificate(torch.tensor([value], dtype=torch.float64), (), 1.1, True)).split()[2]
        )
        assert value <= printed <= value * 1.001
