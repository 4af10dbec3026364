"""The pages of the two studies are what their shipped readings give."""

import csv
from pathlib import Path

import pytest
import torch
from meancap.report.scores.seeds import between
from meancap.runs.pooled import Pooled, grouped, read_pooled, write_pooled
from meancap.runs.scenes_readings import read_readings

from meancap.metrics.score import Estimate
from tools import fashion_page, scenes_page

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize(("tool", "name"), [(scenes_page, "scenes.md"), (fashion_page, "fashion.md")])
def test_a_page_is_worked_out_from_what_is_shipped(tool, name):
    assert tool.page(DOCS) == (DOCS / name).read_text(encoding="utf-8")


def test_the_table_of_the_scenes_agrees_with_what_was_seen_on_each_picture():
    seen = {(r.part, r.method, r.gamma, r.scale): r for r in read_readings(DOCS / "scenes" / "readings.csv")}
    with (DOCS / "scenes" / "table.csv").open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["method"] != "Truth"]
    assert len(rows) == len(seen) and {r.seeds for r in seen.values()} == {3}
    for row in rows:
        r = seen[row["part"], row["method"], row["gamma"], float(row["scale"])]
        assert float(r.right["all"].double().mean()) == pytest.approx(float(row["right all"]), abs=1e-4)
        assert float(r.drawn.double().mean()) == pytest.approx(float(row["drawn"]), abs=1e-4)
        assert float(r.numbers["clipped"].mean()) == pytest.approx(float(row["clipped"]), abs=1e-3)


def test_parts_of_groups_say_what_parts_of_pictures_said(tmp_path):
    values = torch.arange(120, dtype=torch.float64)
    e = grouped(Estimate("alignment", float(values.mean()), 120, values))
    assert len(e.parts) == 50 and e.parts[3] == values[[3, 53, 103]].mean()
    one = Pooled("PMC", 6.0, 1.1, 20, "CFG(6) | Cap(1.1)", 2.5, {"alignment": e}, {"alignment": (1.0, 2.0)})
    (again,) = read_pooled(write_pooled([one], tmp_path / "readings.csv"))
    assert again.label == "PMC 1.1" and again.rule == one.rule and again.seeds == one.seeds
    torch.testing.assert_close(again.numbers["alignment"].parts, e.parts, rtol=1e-4, atol=0)


def test_fixed_guidance_between_two_scales_is_read_on_a_straight_line_over_the_logarithm():
    curve = {s: {"FD": Estimate("FD", v, 9, torch.full((9,), v))} for s, v in ((2.0, 0.4), (8.0, 0.8))}
    middle = between(curve, 4.0)["FD"]
    assert middle.value == pytest.approx(0.6) and float(middle.parts[0]) == pytest.approx(0.6)
    assert between(curve, 9.0) is None
