"""The study of something to avoid: what it says of mixtures is known."""

from dataclasses import replace

import pytest
import torch

from studies.avoid.study import NEGATIVE, QUICK, WIDTHS, Line, garment_cell, laws, mixture_cell

SMALL = replace(QUICK, samples=300, steps=20, pictures=2, picture_steps=2)


def line(method, rule, as_reference=False, subject="narrow"):
    return Line(subject, method, 3.0, rule, as_reference)


def test_without_guidance_a_third_of_the_samples_is_what_should_be_avoided():
    cell = mixture_cell(SMALL, line("unguided", "CFG(1)"), 0)
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
        mixture_cell(SMALL, line(*one), 0)["avoided"]
        for one in (("a", "CFG(1.5)"), ("b", "CFG(1.5)", True), ("c", "perp_neg(1.5)"))
    )
    assert reference < plain and perpendicular < plain and reference != perpendicular


def test_a_garment_is_counted_by_its_class():
    seen = garment_cell(SMALL, line("Perp-Neg", "perp_neg(2)", subject="garments"), 0)["seen"]
    assert seen.shape == (2,) and bool(((seen >= 0) & (seen < 10)).all())
