"""A scale from data: 1 for an exact model, 1 / (1 - eta) for an under-conditioned one, at 300 examples."""

import json
from dataclasses import replace

import pytest
import torch

from meancap import CFG, Cap, parse
from meancap_lab.cli import main
from meancap_lab.mixtures.problems import problem
from meancap_lab.runs.calibrate import KNOTS, LearnedScale, learn_scale, load_scale

EARLY = tuple(t for t in KNOTS if t <= 0.8)


def learned(case, seed, times=EARLY, **more):
    data = case.condition().conditional.sample(300, torch.Generator().manual_seed(100 + seed))
    return learn_scale([(case.model().predict, data)], times, seed=seed, resamples=400, **more)


@pytest.mark.parametrize("name", ["overlap-triple", "off-centre-8", "under-triple", "under-8"])
@pytest.mark.parametrize("eta", [None, 0.25])
def test_an_exact_model_has_scale_1_and_an_under_conditioned_one_its_own(name, eta):
    """Of 20 intervals of 95 %, fewer than 15 hold with probability 3e-4; times of one seed go together."""
    case = problem(name) if eta is None else replace(problem(name), eta=eta)
    found = [learned(case, seed, (0.1, 0.5)) for seed in range(20)]
    due = 1 / (1 - case.eta)
    for at in range(2):
        assert sum(one.low[at] <= due <= one.high[at] for one in found) >= 15
        assert sum(one.values[at] for one in found) / 20 == pytest.approx(due, rel=0.03)


def test_a_gap_that_is_too_long_gets_a_scale_below_1():
    case = problem("overlap-triple")

    def long(x, t):
        p = case.model().predict(x, t)
        return replace(p, out_c=p.m_u + 2 * p.delta, gap=2 * p.delta)

    data = case.condition().conditional.sample(300, torch.Generator().manual_seed(0))
    exact = learn_scale([(case.model().predict, data)], EARLY)
    doubled = learn_scale([(long, data)], EARLY)
    for a, b in zip(exact.values, doubled.values, strict=True):
        assert b == pytest.approx(a / 2, rel=1e-4)


def test_batches_change_nothing():
    case = problem("under-8")
    predict, data = case.model().predict, case.condition().conditional.sample(64)
    whole = learn_scale([(predict, data)], (0.2, 0.6))
    parts = learn_scale([(predict, part) for part in data.split(17)], (0.2, 0.6))
    assert whole == parts


def test_it_saves_loads_parses_and_takes_a_cap(tmp_path):
    found = learned(problem("under-8"), 0, (0.1, 0.5))
    assert load_scale(found.save(tmp_path / "s.json")) == found
    rule = CFG(load_scale(tmp_path / "s.json").schedule) | Cap(1.1)
    assert parse(str(rule)) == rule and str(rule).startswith("CFG(Piecewise([0.1, 0.5], [")
    assert found.rule == CFG(found.schedule)
    (tmp_path / "s.json").write_text(json.dumps({"format": 1, "kind": "scale", "times": [0.1]}))
    with pytest.raises(ValueError, match="is no scale file"):
        load_scale(tmp_path / "s.json")
    (tmp_path / "s.json").write_text("{}")
    with pytest.raises(ValueError, match="is no scale file"):
        load_scale(tmp_path / "s.json")


def test_a_time_that_says_nothing_is_left_out():
    found = LearnedScale((0.1, 0.5, 0.9), (1.1, 1.2, -4.0), (1.0, 1.1, -9.0), (1.2, 1.3, 3.0), 300)
    assert str(found.rule) == "CFG(Piecewise([0.1, 0.5], [1.1, 1.2]))"
    nothing = LearnedScale((0.9,), (-4.0,), (-9.0,), (3.0,), 300)
    assert nothing.schedule(0.5) == 1


def test_the_command_and_its_refusals(tmp_path, capsys):
    out = tmp_path / "scale.json"
    command = ["calibrate", "--learn", "scale", "--model", "lab:under-8", "--samples", "64"]
    command += ["--out", str(out)]
    assert main(command) == 0
    assert "64 examples; CFG(Piecewise(" in capsys.readouterr().out
    assert load_scale(out).model == "lab:under-8"
    assert main([*command[:4], "fashion", *command[5:]]) == 2
    assert "needs --data DIR" in capsys.readouterr().err
    for times, words in (((0.0, 0.5), "between 0 and 1"), ((0.5,), "at least 32 examples")):
        with pytest.raises(ValueError, match=words):
            learn_scale([(problem("under-8").model().predict, torch.zeros(3, 8).double())], times)
