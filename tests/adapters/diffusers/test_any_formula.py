"""A cap over a formula that the adapter does not know."""

from dataclasses import replace

import pytest
import torch
from spy import Spy
from tiny_formulas import FORMULAS
from tiny_models import teal
from tiny_pipelines import CASES, call, pipeline

from meancap import Cap
from meancap.adapters.diffusers import LAYOUTS, LayoutError, guided

INF, OFF = float("inf"), 1 + 1e-7  # just above the scale at which a pipeline makes one prediction
OWN = [name for name in FORMULAS if LAYOUTS[name].caps_only]
NEUTRAL = {"OmniGenPipeline": {"img_guidance_scale": 1.0}}


def neutral(name):
    """The scales at which the pipeline's own result is its conditional prediction."""
    more = NEUTRAL.get(name, {"image_guidance_scale": 1.0} if "Pix2Pix" in name else {})
    return {CASES[name].scale: OFF} | more


@pytest.mark.parametrize("name", OWN)
def test_the_conditional_prediction_is_the_result_at_neutral_scales(name):
    pipe = pipeline(name)
    sizes = []
    for scales in ({}, neutral(name)):
        with guided(pipe, Cap(INF)) as record:
            call(name, pipe, **scales)
        seen = record.stacked()
        sizes.append(seen["gap"] * seen["ratio"] / seen["length"])  # |m - m_c| / |m_c|
    guidance, none = (float(size.max()) for size in sizes)
    assert none < 2e-5 and guidance > 1e-2


@pytest.mark.parametrize("name", OWN)
def test_a_layout_that_takes_another_prediction_for_the_conditional_one_raises(name):
    wrong = replace(LAYOUTS[name], order=LAYOUTS[name].order[::-1])
    pipe = pipeline(name)
    with pytest.raises(LayoutError, match="exchanged"), guided(pipe, Cap(1.05), layout=wrong):
        call(name, pipe)


@pytest.mark.parametrize("rule", ["CFG(7) | Cap(1.1)", "apg(7)", "Cap(1.1, anchor='first')"])
def test_rules_that_need_the_formula_are_refused(rule):
    pipe = pipeline("LuminaPipeline")
    with pytest.raises(ValueError, match=r"only a cap can act.*; got"), guided(pipe, rule):
        pass
    assert "step" not in vars(pipe.scheduler)


@pytest.mark.parametrize("rule", ["Cap(1.005)", "Cap(1.2) | CapDisplacement(1.05)"])
@pytest.mark.parametrize("name", ["StableDiffusion3", "Flux", "QwenImage", "ZImage"])
def test_without_its_formula_a_pipeline_is_capped_alike(name, rule):
    """Together and apart, first and last, renormalised."""
    name += "Pipeline"
    listed, pipe = LAYOUTS[name], pipeline(name)
    with guided(pipe, rule) as record:
        expected = call(name, pipe)
    layout = replace(listed, order="c*" if listed.order.startswith("c") else "*c")
    with guided(pipe, rule, layout=layout) as other:
        assert torch.equal(call(name, pipe), expected)
    for field in ("ratio", "active", "length"):
        torch.testing.assert_close(other.stacked()[field], record.stacked()[field])
    assert record.stacked()["active"].any() and "of the host's own guidance" in other.summary()


def test_a_cover_of_ace_step_is_capped_with_its_blend_and_outside_its_interval_too():
    name, pipe = "AceStepPipeline", pipeline("AceStepPipeline")
    given = {"task_type": "cover", "cfg_interval_start": 0.1}
    blended = given | {"audio_cover_strength": 0.9}
    native = call(name, pipe, **blended)
    spy = Spy(name, pipe)
    with guided(pipe, Cap(INF)) as record:
        assert torch.equal(call(name, pipe, **blended), native) and len(record) == 3
    largest = float(spy.ratios().max())
    assert largest > 1.0005
    spy.steps.clear()
    with guided(pipe, Cap(largest**0.5)) as record:
        call(name, pipe, **blended)
    assert record.stacked()["active"].any() and float(spy.ratios().max()) <= largest**0.5 * (1 + 2.0**-22)
    with guided(pipe, Cap(1.05)) as record:
        call(name, pipe, **given)
    assert len(record) == 2 and record.unguided == 1, "the first step lies outside the interval"


def test_dreamlites_editing_is_capped_by_its_layout_with_another_order():
    name = "DreamLitePipeline"
    pipe, edit = pipeline(name), {"image": teal(), "image_guidance_scale": 1.5}
    drawn = torch.randn(1, 4, 2, 2, generator=torch.Generator().manual_seed(2))
    pipe.prepare_image_latents = lambda image, **more: drawn  # its autoencoder makes an eighth of the picture
    native = call(name, pipe, **edit)
    spy = Spy(name, pipe, layout=replace(LAYOUTS[name], order="*c"))
    with guided(pipe, Cap(INF), layout=spy.layout):
        assert torch.equal(call(name, pipe, **edit), native)
    assert all(len(step["parts"]) == 3 for step in spy.steps)
    largest = float(spy.ratios().max())
    spy.steps.clear()
    with guided(pipe, Cap(largest**0.5), layout=spy.layout) as record:
        call(name, pipe, **edit)
    assert record.stacked()["active"].any() and float(spy.ratios().max()) <= largest**0.5 * (1 + 2.0**-22)
