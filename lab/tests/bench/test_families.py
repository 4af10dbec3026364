"""Families: their knobs, their names, and the chains of a user."""

import pytest

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
