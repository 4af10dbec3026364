"""The table is held against the pipeline's own result: wrong entries are found out at the first step."""

from dataclasses import replace

import diffusers
import pytest
import torch
from tiny_pipelines import CASES, call, model, pipeline

from meancap import Cap
from meancap.adapters.diffusers import LAYOUTS, UNSUPPORTED, Layout, LayoutError, guided
from meancap.adapters.diffusers.layouts import _fit_output, verify_layout

SOME = ["StableDiffusion3Pipeline", "ZImagePipeline", "FluxPipeline", "QwenImagePipeline", "Lumina2Pipeline"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", SOME)
@pytest.mark.parametrize(
    ("wrong", "because"),
    [
        (lambda layout: replace(layout, order=layout.order[::-1]), "exchanged"),
        (lambda layout: replace(layout, sign=-layout.sign), "sign"),
    ],
    ids=["order", "sign"],
)
def test_a_wrong_order_or_sign_raises(name, wrong, because, dtype):
    pipe = pipeline(name, dtype)
    with pytest.raises(LayoutError, match=because), guided(pipe, Cap(1.1), layout=wrong(LAYOUTS[name])):
        call(name, pipe)


def test_a_pipeline_that_changed_its_formula_raises(monkeypatch):
    """As a future diffusers might: the result is no longer a combination of the two predictions."""
    pipe = pipeline("StableDiffusion3Pipeline")
    forward = type(pipe.transformer).forward

    def squared(self, *args, **kwargs):
        return (forward(self, *args, **kwargs)[0].square(),)

    with pytest.raises(LayoutError, match="unexplained"), guided(pipe, Cap(1.1)):
        # What is heard is not what is combined: the hook sits between the two.
        pipe.transformer.register_forward_hook(lambda module, args, output: (output[0].square(),))
        call("StableDiffusion3Pipeline", pipe)
    monkeypatch.setattr(type(pipe.transformer), "forward", squared)
    with guided(pipe, Cap(1.1), verify=False):
        call("StableDiffusion3Pipeline", pipe)


def test_the_fit_finds_scale_and_factor():
    drawn = torch.Generator().manual_seed(0)
    c, u = torch.randn(2, 3, 4, 32, 8, generator=drawn).unbind()
    rho = torch.rand(3, 4, 32, 1, generator=drawn) + 0.5
    found = _fit_output(rho * (u + 5.5 * (c - u)), c, u, [], "row")
    assert found.residual < 1e-6 and abs(found.scale - 5.5) < 1e-4 and found.rho > 0.4
    assert _fit_output(rho * (u + 5.5 * (c - u)), c, u, [], "sample").residual > 0.05


def test_a_missing_gap_tells_nothing_and_accuses_nobody():
    c = torch.randn(2, 64, generator=torch.Generator().manual_seed(0))
    found = _fit_output(c, c, c, [], "sample")
    assert found.scale != found.scale and verify_layout("Some", c, c, c, [], "sample") is False


def test_an_unknown_pipeline_raises_and_says_what_to_do():
    class OtherPipeline:
        scheduler = diffusers.FlowMatchEulerDiscreteScheduler()

    with pytest.raises(NotImplementedError, match=r"OtherPipeline is not in the table.*layout=Layout"):
        guided(OtherPipeline(), Cap(1.1)).__enter__()


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_an_unsupported_pipeline_raises_with_the_reason(name):
    pipe = type(name, (), {})()
    with pytest.raises(NotImplementedError, match=f"{name} cannot be guided: "):
        guided(pipe, Cap(1.1)).__enter__()


def test_a_modular_pipeline_is_sent_to_the_guiders():
    pipe = diffusers.StableDiffusion3AutoBlocks().init_pipeline()
    with pytest.raises(NotImplementedError, match="update_components"):
        guided(pipe, Cap(1.1)).__enter__()


def test_a_pipeline_of_ones_own_is_guided_by_its_layout():
    class MyPipeline(diffusers.StableDiffusion3Pipeline):
        pass

    base = pipeline("StableDiffusion3Pipeline")
    mine = MyPipeline(**base.components)
    mine.set_progress_bar_config(disable=True)
    native = call("StableDiffusion3Pipeline", base)
    with guided(mine, Cap(float("inf"))):
        assert torch.equal(call("StableDiffusion3Pipeline", mine), native)
    with guided(mine, Cap(float("inf")), layout=Layout("together", "uc")):
        assert torch.equal(call("StableDiffusion3Pipeline", mine), native)


@pytest.mark.parametrize("bad", [("both", "uc"), ("apart", "cc"), ("apart", "c"), ("apart", "cu*")])
def test_a_layout_that_makes_no_sense_is_refused(bad):
    with pytest.raises(ValueError, match="a layout's"):
        Layout(*bad)


def test_every_pipeline_of_the_installed_diffusers_is_in_the_table_or_refused():
    """Those whose optional packages are missing are placeholders, and named like the rest."""
    modular, base = diffusers.ModularPipeline, diffusers.DiffusionPipeline
    exported = {
        name
        for name in dir(diffusers)
        if "Pipeline" in name
        and isinstance(cls := getattr(diffusers, name), type)
        and (cls.__module__.startswith("diffusers.utils.dummy") or issubclass(cls, base))
        and not issubclass(cls, modular)
        and cls is not base
    }
    grouped = {name for name in exported if "deprecated" in getattr(diffusers, name).__module__}
    grouped |= {name for name in exported if "onnx" in getattr(diffusers, name).__module__}
    assert exported - grouped == {*LAYOUTS, *UNSUPPORTED}
    for name in ("StableDiffusionSAGPipeline", "UnCLIPPipeline"):
        made = object.__new__(getattr(diffusers, name))
        with pytest.raises(NotImplementedError, match=f"{name} cannot be guided: diffusers has deprecated"):
            guided(made, Cap(1.1)).__enter__()
    assert not set(LAYOUTS) & set(UNSUPPORTED)


def test_one_call_with_all_parts_is_not_taken_for_guidance_that_is_off():
    apart = Layout("apart", "cu")
    with pytest.raises(ValueError, match=r'in one call, 4 rows for 2 samples.*Layout\("together", "cu"\)'):
        apart.parts([torch.zeros(4, 3)], torch.zeros(2, 3), "SomePipeline")
    assert apart.parts([torch.zeros(2, 3)], torch.zeros(2, 3), "SomePipeline") is None


def test_a_model_that_predicts_average_velocities_is_refused():
    """HunyuanImage's MeanFlow checkpoints tell the transformer where a step ends."""
    name = "HunyuanImagePipeline"
    config = CASES[name].config | {"use_meanflow": True}
    pipe = pipeline(name, transformer=model(CASES[name].model, config))
    call(name, pipe)
    with pytest.raises(LayoutError, match="MeanFlow"), guided(pipe, Cap(1.05)):
        call(name, pipe)
