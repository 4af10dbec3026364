"""A scale from data: 1 for an exact model, 1 / (1 - eta) for an under-conditioned one, at 300 examples."""

from dataclasses import replace

import pytest
import torch

from meancap import Calibration, Cap, Piecewise, Prediction, parse
from meancap_lab.cli import main
from meancap_lab.mixtures.problems import problem
from meancap_lab.runs.calibrate import KNOTS, LARGEST, learn_scale, shrunk_scale

EARLY = tuple(t for t in KNOTS if t <= 0.8)


def learned(case, seed, times=EARLY, **more):
    data = case.condition().conditional.sample(300, torch.Generator().manual_seed(100 + seed))
    return learn_scale([(case.model().predict, data)], times, seed=seed, **more)


@pytest.mark.parametrize("name", ["overlap-triple", "off-centre-8", "under-triple", "under-8"])
@pytest.mark.parametrize("eta", [None, 0.25])
def test_an_exact_model_has_scale_1_and_an_under_conditioned_one_its_own(name, eta):
    """Of 20 intervals of 95 %, fewer than 15 hold with probability 3e-4; times of one seed go together."""
    case = problem(name) if eta is None else replace(problem(name), eta=eta)
    found = [learned(case, seed, (0.1, 0.5)).curves for seed in range(20)]
    due = 1 / (1 - case.eta)
    for at in range(2):
        assert sum(one["low"][at] <= due <= one["high"][at] for one in found) >= 15
        assert sum(one["estimate"][at] for one in found) / 20 == pytest.approx(due, rel=0.03)


def test_a_gap_that_is_too_long_gets_a_scale_below_1():
    case = problem("overlap-triple")

    def long(x, t):
        p = case.model().predict(x, t)
        return replace(p, out_c=p.m_u + 2 * p.delta, gap=2 * p.delta)

    data = case.condition().conditional.sample(300, torch.Generator().manual_seed(0))
    exact = learn_scale([(case.model().predict, data)], EARLY)
    doubled = learn_scale([(long, data)], EARLY)
    for a, b in zip(exact.curves["estimate"], doubled.curves["estimate"], strict=True):
        assert b == pytest.approx(a / 2, rel=1e-4)


def test_batches_change_nothing():
    case = problem("under-8")
    predict, data = case.model().predict, case.condition().conditional.sample(64)
    whole = learn_scale([(predict, data)], (0.2, 0.6))
    parts = learn_scale([(predict, part) for part in data.split(17)], (0.2, 0.6))
    assert whole == parts


def test_it_saves_loads_parses_and_takes_a_cap(tmp_path):
    found = learned(problem("under-8"), 0, (0.1, 0.5))
    assert Calibration.load(found.save(tmp_path / "rule.json")) == found
    rule = found | Cap(1.1)
    assert parse(str(rule)) == rule and str(rule).startswith("CFG(Piecewise([0.1, 0.5], [")
    assert (found.method, found.examples, found.calls) == ("least squares", 300, 1200)


def test_a_scale_is_drawn_to_one_by_its_error_and_never_leaves_its_bounds():
    rows = [
        (2.0, 1e-3, 2.0), (2.0, 1.0, 1.5), (3.0, 1.0, 2.0), (0.5, 0.5, 0.75), (2.0, 1e6, 1.0),
        (1e9, 1e9, 1.0), (1e9, 0.0, LARGEST), (-1e9, 0.0, 0.0), (1.0, 0.0, 1.0), (1.0, 5.0, 1.0),
        (1e300, 1e300, 1.0), (float("inf"), float("nan"), 1.0),
    ]  # fmt: skip
    value, error, due = torch.tensor(rows, dtype=torch.float64).T
    torch.testing.assert_close(shrunk_scale(value, error), due, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("size", [1e-9, 1e-12, 1e-30, 1e-150, 1e-300, 0.0])
def test_a_gap_that_almost_vanishes_says_nothing_of_the_scale(size):
    """Its direction is chance, so that <data - m_u, D> / |D|^2 is 1 / size; the scale stays 1."""
    draw = torch.Generator().manual_seed(0)
    data = torch.randn(64, 4, generator=draw, dtype=torch.float64)

    def predict(x, t):
        gap = size * torch.randn(x.shape, generator=draw, dtype=x.dtype) if t > 0.5 else 0.5 * x
        return replace(Prediction.from_mean(x, t, x + gap, x), gap=gap)

    found = learn_scale([(predict, data)], (0.1, 0.5, 0.7, 0.9))
    (rule,) = found.parts
    assert isinstance(rule.scale, Piecewise)
    assert rule.scale.values[2:] == pytest.approx((1, 1), abs=1e-6) and max(rule.scale.values) <= LARGEST


def test_one_example_with_a_gap_is_not_trusted():
    """63 of 64 examples have none: leaving out the one changes all, so the error is that of the estimate."""
    data = torch.ones(64, 2, dtype=torch.float64)

    def predict(x, t):
        gap = torch.zeros_like(x)
        gap[0] = 1 / 3
        return Prediction.from_mean(x, t, gap, torch.zeros_like(x))

    (rule,) = learn_scale([(predict, data)], (0.5,)).parts
    assert rule.scale.values[0] == pytest.approx(1 + 2 / (1 + 4 * (63 / 64) ** 2), rel=1e-4)


def test_the_command_and_its_refusals(tmp_path, capsys):
    out = tmp_path / "scale.json"
    command = ["calibrate", "--learn", "scale", "--model", "lab:under-8", "--samples", "64"]
    command += ["--out", str(out)]
    assert main(command) == 0
    assert "64 examples; CFG(Piecewise(" in capsys.readouterr().out
    assert Calibration.load(out).model == "lab:under-8"
    assert main([*command[:4], "fashion", *command[5:]]) == 2
    assert "needs --data DIR" in capsys.readouterr().err
    for times, words in (((0.0, 0.5), "between 0 and 1"), ((0.5,), "at least 32 examples")):
        with pytest.raises(ValueError, match=words):
            learn_scale([(problem("under-8").model().predict, torch.zeros(3, 8).double())], times)
