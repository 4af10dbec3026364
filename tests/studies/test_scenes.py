"""Comparisons at equal use and equal adherence read the curve of fixed guidance where they say."""

import math

import pytest
import torch
from meancap.report.scenes_compared import compared, contrast_rows, interpolated, reaching
from meancap.runs.scenes_readings import CLAUSES, SceneReading

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
