"""One cell: scores are what they say, and equal alignment is equal."""

import json

import pytest

from meancap_lab.bench.cases import read_cases
from meancap_lab.bench.families import FIXED, PERFECT, UNGUIDED, family_of
from meancap_lab.bench.trials import Bench, score_cell

CASES = read_cases()
LEAK = next(one for one in CASES if one.kind == "leak" and one.dimension == 4)
UNDER = next(one for one in CASES if one.kind == "under-conditioned" and one.dimension == 4)
EXACT = next(one for one in CASES if one.kind == "exact" and one.dimension == 4)


def test_the_right_scale_is_as_good_as_the_perfect_model():
    bench = Bench(UNDER, 10)
    right, exact = (
        bench.run(family, [setting], "score")[0]
        for family, setting in ((FIXED, {"scale": 1 / (1 - UNDER.eta)}), (PERFECT, {}))
    )
    assert right == pytest.approx(exact, rel=1e-3)
    idle = bench.run(UNGUIDED, [{}], "score")[0]
    assert idle.end > 1.5 * right.end and idle.sw2 > right.sw2


def test_a_cell_has_every_score_and_equal_alignment_is_equal():
    bench = Bench(LEAK, 10)
    mine = family_of("CFG(3) | Cap(1.1)")
    matched = {FIXED.name: (FIXED,), mine.name: (mine,)}
    found = score_cell(bench, [UNGUIDED, FIXED, PERFECT, mine], {FIXED.name: {"scale": 2.0}}, matched)
    rows = found["rules"]
    assert set(rows[FIXED.name]) == {"sw2", "end", "all", "setting"} and set(rows[UNGUIDED.name]) == {"all"}
    tuned, idle = rows[FIXED.name]["sw2"][0], rows[UNGUIDED.name]["all"][0]
    assert tuned < 1.1 * idle and json.loads(json.dumps(found)) == found
    two = bench.run(FIXED, [{"scale": 2.0}], "score")[0]
    assert rows[FIXED.name]["all"] == pytest.approx(list(two), rel=1e-3)
    for row in found["aligned"].values():
        assert abs(row[3] - found["truth"][2]) < 0.005
    assert {FIXED.name, "CFG(3) | Cap(1.1)"} <= set(found["asked"])


def test_an_exact_model_asks_for_no_equal_alignment():
    assert "aligned" not in score_cell(Bench(EXACT, 60), [UNGUIDED], {}, {})
