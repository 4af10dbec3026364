"""Calls with given pictures, frames or segments: which are guided, which are refused, what is recorded."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tiny_edits import teal
from tiny_models import BATCH
from tiny_pipelines import call, pipeline
from tiny_variants import VIDEO

from meancap import Cap
from meancap.adapters.diffusers import LayoutError, guided

INF = float("inf")


def test_given_frames_of_cosmos_are_refused_at_the_first_step() -> None:
    name = "Cosmos2_5_PredictBasePipeline"
    pipe = pipeline(name)
    embeds = {k: torch.ones(1, 5, 16) for k in ("prompt_embeds", "negative_prompt_embeds")}
    given: dict[str, Any] = embeds | {"video": VIDEO["video"]()[:1], "num_latent_conditional_frames": 1}
    call(name, pipe, **given)
    with pytest.raises(LayoutError, match="was not shown"), guided(pipe, Cap(1.05)):
        call(name, pipe, **given)


def test_the_second_chunk_of_cosmos_transfer_begins_with_given_frames_and_is_refused() -> None:
    name = "Cosmos2_5_TransferPipeline"
    pipe = pipeline(name)
    longer = {"controls": torch.cat([VIDEO["video"]()] * 2, dim=1)}
    call(name, pipe, **longer)
    with pytest.raises(LayoutError, match="was not shown"), guided(pipe, Cap(1.05)) as record:
        call(name, pipe, **longer)
    assert len(record) == 0, "the chunk that was made is not taken for the refused one"


def test_editing_with_dreamlite_has_three_predictions_and_is_refused() -> None:
    name = "DreamLitePipeline"
    pipe = pipeline(name)
    pipe.prepare_image_latents = lambda image, **more: torch.ones(1, 4, 2, 2)  # of an eightfold autoencoder
    call(name, pipe, image=teal())
    with pytest.raises(ValueError, match="does not explain"), guided(pipe, Cap(1.05)):
        call(name, pipe, image=teal())


def test_pictures_that_glm_looks_at_before_its_loop_are_no_predictions_of_a_step() -> None:
    name = "GlmImagePipeline"
    pipe = pipeline(name)
    tokens = torch.arange(64) % 16
    looked_at: dict[str, Any] = {
        "image": [[teal()]] * BATCH,
        "prior_token_image_ids": [tokens] * BATCH,
        "source_image_grid_thw": [torch.tensor([[1, 8, 8]])] * BATCH,
    }  # fmt: skip
    calls: list[int] = []
    pipe.transformer.register_forward_hook(lambda *given: calls.append(1))
    native = call(name, pipe, **looked_at)
    assert len(calls) == BATCH + 2 * 3
    with guided(pipe, Cap(INF)) as record:
        assert torch.equal(call(name, pipe, **looked_at), native)
    assert len(record) == 3


@pytest.mark.parametrize("name", ["WanAnimatePipeline", "HunyuanVideoFramepackPipeline"])
def test_a_video_made_in_segments_is_guided_throughout_and_its_record_is_of_the_last(name: str) -> None:
    pipe = pipeline(name)
    longer: dict[str, Any] = {"num_frames": 10}
    if name.startswith("Wan"):
        longer = {key: [teal()] * 9 for key in ("pose_video", "face_video")}
    steps: list[int] = []
    call(name, pipe, **longer, callback_on_step_end=lambda pipe, i, t, values: steps.append(i) or values)
    assert len(steps) == 2 * 3, "two segments"
    native = call(name, pipe, **longer)
    with guided(pipe, Cap(INF)) as record:
        assert torch.equal(call(name, pipe, **longer), native)
    assert len(record) == 3 and record.stacked()["ratio"].shape == (3, BATCH)
