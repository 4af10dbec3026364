"""Video and audio in one run: two states, each guided for itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from spy import Spy
from tiny_models import BATCH
from tiny_pipelines import call, pipeline

from meancap import Cap
from meancap.adapters.diffusers import guided

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
