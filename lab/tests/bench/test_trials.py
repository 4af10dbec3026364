"""One cell: settings that run together are those that run alone, and scores are what they say."""

import json
import math

import pytest
import torch

from meancap import parse, sample, uniform
from meancap_lab.bench.cases import read_cases, starts
from meancap_lab.bench.families import (
    FIXED,
    MATCHED,
    PERFECT,
    SCALE,
    SPREAD,
    UNGUIDED,
    around,
    choose_families,
    families,
    family_of,
    spread,
)  # fmt: skip
from meancap_lab.bench.predictors import predictor
from meancap_lab.bench.trials import Bench, sample_together, score_cell, shrink
from meancap_lab.runs.calibrate import LearnedScale

CASES = read_cases()
LEAK = next(one for one in CASES if one.kind == "leak" and one.dimension == 4)
UNDER = next(one for one in CASES if one.kind == "under-conditioned" and one.dimension == 4)
EXACT = next(one for one in CASES if one.kind == "exact" and one.dimension == 4)


@pytest.mark.parametrize(
    "texts",
    [
        ["CFG(2)", "CFG(5)"],
        ["CFG(2) | Cap(1.1)", "CFG(7) | Cap(1.3)"],
        ["apg(3, radius=1)", "apg(5, radius=2)"],
    ],
    ids=["one rule for all", "a cap with its own bound", "rules apart"],
)
def test_rules_that_run_together_run_as_alone(texts):
    rules, x = [parse(text) for text in texts], starts(4, "tune")[:64]
    both = sample_together(predictor(LEAK), rules, x, uniform(5))
    for i, rule in enumerate(rules):
        torch.testing.assert_close(
            both[i], sample(predictor(LEAK), rule, x, uniform(5)), rtol=1e-9, atol=1e-9
        )


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


def test_a_shrunk_curve_goes_to_one_where_nothing_is_known():
    learned = LearnedScale((0.1, 0.5, 0.9), (2.0, 2.0, 1.0), (1.999, -3.0, 0.9), (2.001, 7.0, 1.1), 512)
    sure, unsure, one = shrink(learned).values
    assert sure == pytest.approx(2, abs=1e-3) and 1 < unsure < 1.2 and one == 1


def test_every_family_runs_on_a_problem():
    bench = Bench(LEAK, 4)
    for family in families():
        setting = family.setting((0.3,) * len(family.knobs))
        score = bench.run(family, [setting], "tune")[0]
        assert all(math.isfinite(v) for v in score), family.name


def test_families_have_equal_numbers_of_settings_and_names_of_their_own():
    every = families()
    assert len({one.name for one in every}) == len(every) >= 60
    assert {FIXED, UNGUIDED, PERFECT} <= set(every) and all("{" not in one.call or one.knobs for one in every)
    for knobs in (1, 2, 3):
        places = spread(knobs)
        assert len(places) == SPREAD == len({p[0] for p in places}) and len(around(places[3])) == 4
        assert all(0 <= u <= 1 for place in (*places, *around(places[0])) for u in place)
    assert all(one.knobs[0].name == "scale" for some in MATCHED.values() for one in some)


def test_a_knob_is_even_in_the_logarithm_above_its_origin():
    values = [SCALE.at(u) - 1 for u in (0, 0.5, 1)]
    assert values[1] ** 2 == pytest.approx(values[0] * values[2])


def test_a_rule_of_ones_own_is_tuned_by_its_scale():
    mine = family_of("CFG(3) | Cap(1.1, smooth=1)")
    assert mine.text({"scale": 7.0}, 10) == "CFG(7) | Cap(1.1, smooth=1)" and mine.knobs[0].high == 1000
    assert not family_of("DensityFeedback(0.7)").knobs
    with pytest.raises(ValueError, match="cannot run on the mixtures"):
        family_of("fdg(3)")
    with pytest.raises(ValueError, match="unknown rule 'cfg5'"):
        choose_families(["cfg5"])
