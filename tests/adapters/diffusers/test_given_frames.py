"""Calls with given pictures, frames or segments: which are guided, which are refused, what is recorded."""

import pytest
import torch
from tiny_models import BATCH, VIDEO, teal
from tiny_pipelines import CASES, call, model, pipeline

from meancap import Cap
from meancap.adapters.diffusers import LayoutError, guided
from meancap.adapters.diffusers.layouts import same_state, shown_state

INF = float("inf")
I2V = "WanImageToVideoPipeline"


def test_given_frames_of_cosmos_are_refused_at_the_first_step():
    name = "Cosmos2_5_PredictBasePipeline"
    pipe = pipeline(name)
    embeds = {k: torch.ones(1, 5, 16) for k in ("prompt_embeds", "negative_prompt_embeds")}
    given = embeds | {"video": VIDEO["video"]()[:1], "num_latent_conditional_frames": 1}
    call(name, pipe, **given)
    with pytest.raises(LayoutError, match="did not receive"), guided(pipe, Cap(1.05)):
        call(name, pipe, **given)


def test_the_second_chunk_of_cosmos_transfer_begins_with_given_frames_and_is_refused():
    name = "Cosmos2_5_TransferPipeline"
    pipe = pipeline(name)
    longer = {"controls": torch.cat([VIDEO["video"]()] * 2, dim=1)}
    call(name, pipe, **longer)
    with pytest.raises(LayoutError, match="did not receive"), guided(pipe, Cap(1.05)) as record:
        call(name, pipe, **longer)
    assert len(record) == 0, "the chunk that was made is not taken for the refused one"


def test_editing_with_dreamlite_has_three_predictions_and_is_refused():
    name = "DreamLitePipeline"
    pipe = pipeline(name)
    pipe.prepare_image_latents = lambda image, **more: torch.ones(1, 4, 2, 2)  # of an eightfold autoencoder
    call(name, pipe, image=teal())
    with pytest.raises(ValueError, match="does not explain"), guided(pipe, Cap(1.05)):
        call(name, pipe, image=teal())


def test_pictures_that_glm_looks_at_before_its_loop_are_no_predictions_of_a_step():
    name = "GlmImagePipeline"
    pipe = pipeline(name)
    tokens = torch.arange(64) % 16
    looked_at = {
        "image": [[teal()]] * BATCH,
        "prior_token_image_ids": [tokens] * BATCH,
        "source_image_grid_thw": [torch.tensor([[1, 8, 8]])] * BATCH,
    }  # fmt: skip
    calls = []
    pipe.transformer.register_forward_hook(lambda *given: calls.append(1))
    native = call(name, pipe, **looked_at)
    assert len(calls) == BATCH + 2 * 3
    with guided(pipe, Cap(INF)) as record:
        assert torch.equal(call(name, pipe, **looked_at), native)
    assert len(record) == 3


@pytest.mark.parametrize("name", ["WanAnimatePipeline", "HunyuanVideoFramepackPipeline"])
def test_a_video_made_in_segments_is_guided_throughout_and_its_record_is_of_the_last(name):
    pipe = pipeline(name)
    longer = {"num_frames": 10}
    if name.startswith("Wan"):
        longer = {key: [teal()] * 9 for key in ("pose_video", "face_video")}
    steps = []
    call(name, pipe, **longer, callback_on_step_end=lambda pipe, i, t, values: steps.append(i) or values)
    assert len(steps) == 2 * 3, "two segments"
    native = call(name, pipe, **longer)
    with guided(pipe, Cap(INF)) as record:
        assert torch.equal(call(name, pipe, **longer), native)
    assert len(record) == 3 and record.stacked()["ratio"].shape == (3, BATCH)


def test_wan_22_image_to_video_is_refused_for_its_clean_first_frame():
    """With expand_timesteps the transformer sees the picture where the scheduler steps noise."""
    config = CASES[I2V].config | {"in_channels": 4}
    pipe = pipeline(I2V, transformer=model("WanTransformer3DModel", config), expand_timesteps=True)
    native = call(I2V, pipe)
    with pytest.raises(LayoutError, match="a state that its denoiser did not"), guided(pipe, Cap(1.05)):
        call(I2V, pipe)
    assert torch.equal(call(I2V, pipe), native)


def test_a_state_is_found_beside_pictures_tokens_and_in_another_precision():
    drawn = torch.Generator().manual_seed(0)
    x, more = torch.randn(2, 3, 4, 5, 6, generator=drawn).unbind()
    for shown in (
        x,
        3 * x,
        torch.cat([x, x]),
        x.bfloat16(),
        torch.cat([x, more], dim=1),
        torch.cat([more, x], dim=1),
        torch.cat([x, more], dim=3),
    ):
        assert same_state(shown, x) is True
    frame = x.clone()
    frame[:, :, 0] = 0.1
    for shown in (more, frame, torch.cat([frame, frame]), frame.bfloat16(), torch.cat([frame, more], dim=1)):
        assert same_state(shown, x) is False
    for shown in (None, x.flatten(1), x[:, :2], torch.cat([x, x[:1]])):
        assert same_state(shown, x) is None


def test_the_state_is_the_first_input_of_a_denoiser_however_it_is_named():
    x = torch.ones(1, 2, 3)
    for args, kwargs in (((x,), {}), ((), {"hidden_states": x}), ((), {"x": x, "t": 0})):
        assert shown_state(args, kwargs) is x
    assert shown_state(([torch.ones(2, 1, 4, 4)] * 3,), {}).shape == (3, 2, 4, 4)
    assert shown_state(([torch.ones(2), torch.ones(3)],), {}) is None
    assert shown_state((), {}) is None
