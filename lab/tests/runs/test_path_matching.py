"""Path matching: an exact model walks the path of its examples, a wrong scale leaves it."""

from dataclasses import replace

import pytest
import torch

from meancap import Calibration, Record, heun, noise, sample, uniform
from meancap_lab.mixtures.problems import problem
from meancap_lab.runs.path_matching import Follow, PathStatistics, match_paths, path_statistics

COUNT = 400


def walked(name, rule, steps=40, count=COUNT, step=None):
    """A problem's model under a rule or along its examples; the record and the end."""
    case, record = problem(name), Record()
    data = case.condition().conditional.sample(count, torch.Generator().manual_seed(1))
    start = noise(range(count), data.shape[1:]).double()
    follow = Follow(data) if rule is None else rule
    x = sample(case.model().predict, follow, start, uniform(steps), *([step] if step else []), record=record)
    return record, x, data


def matched(name, *rules, **size):
    real = path_statistics(walked(name, None, **size)[0])
    return match_paths(real, {rule: path_statistics(walked(name, rule, **size)[0]) for rule in rules})


@pytest.mark.parametrize("step", [None, heun])
def test_following_the_examples_ends_on_them_along_straight_lines(step):
    record, x, data = walked("under-8", None, 5, 16, step)
    torch.testing.assert_close(x, data, rtol=0, atol=1e-12)
    start, predict = noise(range(16), (8,)).double(), problem("under-8").model().predict
    for one in record.measures:
        t = float(one.t[0])
        p = predict(torch.lerp(start, data, t), t)
        torch.testing.assert_close(one.gap, p.delta.norm(dim=1), rtol=1e-9, atol=1e-12)


def test_an_exact_model_is_on_the_path_of_its_examples_and_guidance_leaves_it():
    match = matched("overlap-triple", "CFG(1)", "CFG(2)", "CFG(3) | Cap(1.1)")
    one, two, three = match.candidates
    assert match.rule == "CFG(1)" and one.low < 0.05 and one.chosen == 1
    assert two.excess > 0 and three.excess > 0 and two.mismatch > 3 * match.error


def test_an_under_conditioned_model_gets_the_scale_that_repairs_it():
    match = matched("under-8", "CFG(1)", "CFG(1.5)", "CFG(2)", "CFG(3)")
    assert match.rule == "CFG(2)" and "within the error" not in match.summary().split("; ")[0]


def test_the_choice_does_not_depend_on_the_order_of_samples_or_rules():
    runs = {rule: path_statistics(walked("under-8", rule, 10, 64)[0]) for rule in ("CFG(1)", "CFG(2)")}
    real = path_statistics(walked("under-8", None, 10, 64)[0])
    order = torch.randperm(64, generator=torch.Generator().manual_seed(0))

    def mixed(run):
        return PathStatistics(run.times, run.values[order])

    first = match_paths(real, runs)
    second = match_paths(mixed(real), {rule: mixed(runs[rule]) for rule in reversed(runs)})
    assert [c.mismatch for c in first.candidates] == pytest.approx(
        [c.mismatch for c in reversed(second.candidates)], rel=1e-4
    )


def test_a_lost_run_is_never_chosen_and_a_poor_match_says_so():
    real = path_statistics(walked("overlap-triple", None, 10, 64)[0])
    lost = PathStatistics(real.times, real.values * torch.nan)
    far = PathStatistics(real.times, real.values + 5 * real.values.std(0))
    match = match_paths(real, {"CFG(9)": lost, "CFG(2)": far})
    assert match.rule == "CFG(2)" and "No candidate comes within" in match.summary()


def test_predictions_without_a_gap_match_under_every_rule(tmp_path):
    real = path_statistics(walked("overlap-triple", None, 5, 16)[0])
    flat = PathStatistics(real.times, real.values * torch.tensor([0.0, 1.0, 0.0]))
    match = match_paths(flat, {"CFG(1)": flat, "CFG(2)": flat})
    assert match.rule == "CFG(1)" and match.best.mismatch == 0 and match.gaps.ratio(0.5, 1.0) == 0
    found = match.calibration(seed=3, calls=7)
    assert Calibration.load(found.save(tmp_path / "m.json")) == found and found.gaps == match.gaps
    assert match.gaps.compare([0.5], [1.0]) == "no gap to compare with that of real examples"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda real: {}, "at least one run"),
        (lambda real: {"CFG(1)": PathStatistics(real.times, real.values[:-1])}, "one sample for each"),
        (lambda real: {"CFG(1)": PathStatistics(real.times[::-1], real.values)}, "times of the examples"),
    ],
)
def test_runs_that_do_not_fit_the_examples_raise(change, words):
    real = path_statistics(walked("overlap-triple", None, 4, 16)[0])
    with pytest.raises(ValueError, match=words):
        match_paths(real, change(real))


def test_a_record_compares_its_gap_with_that_of_the_examples(tmp_path):
    match = matched("under-8", "CFG(1)", "CFG(2)", steps=10, count=64)
    record = walked("under-8", "CFG(5)", 10, 64)[0]
    plain = record.summary()
    record.reference = match.calibration()
    assert record.summary().startswith(f"{plain}; squared gap ")
    record.plot(tmp_path / "meter.png")
    own = walked("under-8", None, 10, 64)[0]
    own.reference = match.calibration()
    assert "; squared gap 1 x that of real examples" in own.summary()
    late = match.gaps.compare([0.0, 0.1, 0.99], [9e9, match.gaps.gap[1], 9e9])
    assert late == "squared gap 1 x that of real examples at t = 0.1"  # noise and unknown times do not count
    assert match.gaps.ratio(0.5, 1e300) > 1e300
    doubled = replace(match, real={**match.real, "gap": tuple(g / 2 for g in match.real["gap"])})
    own.reference = doubled.calibration()
    assert "; squared gap 4 x that of real examples" in own.summary()
