"""Examples encoded by a pipeline's autoencoder are what its own loop ends on, plain or packed."""

from __future__ import annotations

import pytest
import torch
from diffusers import AutoencoderKL
from PIL import Image
from tiny_pipelines import call, pipeline

from meancap.adapters.diffusers import guided
from meancap.rules.path_matching import Follow, path_statistics
from meancap.runs.calibrate import encode_pictures

BLOCKS = {"down_block_types": ("DownEncoderBlock2D",) * 2, "up_block_types": ("UpDecoderBlock2D",) * 2}


@pytest.mark.parametrize(("name", "packed"), [("FluxPipeline", 4), ("StableDiffusion3Pipeline", 1)])
def test_a_pipeline_that_follows_encoded_pictures_ends_on_them(name: str, packed: int) -> None:
    channels = pipeline(name).transformer.config.in_channels // packed
    vae = AutoencoderKL(
        **BLOCKS, block_out_channels=(8, 8), norm_num_groups=4, latent_channels=channels, shift_factor=0.1
    )
    pipe = pipeline(name, vae=vae)
    pictures = [Image.new("RGB", (64, 64), (90 * i, 80, 200)) for i in range(2)]
    latents = encode_pictures(pipe, pictures)
    with guided(pipe, Follow(latents)) as record:
        end = call(name, pipe, height=64, width=64)
    torch.testing.assert_close(end, latents, rtol=1e-4, atol=1e-5)
    run = path_statistics(record)
    assert run.times[0] == 0 and run.values.shape == (2, len(run.times), 3)
