"""The state that is stepped is the one that the denoiser was shown, or the run is refused."""

from __future__ import annotations

import pytest
import torch
from tiny_pipelines import CASES, call, model, pipeline

from meancap import Cap
from meancap.adapters.diffusers import LayoutError, guided
from meancap.adapters.diffusers.layouts import same_state, shown_state

I2V = "WanImageToVideoPipeline"


def test_wan_22_image_to_video_is_refused_for_its_clean_first_frame() -> None:
    """With expand_timesteps the transformer sees the picture where the scheduler steps noise."""
    config = CASES[I2V].config | {"in_channels": 4}
    pipe = pipeline(I2V, transformer=model("WanTransformer3DModel", config), expand_timesteps=True)
    native = call(I2V, pipe)
    with pytest.raises(LayoutError, match="steps a state that its denoiser was not shown"):  # noqa: SIM117
        with guided(pipe, Cap(1.05)):
            call(I2V, pipe)
    assert torch.equal(call(I2V, pipe), native)


def test_a_state_is_found_beside_pictures_tokens_and_in_another_precision() -> None:
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


def test_the_state_is_the_first_input_of_a_denoiser_however_it_is_named() -> None:
    x = torch.ones(1, 2, 3)
    for args, kwargs in (((x,), {}), ((), {"hidden_states": x}), ((), {"x": x, "t": 0})):
        assert shown_state(args, kwargs) is x
    assert shown_state(([torch.ones(2, 1, 4, 4)] * 3,), {}).shape == (3, 2, 4, 4)  # type: ignore[union-attr]
    assert shown_state(([torch.ones(2), torch.ones(3)],), {}) is None
    assert shown_state((), {}) is None
