"""The scenes study: prompts and rules as it says, a table that adds up, comparisons where they say."""

import math
from dataclasses import replace

import pytest
import torch

from meancap import Cap
from meancap.scenes import codes, parse_prompt
from meancap.scenes.model import SHIPPED
from studies.common import Cells, read_csv, write_csv
from studies.scenes.compare import (
    CLAUSES,
    SceneReading,
    compared,
    contrast_rows,
    interpolated,
    reaching,
    read_readings,
)
from studies.scenes.study import (
    HERE,
    PARTS,
    QUICK,
    Study,
    complete_and_partial,
    measure_part,
    settings,
    with_negatives,
    write_comparisons,
)

PILOTS = {
    "radii": {"2": 10.0, "4": 5.0, "7": 5.0, "15": 2.5},
    "temperature": 4.0,
    "best": {"scenes": 4.0, "wrong": 4.0},
    "calibrated": {"scenes": str(Cap(1.2)), "wrong": str(Cap(1.3))},
}
LOGS = torch.log(torch.tensor([1.0, 4.0, 16.0], dtype=torch.float64))
CURVE = torch.tensor([[0.5], [0.7], [0.9]], dtype=torch.float64)


def at(scale: float) -> torch.Tensor:
    return torch.tensor([math.log(scale)], dtype=torch.float64)


def reading(method: str, scale: float, share: float, used: float = 0.0) -> SceneReading:
    """Of 100 pictures the first share is right and drawn."""
    hits = torch.arange(100) < 100 * share
    numbers = {"saturation": torch.full((100,), share), "clipped": torch.zeros(100)}
    right = dict.fromkeys(("all", *CLAUSES), hits)
    return SceneReading("scenes", method, "", scale, used or scale, 1, right, hits, None, numbers)


def test_between_scales_the_curve_is_straight_in_the_logarithm():
    assert interpolated(LOGS, CURVE, at(2.0)).item() == pytest.approx(0.6)
    assert interpolated(LOGS, CURVE, at(8.0)).item() == pytest.approx(0.8)
    assert interpolated(LOGS, CURVE, at(16.0)).item() == pytest.approx(0.9)
    assert interpolated(LOGS, CURVE, at(50.0)).isnan() and interpolated(LOGS, CURVE, at(math.nan)).isnan()
    levels = [reaching(LOGS, CURVE, torch.tensor([v], dtype=torch.float64)).exp() for v in (0.8, 0.2, 0.95)]
    assert levels[0].item() == pytest.approx(8.0) and levels[1].item() == 1 and levels[2].isnan()


def test_the_three_comparisons_of_a_rule():
    rows = [reading("Conditional", 1, 0.5), reading("CFG", 4, 0.7), reading("CFG", 16, 0.9)]
    lines = compared([*rows, reading("Cap", 16, 0.8, used=2)])
    assert [line.scale for line in lines] == pytest.approx([16, 2, 8])
    assert [line.columns["drawn"][0] for line in lines] == pytest.approx([-0.1, 0.2, 0.0], abs=1e-9)
    value, low, high = lines[0].columns["drawn"]
    # Lost on ten of a hundred pictures, gained on none: the spread of such a share.
    assert low < value < high and (high - low) / 4 == pytest.approx((0.1 * 0.9 / 100) ** 0.5, rel=0.15)
    beyond = contrast_rows(compared([*rows, reading("Cap", 50, 0.95, used=2)]))
    assert [line["fixed scale"] for line in beyond] == ["not reached", "2", "not reached"]


def test_half_of_the_prompts_are_complete_and_negatives_name_a_colour():
    table = codes(complete_and_partial(40, seed=3))
    assert (table[:20] >= 0).all() and 0.3 < (table[20:] < 0).double().mean() < 0.7
    for prompt, negative in zip(*with_negatives(10, seed=3), strict=True):
        assert parse_prompt(prompt).first.colour is None and parse_prompt(negative).first.colour


def test_rules_share_scales_and_only_caps_go_beyond():
    every = [s for part in PARTS for s in settings(Study(), PILOTS, part)]
    assert len({s.cell(0) for s in every}) == len(every)
    assert {s.method for s in every if s.scale == 50} == {"Cap", "Displacement", "Anchored", "Calibrated"}
    own = {str(s.rule) for s in every if s.part == "wrong" and s.method == "Calibrated"}
    assert own == {f"CFG({scale}) | Cap(1.3)" for scale in (2, 4, 15, 50)}
    starts = {s.scale: s.rule for s in every if s.method == "Feedback"}
    assert starts[4.0].pi == 0.25 and starts[4.0].temperature == 4 and set(starts) == {2, 4, 7, 15}
    assert sum(s.part == "negative" for s in every) == 1 + 2 * 6
    with pytest.raises(ValueError, match="scales above 1"):
        Study(scales=(1.0,))


def test_the_table_adds_up(tmp_path):
    study = replace(QUICK, prompts=8, steps=4)
    cells = Cells(tmp_path, study)
    made = list(measure_part(study, cells, PILOTS, "negative"))
    rows = {f"{row['method']} {row['gamma']}".strip(): row for kind, row in made if kind == "table"}
    truth, fixed, capped = rows["Truth"], rows["CFG"], rows["Cap 1.1"]
    assert truth["right all"] == 1 and truth["drawn"] == 1
    assert fixed["lost"] == fixed["gained"] == 0
    assert capped["right all"] == pytest.approx(fixed["right all"] - capped["lost"] + capped["gained"])
    assert capped["scale used"] <= fixed["scale used"] == 4
    assert 0 < capped["tv error"] < capped["tv"]
    path = write_csv(tmp_path / "readings.csv", (row for kind, row in made if kind == "readings"))
    own = {r.label: r for r in read_readings(path)}["Cap 1.1"]
    assert own.right["all"].double().mean() == pytest.approx(capped["right all"])
    assert own.numbers["saturation"].mean() == pytest.approx(capped["saturation"], abs=1e-3)
    assert own.violated.double().mean() == capped["violated"]


def test_the_shipped_table_agrees_with_what_was_seen_on_each_picture():
    seen = {(r.part, r.method, r.gamma, r.scale): r for r in read_readings(HERE / "readings.csv")}
    rows = [row for row in read_csv(HERE / "table.csv") if row["method"] != "Truth"]
    assert len(rows) == len(seen) and {r.seeds for r in seen.values()} == {3}
    for row in rows:
        r = seen[row["part"], row["method"], row["gamma"], float(row["scale"])]
        assert float(r.right["all"].double().mean()) == pytest.approx(float(row["right all"]), abs=1e-4)
        assert float(r.drawn.double().mean()) == pytest.approx(float(row["drawn"]), abs=1e-4)
        assert float(r.numbers["clipped"].mean()) == pytest.approx(float(row["clipped"]), abs=1e-3)


def test_the_shipped_comparisons_come_from_the_readings(tmp_path):
    (tmp_path / "readings.csv").write_bytes((HERE / "readings.csv").read_bytes())
    write_comparisons(tmp_path)
    assert (tmp_path / "compared.csv").read_bytes() == (HERE / "compared.csv").read_bytes()


def test_the_scores_on_the_card_are_those_of_the_study():
    card = SHIPPED.with_suffix(".md").read_text(encoding="utf-8")
    columns = ("right all", "drawn", "right and drawn", "iou", "saturation", "clipped", "tv")
    for row in read_csv(HERE / "table.csv"):
        if row["part"] == "scenes" and row["method"] in ("Truth", "Conditional", "CFG"):
            name = "renders | –" if row["method"] == "Truth" else f"model | {row['scale']}"
            assert f"| {name} | " + " | ".join(f"{float(row[k]):.3f}" for k in columns) + " |" in card


@pytest.mark.slow
def test_a_cell_of_the_study_is_what_was_shipped(tmp_path):
    """Other processors may round otherwise; the study ran on this code's kind of machine."""
    study = replace(Study(), seeds=(0,), scales=(4.0,), beyond=())
    pilots = PILOTS | {"radii": {"4": 5.0}}
    rows = [row for row in read_csv(HERE / "readings.csv") if row["part"] == "scenes"]
    known = {(row["method"], row["gamma"], row["scale"], row["seed"]): row for row in rows}
    for kind, row in measure_part(study, Cells(tmp_path, study), pilots, "scenes"):
        if kind == "readings" and row["method"] == "CFG":
            old = known["CFG", "", "4.0", "0"]
            hits = [(row[name], old[name]) for name in ("right all", "drawn")]
            assert all(sum(a != b for a, b in zip(*pair, strict=True)) <= 1 for pair in hits)
            return
