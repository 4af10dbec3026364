"""More than two predictions and more than one state: weak and avoided ones, and video with audio."""

import json

import pytest
import torch
from diffusers import DDIMScheduler
from diffusers.pipelines.deprecated.stable_diffusion_safe import StableDiffusionPipelineSafe
from spy import Spy
from tiny_models import BATCH
from tiny_pipelines import CASES, call, model, pipeline

from meancap import CFG, Cap
from meancap.adapters.diffusers import Layout, guided
from meancap.rules import AwayFrom, perp_neg, sld

SD3, PAG = "StableDiffusion3Pipeline", "StableDiffusion3PAGPipeline"
INF = float("inf")
SKIP = {"skip_guidance_layers": [0], "skip_layer_guidance_start": 0.2, "skip_layer_guidance_stop": 0.8}


@pytest.mark.parametrize("name", [PAG, "StableDiffusionPAGPipeline"])
def test_away_from_the_weak_prediction_is_perturbed_attention_guidance(name):
    pipe = pipeline(name)
    native = call(name, pipe, guidance_scale=5.0, pag_scale=3.0)
    with guided(pipe, CFG(5.0) | AwayFrom("weak", 3.0)):
        found = call(name, pipe, guidance_scale=2.0, pag_scale=1.0)
    torch.testing.assert_close(found, native, rtol=1e-4, atol=1e-4)


def test_a_cap_behind_it_keeps_its_bound():
    pipe = pipeline(PAG)
    spy = Spy(PAG, pipe)
    with guided(pipe, CFG(9.0) | AwayFrom("weak", 5.0) | Cap(1.03)) as record:
        call(PAG, pipe)
    assert (spy.ratios() <= 1.03 * (1 + 1e-5)).all() and record.stacked()["active"].any()


def test_skipped_layers_are_the_weak_prediction_in_the_steps_that_skip_them():
    pipe = pipeline(SD3)
    native = call(SD3, pipe, guidance_scale=5.0, skip_layer_guidance_scale=2.8, **SKIP)
    plain = call(SD3, pipe, guidance_scale=5.0)
    rule = CFG(5.0) | AwayFrom("weak", 2.8)
    with guided(pipe, rule):
        found = call(SD3, pipe, guidance_scale=2.0, skip_layer_guidance_scale=1.0, **SKIP)
    torch.testing.assert_close(found, native, rtol=1e-4, atol=1e-4)
    assert not torch.allclose(native, plain, rtol=1e-2, atol=1e-2)
    with pytest.warns(UserWarning, match="skipped no layers"), guided(pipe, rule):
        call(SD3, pipe)
    with guided(pipe, Cap(INF)):
        assert torch.equal(call(SD3, pipe, guidance_scale=5.0, skip_layer_guidance_scale=2.8, **SKIP), native)
    spy = Spy(SD3, pipe)
    with guided(pipe, Cap(1.02)) as record:
        call(SD3, pipe, **SKIP)
    assert float(spy.ratios().max()) <= 1.02 * (1 + 4 * 2.0**-24) and record.stacked()["active"].any()


def test_a_prediction_that_a_pipeline_does_not_make_is_one_sentence():
    for rule, name in ((perp_neg(3), "negative"), (CFG(3) | AwayFrom("weak", 2), "weak")):
        pipe = pipeline(PAG)  # one that an error stopped keeps its attention changed
        with guided(pipe, rule), pytest.raises(ValueError, match=f"needs the prediction '{name}'"):
            call(PAG, pipe, pag_scale=0.0 if name == "weak" else 2.0)
    with pytest.raises(ValueError, match="order"):
        Layout("together", "ucx")


class Safe(StableDiffusionPipelineSafe):
    """diffusers' own SLD loop, with random embeddings in the place of a text encoder."""

    def _encode_prompt(self, *_):
        return torch.randn(3, 5, 16, generator=torch.Generator().manual_seed(5))

    def decode_latents(self, latents):
        return latents


@pytest.mark.filterwarnings("ignore")
def test_safe_latent_diffusion_is_its_pipeline():
    case = CASES["StableDiffusionPipeline"]
    scheduler = DDIMScheduler(clip_sample=False, set_alpha_to_one=False)
    unet = model(case.model, case.config, case.std)
    pipe = Safe(None, None, None, unet, scheduler, None, None, requires_safety_checker=False)
    pipe.set_progress_bar_config(disable=True)
    latents = torch.randn(1, 4, 8, 8, generator=torch.Generator().manual_seed(3))
    settings = {"sharpness": 3.0, "threshold": 0.5, "momentum": 0.5, "decay": 0.7, "warmup": 2}
    sld_ = ("guidance_scale", "threshold", "momentum_scale", "mom_beta", "warmup_steps")
    named = {f"sld_{k}": v for k, v in zip(sld_, settings.values(), strict=True)}
    states = []

    def run(**changes):
        states.clear()
        with torch.no_grad():
            pipe("", latents=latents, num_inference_steps=6, output_type="latent", height=64, width=64,
                 callback=lambda i, t, x: states.append(x.clone()), **(named | changes))  # fmt: skip
        return torch.stack(states)

    native, off = run(guidance_scale=6.0), run(guidance_scale=6.0, sld_warmup_steps=99)
    with guided(pipe, sld(6.0, **settings), layout=Layout("together", "ucn", denoisers=("unet",))):
        found = run(guidance_scale=2.0, sld_warmup_steps=99)
    torch.testing.assert_close(found, native, rtol=1e-4, atol=1e-4)
    assert not torch.allclose(native, off, rtol=1e-2, atol=1e-2)


LTX2, K6 = "LTX2Pipeline", "Kandinsky6TI2VAPipeline"
FULL = {"stg_scale": 1.0, "modality_scale": 3.0, "guidance_rescale": 0.7, "audio_stg_scale": 1.0,
        "audio_modality_scale": 3.0, "audio_guidance_rescale": 0.7}  # fmt: skip


@pytest.mark.parametrize("options", [{}, FULL], ids=["guidance alone", "all its terms"])
def test_video_and_audio_are_capped_each_by_its_own_mean(options):
    pipe = pipeline(LTX2)
    native = call(LTX2, pipe, **options)
    with guided(pipe, Cap(INF)) as record:
        assert torch.equal(call(LTX2, pipe, **options), native)
    (audio,) = record.beside
    assert len(record) == len(audio) == 3
    gammas = [float(one.stacked()["ratio"].max()) ** 0.5 for one in (record, audio)]
    spy = Spy(LTX2, pipe)
    with guided(pipe, Cap(min(gammas))) as record:
        call(LTX2, pipe, **options)
    assert record.stacked()["active"].any() and record.beside[0].stacked()["active"].any()
    assert len(spy.steps) == 6
    assert float(spy.ratios().max()) <= min(gammas) * (1 + 4 * 2.0**-24)


def test_the_record_of_a_run_holds_both(tmp_path):
    pipe = pipeline(LTX2)
    with guided(pipe, Cap(1.05)) as record:
        call(LTX2, pipe)
    saved = json.loads(record.save(tmp_path / "run.json").read_text())
    assert len(saved["rows"]) == len(saved["beside"][0]["rows"]) == 3 * BATCH
    scales = [{round(row["asked"], 2) for row in part["rows"]} for part in (saved, saved["beside"][0])]
    assert scales == [{7.0}, {5.0}]


def test_a_clean_frame_among_the_state_is_refused():
    """Kandinsky 6 with a picture steps that picture along; the transformer is told by token types."""
    pipe = pipeline(K6)
    tokens = torch.zeros(BATCH, 2, dtype=torch.long)
    with pytest.raises(NotImplementedError, match="steps a clean input frame"), guided(pipe, Cap(1.05)):
        pipe.transformer.register_forward_pre_hook(
            lambda module, args, kwargs: (args, kwargs | {"visual_token_type_ids": tokens}), with_kwargs=True
        )
        pipe.transformer.forward = lambda **kwargs: None
        call(K6, pipe)
