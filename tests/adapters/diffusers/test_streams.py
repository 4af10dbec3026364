"""Video and audio in one run: two states, each guided for itself."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import diffusers
import pytest
import torch
from spy import Spy
from tiny_models import BATCH
from tiny_pipelines import call, pipeline

from meancap import Cap, CapDisplacement
from meancap.adapters.diffusers import CappedLTX2Guidance, guided

LTX2, K6 = "LTX2Pipeline", "Kandinsky6TI2VAPipeline"
INF = float("inf")
FULL = {"stg_scale": 1.0, "modality_scale": 3.0, "guidance_rescale": 0.7, "audio_stg_scale": 1.0,
        "audio_modality_scale": 3.0, "audio_guidance_rescale": 0.7}  # fmt: skip


@pytest.mark.parametrize("options", [{}, FULL], ids=["guidance alone", "all its terms"])
def test_video_and_audio_are_capped_each_by_its_own_mean(options: dict[str, Any]) -> None:
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


def test_the_record_of_a_run_holds_both(tmp_path: Path) -> None:
    pipe = pipeline(LTX2)
    with guided(pipe, Cap(1.05)) as record:
        call(LTX2, pipe)
    saved = json.loads(record.save(tmp_path / "run.json").read_text())
    assert len(saved["rows"]) == len(saved["beside"][0]["rows"]) == 3 * BATCH
    scales = [{round(row["asked"], 2) for row in part["rows"]} for part in (saved, saved["beside"][0])]
    assert scales == [{7.0}, {5.0}]


def test_a_clean_frame_among_the_state_is_refused() -> None:
    """Kandinsky 6 with a picture steps that picture along; the transformer is told by token types."""
    pipe = pipeline(K6)
    tokens = torch.zeros(BATCH, 2, dtype=torch.long)
    with (
        pytest.raises(NotImplementedError, match="steps a clean, given frame"),
        guided(pipe, Cap(1.05)),
    ):
        pipe.transformer.register_forward_pre_hook(
            lambda module, args, kwargs: (args, kwargs | {"visual_token_type_ids": tokens}), with_kwargs=True
        )
        pipe.transformer.forward = lambda **kwargs: None
        call(K6, pipe)


def modular(guider: Any, audio_guider: Any) -> dict[str, torch.Tensor]:
    from diffusers.modular_pipelines.ltx2.modular_blocks_ltx2 import LTX2CoreDenoiseStep

    blocks = LTX2CoreDenoiseStep()
    pipe, parts = blocks.init_pipeline(), pipeline(LTX2).components
    wanted = {spec.name for spec in blocks.expected_components}
    pipe.update_components(**{k: v for k, v in parts.items() if k in wanted and v is not None})
    pipe.update_components(guider=guider, audio_guider=audio_guider)
    drawn = torch.Generator().manual_seed(0)
    names = [f"{sign}connector_{kind}prompt_embeds" for sign in ("", "negative_") for kind in ("", "audio_")]
    inputs = {name: torch.randn(BATCH, 5, 16, generator=drawn) for name in names}
    masks = {f"{sign}connector_attention_mask": torch.ones(BATCH, 5) for sign in ("", "negative_")}
    with torch.no_grad():
        return pipe(
            **inputs, **masks, batch_size=BATCH, dtype=torch.float32, height=32, width=32, num_frames=5,
            frame_rate=25.0, num_inference_steps=3, use_cross_timestep=False,
            generator=torch.Generator().manual_seed(0), output=["latents", "audio_latents"],
        )  # fmt: skip


@pytest.fixture
def _no_bars() -> Any:
    diffusers.utils.logging.disable_progress_bar()
    yield
    diffusers.utils.logging.enable_progress_bar()


@pytest.mark.usefixtures("_no_bars")
def test_the_guider_for_ltx2_is_its_own_at_infinity_and_keeps_the_bound_of_each_modality() -> None:
    options: dict[str, Any] = {"guidance_scale": 7.0, "stg_scale": 1.0, "modality_scale": 3.0,
                               "guidance_rescale": 0.7, "spatio_temporal_guidance_blocks": [1]}  # fmt: skip
    theirs = diffusers.LTX2Guidance
    native = modular(theirs(**options), theirs(guidance_scale=5.0))
    video, audio = CappedLTX2Guidance(gamma=INF, **options), CappedLTX2Guidance(5.0, gamma=INF)
    found = modular(video, audio)
    assert all(torch.equal(native[name], found[name]) for name in native)
    largest = [float(one.record.stacked()["ratio"].max()) for one in (video, audio)]
    video = CappedLTX2Guidance(gamma=largest[0] ** 0.5, **options)
    audio = CappedLTX2Guidance(5.0, gamma=largest[1] ** 0.5)
    modular(video, audio)
    for guider, before in zip((video, audio), largest, strict=True):
        s = guider.record.stacked()
        assert s["active"].any() and float(s["ratio"].max()) <= before**0.5 * (1 + 1e-6)


def test_the_guider_for_ltx2_says_what_it_cannot_do_and_saves(tmp_path: Path) -> None:
    guider = CappedLTX2Guidance(3.0, gamma=1.07, form="displacement")
    assert guider.rule == CapDisplacement(1.07)
    guider.save_pretrained(tmp_path)
    assert CappedLTX2Guidance.from_pretrained(tmp_path).rule == guider.rule
    with pytest.raises(NotImplementedError, match="text to video"):
        guider.prepare_inputs_from_block_state(SimpleNamespace(conditioning_mask=torch.ones(1)), {})
