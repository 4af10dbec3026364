"""The study of something to avoid: what it says of mixtures is known, and its folder goes on after a stop."""

from dataclasses import replace

import pytest
import torch
from meancap.runs.avoid import (
    NEGATIVE,
    WIDTHS,
    AvoidStudy,
    Line,
    avoid_table,
    garments,
    laws,
    mixture,
    run_avoid,
)

from meancap.runs.folder import RunRefused

SMALL = AvoidStudy(
    300, 20, scales=(3.0,), pictures=2, picture_steps=2, picture_scales=(2.0,), seeds=(0,), picture_seeds=(0,)
)


def line(method, rule, as_reference=False, subject="narrow"):
    return Line(subject, method, 3.0, rule, as_reference)


def test_without_guidance_a_third_of_the_samples_is_what_should_be_avoided():
    cell = mixture(SMALL, line("unguided", "CFG(1)"))
    spread = (2 / 9 / SMALL.samples) ** 0.5
    assert abs(float(cell["avoided"]) - 1 / 3) < 4 * spread
    assert float(cell["avoided"] + cell["wanted"]) == pytest.approx(1, abs=1e-6)


def test_the_truth_is_the_prompt_without_the_negative():
    prompt, negative, truth = laws(WIDTHS["narrow"])
    x = prompt.conditional.sample(2000, torch.Generator().manual_seed(0))
    kept = x[negative.log_posterior(x, 1.0).exp() < 0.5]
    torch.testing.assert_close(kept.mean(0), truth.conditional.mean, rtol=0, atol=0.05)
    assert set(truth.members) == {*prompt.members} - {*NEGATIVE}


def test_a_negative_as_the_reference_is_another_thing_than_one_beside_it():
    plain, reference, perpendicular = (
        mixture(SMALL, line(*one))["avoided"]
        for one in (("a", "CFG(1.5)"), ("b", "CFG(1.5)", True), ("c", "perp_neg(1.5)"))
    )
    assert reference < plain and perpendicular < plain and reference != perpendicular


def test_a_garment_is_counted_by_its_class():
    seen = garments(SMALL, line("Perp-Neg", "perp_neg(2)", subject="garments"))["seen"]
    assert seen.shape == (1, 2) and bool(((seen >= 0) & (seen < 10)).all())


@pytest.mark.slow
def test_the_study_goes_on_in_its_folder_and_refuses_another(tmp_path):
    few = replace(SMALL, samples=32, steps=4)
    names = list(run_avoid(few, tmp_path))
    kept = {name: (tmp_path / "cells" / f"{name}.npz").read_bytes() for name in names}
    assert list(run_avoid(few, tmp_path)) == names and len(kept) == 39
    assert all((tmp_path / "cells" / f"{name}.npz").read_bytes() == old for name, old in kept.items())
    assert len(avoid_table(few, tmp_path)) == len(names) + len(WIDTHS)
    with pytest.raises(RunRefused, match="samples was 32"):
        list(run_avoid(replace(few, samples=33), tmp_path))


@pytest.mark.parametrize("counts", [{"samples": 0}, {"pictures": 0}])
def test_a_study_of_nothing_is_refused(counts):
    with pytest.raises(ValueError, match="2 samples and 1 picture or more"):
        AvoidStudy(**counts)
