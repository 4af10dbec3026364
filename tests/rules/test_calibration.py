"""A calibration is a rule in a file: it comes back equal and runs as its rule; a pilot measures by hand."""

import json
import logging

import pytest
import torch

from meancap import CFG, Calibration, Cap, Piecewise, Prediction, heun, noise, parse, sample, uniform
from meancap.adapters.session import Session
from meancap.rules import Pilot, auto, calibration

TIMES = uniform(4)


def predict(x, t):
    """Means that depend on the state, of a model whose data lie round 2 and 1."""
    return Prediction.from_mean(x, t, 2 + 0.3 * x, 1 + 0.1 * x)


def pilot(count=20, shape=(3, 2, 2), per="channel", runs=1, step=None):
    found, start = Pilot(per), noise(range(count), shape).double()
    for part in start.chunk(runs):
        x = sample(predict, found, part, TIMES, *([step] if step else []))
        assert torch.equal(x, sample(predict, CFG(1), part, TIMES, *([step] if step else [])))
    return found


DRAW = torch.Generator().manual_seed(0)
RULES = [
    CFG(2) | Cap(1.1),
    CFG(Piecewise((0.1, 0.9), (1 / 3, 1e-9))),
    Cap(1, anchor=torch.randn(3, 5, generator=DRAW), floor=Piecewise((0.0,), (2.5,))),
    Cap(1, anchor=torch.randn(4, generator=DRAW).double() / 3, whiten=torch.randn(4, 4, generator=DRAW)),
]


@pytest.mark.parametrize("rule", RULES, ids=range(4))
def test_a_file_gives_back_an_equal_calibration(rule, tmp_path):
    curves = {"t": (0.0, 0.5), "gap": (1 / 3, 1e-300)}
    details = {"error": 0.25, "candidates": [{"rule": "CFG(1)", "curves": {"gap": (1.0, 2.0)}}]}
    found = Calibration(rule.parts, "path matching", "m", 64, 3, 128, curves=curves, details=details)
    again = Calibration.load(found.save(tmp_path / "rule.json"))
    assert again == found and again.parts == rule.parts and str(again) == str(rule)
    assert again.versions["torch"] == torch.__version__ and hash(again) == hash(found)


def test_every_kind_of_calibration_is_read_by_the_one_reader(tmp_path):
    """`meancap calibrate` wrote files that the reader of pilots refused, and told to write with it."""
    kinds = {
        "pilot": pilot().calibration(),
        "path matching": Calibration((CFG(2), Cap(1.1)), "path matching"),
    }
    kinds["least squares"] = Calibration((CFG(Piecewise((0.5,), (1.2,))),), "least squares")
    for method, found in kinds.items():
        again = Calibration.load(found.save(tmp_path / "rule.json"))
        assert again == found and again.method == method


def test_a_calibration_is_taken_wherever_a_rule_is():
    rule, x = CFG(3) | Cap(1.1, anchor="first"), noise(range(4), (3,)).double()
    found = Calibration(rule.parts, "path matching")
    due = sample(predict, rule, x, TIMES)
    for given in (found, str(found), auto(found), CFG(3) | Calibration(rule.parts[1:])):
        assert torch.equal(sample(predict, given, x, TIMES), due)
    assert Session(found).rule is found and not found.caps and Calibration((Cap(1.1),)).caps
    with pytest.raises(ValueError, match="Calibration"):
        parse("Calibration([CFG(2)])")


def test_damaged_files_are_named(tmp_path):
    path = Calibration((CFG(2),), curves={"t": (0.0, 0.5), "gap": (1.0, 2.0)}).save(tmp_path / "rule.json")
    good = json.loads(path.read_text())
    for wrong, words in (
        ({"format": 9}, "another format"), ({"rule": "open('x')"}, "unknown name 'open'"),
        ({"curves": {"t": [0.0], "gap": [1.0, 2.0]}}, "'gap' does not fit"), ({"curves": 3}, "items"),
        ({"curves": {"gap": [1.0]}}, "'gap'"), ({"rules": []}, "rules"), ({"unknown": 1}, "unknown"),
    ):  # fmt: skip
        path.write_text(json.dumps({**good, **wrong}))
        with pytest.raises(ValueError, match=f"rule.json cannot be read as a calibration.*{words}"):
            Calibration.load(path)
    for text in ("", "[]", "3", '{"format": 1}'):
        path.write_text(text)
        with pytest.raises(ValueError, match="cannot be read as a calibration"):
            Calibration.load(path)
    with pytest.raises(ValueError, match="no gap of real examples"):
        _ = Calibration((CFG(2),), "pilot").gaps


def test_a_rule_that_no_text_gives_back_is_not_saved(tmp_path):
    with pytest.raises(ValueError, match="Pilot"):
        Calibration((Pilot(),)).save(tmp_path / "rule.json")
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("per", ["channel", "element"])
@pytest.mark.parametrize("step", [None, heun])
def test_anchor_and_radii_of_a_pilot_are_those_by_hand(per, step):
    found, x = pilot(per=per, step=step), noise(range(20), (3, 2, 2)).double()
    anchor = predict(x, 0.0).m_u.mean(0)
    anchor = anchor.mean((1, 2)) if per == "channel" else anchor
    cap = found.cap("q75")
    torch.testing.assert_close(cap.anchor.tensor(anchor), anchor, rtol=1e-5, atol=1e-6)
    m_c = predict(x, 0.0).m_c - (anchor[:, None, None] if per == "channel" else anchor)
    radii = m_c.flatten(1).norm(dim=1)
    made = found.calibration("q75", model="m", seed=0)
    assert made.parts == (cap,) and (made.examples, made.calls) == (20, 160)
    assert made.curves["t"] == tuple(TIMES[:-1]) == cap.floor.times and made.curves["q75"] == cap.floor.values
    assert made.curves["q75"][0] == pytest.approx(float(radii.quantile(0.75)), rel=1e-4)
    assert made.curves["rms"][0] == pytest.approx(float(radii.square().mean().sqrt()), rel=1e-4)


def test_batches_of_a_pilot_change_nothing_and_other_states_are_not_measured():
    whole, parts = pilot(), pilot(runs=3)
    sample(predict, parts, noise(range(7), (5,)).double(), TIMES)  # as a host steps its audio
    assert parts.cap() == whole.cap() and parts.calibration() == whole.calibration()


def test_a_pilot_needs_enough_samples_equal_runs_and_a_known_level():
    with pytest.raises(ValueError, match="at least 16 samples for its quantiles; got 15"):
        pilot(15).cap()
    with pytest.raises(ValueError, match="got 0"):
        Pilot().calibration()
    found = pilot()
    with pytest.raises(ValueError, match="levels rms, q50, q75, q90, q97; got 'q99'"):
        found.cap("q99")
    sample(predict, found, noise(range(4), (3, 2, 2)).double(), uniform(3))
    with pytest.raises(ValueError, match="same number of steps"):
        found.cap()
    with pytest.raises(ValueError, match="per='channel' or 'element'"):
        Pilot("pixel")


def test_auto_is_the_anchored_cap_wherever_a_rule_is_typed_and_is_logged_once(caplog):
    wanted = CFG(2) | Cap(1.1, anchor="first")
    calibration._announce.cache_clear()
    with caplog.at_level(logging.INFO, "meancap"):
        assert parse("auto") == parse("auto()") == wanted and parse("auto(5)").parts[0] == CFG(5)
    assert [r.getMessage().split(",")[0] for r in caplog.records] == [
        "auto: CFG(2) | Cap(1.1", "auto: CFG(5) | Cap(1.1",
    ]  # fmt: skip
    x = noise(range(4), (3,)).double()
    assert Session("auto").rule == wanted
    assert torch.equal(*(sample(predict, rule, x, TIMES) for rule in ("auto", wanted)))
    with pytest.raises(ValueError, match="auto"):
        parse("auto('rule.json')")  # a text never opens a file
