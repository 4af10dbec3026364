"""The study of both axes: a distance with its derivative, fair matching, complete seeds, a resumed folder."""

import json
import math

import pytest
import torch

from meancap.rules import parse
from meancap_lab.metrics.score import Estimate
from studies.axes import study as axes
from studies.axes.measure import DIRECTIONS, sliced_distance
from studies.axes.page import Comparison, Reading, interpolated, reaching, read_readings, setting_rows
from studies.common import Cells, write_csv

LOGS = torch.log(torch.tensor([1.0, 4.0, 16.0], dtype=torch.float64))
CURVE = torch.tensor([[0.5], [0.7], [0.9]], dtype=torch.float64)
PILOTS = {"apg": {"3": "apg(3)", "8": "apg(8)"}, "calibrated": "Cap(1.2)", "learned": "CFG(1.1)", "path": ""}


def clouds(n, m, shift=0.0):
    g = torch.Generator().manual_seed(3)
    x, y = torch.randn(n, 6, generator=g), torch.randn(m, 6, generator=g) + shift
    return x, y, torch.arange(n) % 2, torch.arange(m) % 2


def test_the_sliced_distance_of_a_shift_is_the_length_of_the_shift_along_the_directions():
    x, _, label, _ = clouds(40, 40)
    shift = torch.tensor([3.0, 0, 0, 0, 0, 0])
    g = torch.Generator().manual_seed(0)
    directions = torch.randn(6, DIRECTIONS, generator=g)
    along = (shift @ (directions / directions.norm(dim=0))).square().mean().sqrt()
    assert sliced_distance(x, x + shift, label, label).value == pytest.approx(float(along), rel=1e-5)
    assert sliced_distance(x, x[torch.randperm(40)], label, label).value > 0.1  # labels matter
    assert sliced_distance(x, x, label, label).value == pytest.approx(0, abs=1e-6)


def test_the_parts_of_the_sliced_distance_tell_what_leaving_a_point_out_does():
    x, real, label, real_label = clouds(400, 4000, shift=0.8)
    e = sliced_distance(x, real, label, real_label)
    assert float(e.parts.mean()) == pytest.approx(e.value)
    left_out = []
    for i in range(12):
        keep = torch.arange(400) != i
        left_out.append(400 * e.value - 399 * sliced_distance(x[keep], real, label[keep], real_label).value)
    told, found = e.parts[:12] - e.value, torch.tensor(left_out).double() - e.value
    assert torch.corrcoef(torch.stack([told, found]))[0, 1] > 0.98
    assert float(told.std()) == pytest.approx(float(found.std()), rel=0.1)


def at(scale):
    return torch.tensor([math.log(scale)], dtype=torch.float64)


def test_between_scales_the_curve_is_straight_in_the_logarithm():
    values = [interpolated(LOGS, CURVE, at(scale)).item() for scale in (2.0, 8.0, 16.0)]
    assert values == pytest.approx([0.6, 0.8, 0.9])
    assert interpolated(LOGS, CURVE, at(50.0)).isnan() and interpolated(LOGS, CURVE, at(math.nan)).isnan()
    levels = [reaching(LOGS, CURVE, torch.tensor([v], dtype=torch.float64)).exp() for v in (0.8, 0.2, 0.95)]
    assert levels[0].item() == pytest.approx(8.0) and levels[1].item() == 1 and levels[2].isnan()


def reading(method, scale, adherence, distance):
    """50 groups whose noise is shared by all settings."""
    noise = torch.linspace(-0.01, 0.01, 50, dtype=torch.float64)
    values = {"alignment": adherence, "SW2": distance}
    numbers = {name: Estimate(name, v, 1000, v + noise) for name, v in values.items()}
    return Reading("garments", 20, method, scale, (0,), numbers)


def test_a_rule_is_matched_with_fixed_guidance_at_its_adherence():
    fixed = [reading("CFG", 1, 0.5, 0.2), reading("CFG", 4, 0.7, 0.4), reading("CFG", 16, 0.9, 0.8)]
    rule, beyond = reading("Cap(1.1)", 8, 0.8, 0.3), reading("Cap(1.1)", 15, 0.99, 0.3)
    c = Comparison([*fixed, rule, beyond], "garments")
    scale, less, low, high = c.matched(rule, "SW2")
    assert (scale, less) == pytest.approx((8, -0.3)) and low <= less <= high
    # Shared noise moves both sides alike, but the matching scale not at all: the interval has no width.
    assert high - low == pytest.approx(0, abs=1e-9)
    assert all(math.isnan(v) for v in c.matched(beyond, "SW2")[1:])


def test_only_complete_seeds_count(tmp_path):
    def row(method, seed, value):
        about = {"model": "garments", "evaluations": 20, "method": method, "scale": 2.0, "seed": seed}
        return about | {"pictures": 100, "number": "FD", "value": value, "parts": f"{value - 1} {value + 1}"}

    values = {"CFG": (1.0, 3.0, 9.0), "Cap(1.1)": (2.0, 4.0)}
    rows = [row(method, seed, v) for method, own in values.items() for seed, v in enumerate(own)]
    fixed, capped = read_readings(write_csv(tmp_path / "readings.csv", rows))
    assert fixed.seeds == capped.seeds == (0, 1)
    assert fixed.numbers["FD"].value == 2 and fixed.numbers["FD"].parts.tolist() == [0, 2, 2, 4]


def test_settings_are_rules_that_can_be_read_and_cells_differ():
    every = list(axes.settings(PILOTS))
    assert len({s.cell("garments", 20, 0) for s in every}) == len(every)
    assert all(parse(s.rule) is not None for s in every)
    assert {s.scale for s in every if s.method == "CFG"} == set(axes.FIXED)
    assert not any(s.method == "path-matched" for s in every)
    assert [*axes.settings(PILOTS | {"path": "CFG(2)"})] == every  # the rule is there already
    assert "CFG(2.5)" in {s.rule for s in axes.settings(PILOTS | {"path": "CFG(2.5)"})}
    assert {(s.method, s.scale) for s in every} >= set(axes.FEW)


def test_prompts_come_in_pairs_and_leave_the_background_open():
    codes = axes.prompts_of(40, seed=3)
    assert (codes[:, 5] == -1).all() and (codes[:, :5] >= 0).all()
    assert (codes[::2] == codes[1::2]).all() and not (codes == axes.prompts_of(40, seed=4)).all()


def test_a_folder_resumes_and_collects_what_is_made(tmp_path, monkeypatch):
    monkeypatch.setattr(axes, "FIXED", (2.0,))
    monkeypatch.setattr(axes, "RULES", axes.RULES[:1])
    monkeypatch.setattr(axes, "OTHERS", ())
    study = axes.Study(garments=20, scenes=8, seeds=(0,))
    (tmp_path / "pilots-scenes.json").write_text(json.dumps(PILOTS))
    made = []
    make = axes.make_pictures

    def counted(model, rule, *rest):
        made.append(rule)
        return make(model, rule, *rest[:1], 2, *rest[2:])  # two steps instead of twenty

    monkeypatch.setattr(axes, "make_pictures", counted)
    work = axes.Work(study, Cells(tmp_path, study), axes.Truth(tmp_path))
    rows = list(work.readings(["scenes"]))
    assert made == [s.rule for s in axes.settings(PILOTS)] and len(made) == 6
    again = axes.Work(study, Cells(tmp_path, study), axes.Truth(tmp_path), made=True)
    assert list(again.readings(["scenes"])) == rows and len(made) == 6
    real = {row["number"]: float(row["value"]) for row in rows if row["method"] == "real"}
    assert real["drawn"] == 1 and real["iou"] > 0.97


def test_settings_are_computed_from_the_readings(tmp_path):
    rows = setting_rows(read_readings(axes.HERE / "readings.csv"))
    assert write_csv(tmp_path / "settings.csv", rows).read_text() == (axes.HERE / "settings.csv").read_text()
