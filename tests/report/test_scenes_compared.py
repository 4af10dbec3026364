"""Comparisons at equal use and equal adherence read the curve of fixed guidance where they say."""

import csv
import math

import pytest

from meancap.report.scenes_compared import (
    COLUMNS,
    compared,
    fixed_curve,
    interpolated,
    scale_reaching,
    write_compared,
)


def row(method, scale, value, used=None):
    found = {"part": "scenes", "method": method, "scale": scale, "gamma": "", "scale used": used or scale}
    return found | dict.fromkeys(COLUMNS, value)


ROWS = [row("Conditional", 1, 0.5), row("CFG", 4, 0.7), row("CFG", 16, 0.9), row("Cap", 16, 0.8, used=2)]


def test_between_scales_the_curve_is_straight_in_the_logarithm():
    curve = fixed_curve([{k: str(v) for k, v in r.items()} for r in ROWS])
    assert interpolated(curve, 2.0)["tv"] == pytest.approx(0.6) and interpolated(curve, 8.0)[
        "tv"
    ] == pytest.approx(0.8)
    assert interpolated(curve, 50.0) is None and interpolated(curve, math.nan) is None
    assert scale_reaching(curve, "tv", 0.8) == pytest.approx(8.0)
    assert scale_reaching(curve, "tv", 0.2) == 1 and math.isnan(scale_reaching(curve, "tv", 0.95))


def test_the_three_comparisons_of_a_rule(tmp_path):
    with (tmp_path / "table.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(ROWS[0]))
        writer.writeheader()
        writer.writerows(ROWS)
    lines = compared(tmp_path)
    assert [line["fixed scale"] for line in lines] == ["16", "2", "8"]
    assert [line["drawn"] for line in lines] == ["0.800 (0.900)", "0.800 (0.600)", "0.800 (0.800)"]
    assert write_compared(lines, tmp_path / "c.csv").read_text().count("\n") == 4
