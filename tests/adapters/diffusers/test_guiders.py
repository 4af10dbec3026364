"""Guiders in modular pipelines, and in classic ones that own one."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import diffusers
import pytest
import torch
from diffusers.modular_pipelines.modular_pipeline_utils import ComponentSpec
from spy import Spy
from tiny_pipelines import CASES, call, draw, pipeline

from meancap import CFG, Cap
from meancap.adapters.diffusers import LAYOUTS, ChainGuidance, PosteriorMeanCappedGuidance, guided

SD3 = "StableDiffusion3AutoBlocks"
BLOCK = Path(__file__).parents[3] / "integrations" / "huggingface" / "block"
INF = float("inf")
SIZES = ("height", "width", "num_frames")
# Blocks, the classic pipeline whose tiny model they share, and the channels that the blocks take for granted.
MODULAR = {
    "StableDiffusion3AutoBlocks": ("StableDiffusion3Pipeline", {}),
    "WanBlocks": ("WanPipeline", {"in_channels": 16, "out_channels": 16}),
    "ZImageAutoBlocks": ("ZImagePipeline", {}),
    "LTXAutoBlocks": ("LTXPipeline", {}),
    "QwenImageAutoBlocks": ("QwenImagePipeline", {}),
    "Flux2KleinBaseAutoBlocks": ("Flux2KleinPipeline", {}),
    "HunyuanVideo15AutoBlocks": ("HunyuanVideo15Pipeline", {"in_channels": 65, "out_channels": 32}),
    "Krea2AutoBlocks": ("Krea2Pipeline", {}),
    "ErnieImageAutoBlocks": ("ErnieImagePipeline", {}),
}


def modular(name, dtype=torch.float32, first=None):
    """The denoising blocks as a pipeline, with a block of one's own before them."""
    classic, channels = MODULAR[name]
    blocks = getattr(diffusers, name)()
    for block in [b for b in blocks.sub_blocks if b != "denoise"]:
        blocks.sub_blocks.pop(block)
    if first is not None:
        blocks.sub_blocks.insert(*first, 0)
    pipe = blocks.init_pipeline()
    case = CASES[classic]
    CASES[classic] = replace(case, config=case.config | channels)
    try:
        parts = pipeline(classic, dtype).components
    finally:
        CASES[classic] = case
    wanted = {spec.name for spec in blocks.expected_components}
    pipe.update_components(
        **{k: v for k, v in parts.items() if k in wanted and k != "guider" and v is not None}
    )
    return pipe


def run(name, pipe, guider, **changes):
    case = CASES[MODULAR[name][0]]
    if guider is not None:
        pipe.update_components(guider=guider)
    drawn = torch.Generator().manual_seed(1000)
    inputs = {k: draw(v, drawn, pipe.transformer.dtype) for k, v in case.inputs.items()}
    sizes = {k: v for k, v in case.call.items() if k in SIZES}
    with torch.no_grad():
        return pipe(
            **(inputs | sizes | {"num_inference_steps": 3} | changes),
            generator=torch.Generator().manual_seed(0),
            output="latents",
        )


def watched(name, pipe):
    """What the denoiser said and the scheduler received; a guider has one call for each prediction."""
    classic = MODULAR[name][0]
    return Spy(classic, pipe, layout=replace(LAYOUTS[classic], calls="apart", order="cu"))


@pytest.fixture(autouse=True, scope="module")
def _no_bars():
    diffusers.utils.logging.disable_progress_bar()
    yield
    diffusers.utils.logging.enable_progress_bar()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", MODULAR)
def test_an_infinite_cap_is_diffusers_own_guidance_bit_for_bit(name, dtype):
    pipe = modular(name, dtype)
    native = run(name, pipe, diffusers.ClassifierFreeGuidance(guidance_scale=7.0))
    guider = PosteriorMeanCappedGuidance(guidance_scale=7.0, gamma=INF)
    assert torch.equal(run(name, pipe, guider), native)
    assert len(guider.record) == 3
    assert not pipe.transformer._forward_hooks


@pytest.mark.parametrize("name", MODULAR)
def test_the_bound_holds_on_what_the_scheduler_receives(name):
    pipe = modular(name)
    guider = PosteriorMeanCappedGuidance(guidance_scale=7.0, gamma=INF)
    run(name, pipe, guider)
    gamma = float(guider.record.stacked()["ratio"].max()) ** 0.5
    assert gamma > 1.0002
    # Modular Qwen-Image rescales whatever a guider returns; `final` leaves it nothing to rescale.
    guider = PosteriorMeanCappedGuidance(guidance_scale=7.0, gamma=gamma, final=name.startswith("Qwen"))
    spy = watched(name, pipe)
    run(name, pipe, guider)
    assert guider.record.stacked()["active"].any()
    assert float(spy.ratios().max()) <= gamma * (1 + 4 * 2.0**-24)


def test_without_final_qwens_rescaling_comes_after_the_cap():
    pipe = modular("QwenImageAutoBlocks")
    guider = PosteriorMeanCappedGuidance(guidance_scale=7.0, gamma=1.001)
    spy = watched("QwenImageAutoBlocks", pipe)
    run("QwenImageAutoBlocks", pipe, guider)
    assert float(guider.record.stacked()["ratio"].max()) <= 1.00101 < float(spy.ratios().max())


def test_a_chain_gives_what_the_classic_pipeline_gives():
    """Two passes of B rows here, one of 2B there: equal up to the transformer's own rounding."""
    pipe, classic = modular(SD3), pipeline("StableDiffusion3Pipeline")
    guider = ChainGuidance("apg(7)")
    found = run(SD3, pipe, guider)
    with guided(classic, "apg(7)") as record:
        torch.testing.assert_close(found, call("StableDiffusion3Pipeline", classic), rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(
        guider.record.stacked()["scale"], record.stacked()["scale"], rtol=1e-3, atol=1e-3
    )


def test_without_a_negative_prompt_modular_sd3_warns_that_guidance_is_off():
    """It then shows the positive prompt to both passes: two passes are paid for, and nothing is guided."""
    pipe = modular(SD3)
    nothing = {"negative_prompt_embeds": None, "negative_pooled_prompt_embeds": None}
    with pytest.warns(UserWarning, match="the same prediction with and without") as caught:
        run(SD3, pipe, PosteriorMeanCappedGuidance(guidance_scale=7.0), **nothing)
    assert len(caught) == 1


def test_start_and_stop_and_enabled_are_those_of_diffusers():
    pipe = modular(SD3)
    for options in ({"start": 0.4}, {"stop": 0.7}, {"enabled": False}, {"guidance_rescale": 0.7}):
        native = run(SD3, pipe, diffusers.ClassifierFreeGuidance(guidance_scale=7.0, **options))
        found = run(SD3, pipe, PosteriorMeanCappedGuidance(guidance_scale=7.0, gamma=INF, **options))
        assert torch.equal(native, found), options


def test_a_bound_scheduler_gives_the_exact_sigma_where_timesteps_are_rounded():
    """The guider reads the scheduler that the pipeline has now, not the one at the time of `bind`."""
    pipe = modular("WanBlocks")
    exact = PosteriorMeanCappedGuidance(guidance_scale=7.0, gamma=INF).bind(pipe)
    pipe.update_components(
        scheduler=diffusers.UniPCMultistepScheduler(
            prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=3.0
        )
    )
    with pytest.warns(UserWarning, match="rounds its timesteps"):
        run("WanBlocks", pipe, loose := PosteriorMeanCappedGuidance(guidance_scale=7.0, gamma=INF))
    run("WanBlocks", pipe, exact)
    sigmas = pipe.scheduler.sigmas[:-1].double()
    torch.testing.assert_close(exact.record.stacked()["t"][:, 0], 1 - sigmas)
    assert 0 < float((loose.record.stacked()["t"][:, 0] - 1 + sigmas).abs().max()) < 1.1e-3


@pytest.mark.parametrize("name", ["HunyuanImagePipeline", "HunyuanVideo15Pipeline"])
def test_a_classic_pipeline_that_owns_a_guider_takes_ours(name):
    pipe = pipeline(name)
    native = call(name, pipe)
    pipe.guider = PosteriorMeanCappedGuidance(guidance_scale=7.0, gamma=INF)
    assert torch.equal(call(name, pipe), native)
    pipe.guider = guider = PosteriorMeanCappedGuidance(guidance_scale=7.0, gamma=1.001)
    assert not torch.equal(call(name, pipe), native)
    assert float(guider.record.stacked()["ratio"].max()) <= 1.0010001


@pytest.mark.parametrize(
    "theirs",
    [
        diffusers.AdaptiveProjectedGuidance(guidance_scale=7.0, adaptive_projected_guidance_momentum=-0.5),
        diffusers.ClassifierFreeZeroStarGuidance(guidance_scale=7.0, zero_init_steps=1),
        diffusers.ClassifierFreeGuidance(guidance_scale=7.0, start=0.4),
    ],
    ids=lambda guider: type(guider).__name__,
)
def test_whatever_guider_a_pipeline_owns_its_result_is_the_nominal_one(theirs):
    pipe = pipeline("HunyuanImagePipeline", guider=theirs)
    native = call("HunyuanImagePipeline", pipe)
    with guided(pipe, Cap(INF)) as record:
        assert torch.equal(call("HunyuanImagePipeline", pipe), native)
    assert len(record) > 0


@pytest.mark.parametrize("known", [True, False])
def test_the_state_is_the_first_part_of_what_an_editing_model_is_shown(known):
    """FLUX.2 is shown the state and then a reference picture; of a model not listed this is not assumed."""
    model = pipeline("Flux2KleinPipeline").transformer
    if not known:
        model = type("UnknownTransformer", (type(model),), {}).from_config(model.config)
    shown, text = torch.randn(2, 6, 16), torch.randn(2, 3, 16)
    ids = {"img_ids": torch.zeros(6, 4), "txt_ids": torch.zeros(3, 4)}
    guider = ChainGuidance("CFG(7) | Cap(1.01)")
    guider.set_state(step=0, num_inference_steps=3, timestep=torch.tensor(700.0))
    said = []
    for _ in guider.prepare_inputs({"encoder_hidden_states": (text, -text)}):
        guider.prepare_models(model)
        text = -text
        with torch.no_grad():
            said.append(model(shown, text, torch.tensor([0.7, 0.7]), **ids).sample[:, :4])
        guider.cleanup_models(model)
    if not known:
        with pytest.raises(NotImplementedError, match=r"UnknownTransformer shown \(2, 6, 16\)"):
            guider.forward(*said)
        return
    got = guider.forward(*said).pred
    mean, base = (shown[:, :4].double() - 0.7 * v.double() for v in (got, said[0]))
    ratio = mean.flatten(1).norm(dim=1) / base.flatten(1).norm(dim=1)
    torch.testing.assert_close(ratio, guider.record.stacked()["ratio"][0], rtol=1e-6, atol=0)
    assert float(ratio.max()) <= 1.01 * (1 + 4 * 2.0**-24)


def test_a_model_of_average_velocities_is_refused():
    """As the classic pipelines are: HunyuanImage and HunyuanVideo 1.5 have such checkpoints."""
    model = pipeline("HunyuanImagePipeline").transformer
    averaged = type(model).from_config(model.config, use_meanflow=True)
    guider = ChainGuidance("CFG(7) | Cap(1.1)")
    guider.set_state(step=0, num_inference_steps=3, timestep=torch.tensor(700.0))
    guider.prepare_models(model)
    guider.cleanup_models(model)
    with pytest.raises(ValueError, match="ChainGuidance cannot guide a MeanFlow model"):
        guider.prepare_models(averaged)


@pytest.mark.parametrize(
    "guider",
    [
        PosteriorMeanCappedGuidance(guidance_scale=6.0, gamma=1.07, form="displacement", start=0.1),
        PosteriorMeanCappedGuidance(gamma=INF),
        ChainGuidance("CFG(Linear(2, 7)) | Cap(1.1, smooth=0.2)"),
    ],
    ids=lambda guider: str(guider.rule),
)
def test_saving_and_loading_gives_the_same_guider(guider, tmp_path):
    guider.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "guider_config.json").read_text())["_class_name"] == type(guider).__name__
    again = type(guider).from_pretrained(tmp_path)
    first, second = ({k: v for k, v in one.config.items() if k[0] != "_"} for one in (guider, again))
    assert first == second
    assert again.rule == guider.rule
    assert guider.new(stop=0.5).config["stop"] == 0.5


def test_a_saved_modular_pipeline_finds_the_guider_again_by_its_path(tmp_path):
    PosteriorMeanCappedGuidance(guidance_scale=6.0, gamma=1.07).save_pretrained(tmp_path / "guider")
    pipe = modular(SD3)
    spec = ComponentSpec(
        "guider",
        PosteriorMeanCappedGuidance,
        pretrained_model_name_or_path=str(tmp_path / "guider"),
        default_creation_method="from_pretrained",
    )
    pipe.update_components(guider=spec.load())
    pipe.save_pretrained(str(tmp_path / "pipe"))
    entry = json.loads((tmp_path / "pipe" / "modular_model_index.json").read_text())["guider"]
    assert entry[:2] == ["meancap.adapters.diffusers", "PosteriorMeanCappedGuidance"]
    again = diffusers.ModularPipeline.from_pretrained(str(tmp_path / "pipe"))
    again.load_components(names=["guider"])
    assert isinstance(again.guider, PosteriorMeanCappedGuidance) and again.guider.rule == Cap(1.07)


def test_what_cannot_work_is_refused_in_one_sentence():
    with pytest.raises(ValueError, match=r"no guidance to cap.*CFG\(7.5\) \| Cap"):
        ChainGuidance("Cap(1.1)")
    with pytest.raises(ValueError, match="'ball' or 'displacement'"):
        PosteriorMeanCappedGuidance(form="cube")
    with pytest.raises(ValueError, match="gamma >= 1"):
        PosteriorMeanCappedGuidance(gamma=0.5)
    with pytest.raises(NotImplementedError, match="does not follow the linear path"):
        PosteriorMeanCappedGuidance().bind(diffusers.DDIMScheduler())
    guider = ChainGuidance(str(CFG(7.0)))
    with pytest.raises(ValueError, match="is not 1000 sigma"):
        guider.set_state(step=0, num_inference_steps=3, timestep=torch.tensor(0.7))


@pytest.mark.parametrize("bound", [False, True])
def test_an_interval_over_50_steps_costs_80_passes(bound):
    """Outside it the rule needs no unconditional prediction, and the guider prepares one batch."""
    pipe, calls = modular(SD3), []
    pipe.update_components(scheduler=diffusers.FlowMatchEulerDiscreteScheduler())
    pipe.transformer.register_forward_hook(lambda *_: calls.append(1))
    guider = ChainGuidance("CFG(7) | Interval(0.2, 0.8)")
    assert guider.num_conditions == 2, "text encoders ask before the first step"
    found = run(SD3, pipe, guider.bind(pipe) if bound else guider, num_inference_steps=50)
    assert len(calls) == 80 and len(guider.record) == 50 and guider.record.unguided == 0
    t, scale = (guider.record.stacked()[name] for name in ("t", "scale"))
    expected = torch.where((t >= 0.2) & (t <= 0.8), 7.0, 1.0).double()
    torch.testing.assert_close(scale, expected, rtol=1e-4, atol=0)
    plain = modular(SD3)
    plain.update_components(scheduler=diffusers.FlowMatchEulerDiscreteScheduler())
    window = diffusers.ClassifierFreeGuidance(7.0, start=0.2, stop=0.8)
    torch.testing.assert_close(found, run(SD3, plain, window, num_inference_steps=50), rtol=1e-3, atol=1e-3)


def test_a_guider_at_scale_one_warns_and_its_record_says_why():
    pipe = modular(SD3)
    guider = PosteriorMeanCappedGuidance(guidance_scale=1.0, gamma=1.1)
    with pytest.warns(UserWarning, match="nothing to guide: the guider made one prediction"):
        run(SD3, pipe, guider)
    assert guider.record.summary().startswith("nothing was guided: the guider made one prediction")
    run(SD3, pipe, PosteriorMeanCappedGuidance(guidance_scale=1.0, enabled=False))  # told so: no warning


def test_a_guider_bound_to_another_pipeline_is_refused():
    pipe, other = modular(SD3), modular(SD3)
    guider = PosteriorMeanCappedGuidance(guidance_scale=7.0, gamma=1.05)
    wrong = "is not at timestep"
    with pytest.raises(ValueError, match=wrong):
        run(SD3, pipe, guider.bind(other))
    run(SD3, other, guider)
    with pytest.raises(ValueError, match=wrong):  # its scheduler is at the end of its own run
        run(SD3, pipe, guider)
    with pytest.raises(ValueError, match=wrong):
        run(SD3, pipe, guider.bind(other.scheduler), num_inference_steps=4)
    run(SD3, pipe, guider.bind(pipe))


@pytest.fixture
def block(tmp_path, monkeypatch):
    monkeypatch.setattr("diffusers.utils.dynamic_modules_utils.HF_MODULES_CACHE", str(tmp_path))
    monkeypatch.setattr(sys, "path", sys.path[:])
    return diffusers.ModularPipelineBlocks.from_pretrained(str(BLOCK), trust_remote_code=True)


def test_a_pipeline_with_the_block_is_one_with_the_guider(block):
    pipe = modular(SD3)
    expected = run(SD3, pipe, PosteriorMeanCappedGuidance(9.0, 1.02).bind(pipe))
    capped = modular(SD3, first=("cap", block))
    found = run(SD3, capped, None, cap_scale=9.0, cap_gamma=1.02)
    assert torch.equal(found, expected)
    assert capped.guider.record.stacked()["active"].any()
    assert {"cap_scale", "cap_gamma", "cap_form"} <= set(capped.blocks.input_names)
