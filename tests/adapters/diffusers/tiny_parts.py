"""Components of tiny pipelines: autoencoders, connectors, and stand-ins for text encoders."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import diffusers
import torch


class Processor(SimpleNamespace):
    """A stand-in of which a pipeline asks only what it is given."""


def hunyuan_autoencoder() -> dict[str, Any]:
    blocks = {
        "down_block_types": ["HunyuanVideoDownBlock3D"] * 4,
        "up_block_types": ["HunyuanVideoUpBlock3D"] * 4,
    }
    return {
        "vae": diffusers.AutoencoderKLHunyuanVideo(
            latent_channels=4,
            block_out_channels=(4, 4, 4, 4),
            layers_per_block=1,
            norm_num_groups=2,
            mid_block_add_attention=False,
            **blocks,
        )
    }


def cog_autoencoder() -> dict[str, Any]:
    blocks = {"down_block_types": ["CogVideoXDownBlock3D"] * 4, "up_block_types": ["CogVideoXUpBlock3D"] * 4}
    return {
        "vae": diffusers.AutoencoderKLCogVideoX(
            block_out_channels=(4, 4, 4, 4),
            latent_channels=4,
            layers_per_block=1,
            norm_num_groups=2,
            **blocks,
        )
    }


def z_control(channels: int) -> Any:
    torch.manual_seed(1)
    made = diffusers.ZImageControlNetModel(
        control_layers_places=[0], control_refiner_layers_places=[0], control_in_dim=channels,
        add_control_noise_refiner="control_noise_refiner", dim=32, n_refiner_layers=1, n_heads=2,
         n_kv_heads=2,
    )  # fmt: skip
    return made.eval().requires_grad_(False)


def ltx2_parts() -> dict[str, Any]:
    from diffusers.pipelines.ltx2 import LTX2TextConnectors

    torch.manual_seed(1)
    sides = {
        f"{side}_connector_{name}": value
        for side in ("video", "audio")
        for name, value in (
            ("num_attention_heads", 2), ("attention_head_dim", 8), ("num_layers", 1),
            ("num_learnable_registers", None),
        )
    }  # fmt: skip
    connectors = LTX2TextConnectors(
        caption_channels=16, text_proj_in_factor=3, connector_rope_base_seq_len=32,
        rope_double_precision=False, causal_temporal_positioning=False, rope_type="split", **sides,
    )  # fmt: skip
    vae = diffusers.AutoencoderKLLTX2Video(
        latent_channels=4, block_out_channels=(8,), decoder_block_out_channels=(8,), layers_per_block=(1,),
        decoder_layers_per_block=(1, 1), spatio_temporal_scaling=(True,),
        decoder_spatio_temporal_scaling=(True,), decoder_inject_noise=(False, False),
        downsample_type=("spatial",), upsample_residual=(False,), upsample_factor=(1,),
        timestep_conditioning=False, patch_size=1, patch_size_t=1,
    )  # fmt: skip
    audio_vae = diffusers.AutoencoderKLLTX2Audio(
        base_channels=4, ch_mult=(1,), num_res_blocks=1, attn_resolutions=None, resolution=32,
         latent_channels=2,
        norm_type="pixel", causality_axis="height", mid_block_add_attention=False, mel_bins=8,
    )  # fmt: skip
    return {"connectors": connectors.eval(), "vae": vae, "audio_vae": audio_vae}


def seeded(pipe: Any, texts: list[str], *shape: int) -> torch.Tensor:
    """An embedding for each text, the same whenever it is asked for."""
    drawn = [torch.randn(shape, generator=torch.Generator().manual_seed(sum(map(ord, t)))) for t in texts]
    denoiser = getattr(pipe, "unet", None) or pipe.transformer
    return torch.stack(drawn).to(denoiser.dtype)


def fibo_prompt(pipe: Any, prompt: list[str], **more: Any) -> Any:
    found = seeded(pipe, prompt, 5, 32)
    return found, [found[..., :16]] * 2, torch.ones(found.shape[:2], dtype=found.dtype)


def audio_prompt(pipe: Any, prompt: list[str], device: Any) -> Any:
    return seeded(pipe, prompt, 5, 16), torch.full((len(prompt),), 5)


def words(texts: list[str], **more: Any) -> Processor:
    return Processor(input_ids=torch.tensor([[sum(map(ord, text)) % 64] * 5 for text in texts]))


class Words(torch.nn.Module):
    """A text encoder of one table."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.table = torch.nn.Embedding(64, 16)
        self.config = Processor(model_type="words")

    @property
    def dtype(self) -> torch.dtype:
        return self.table.weight.dtype

    @property
    def device(self) -> torch.device:
        return self.table.weight.device

    def forward(self, ids: torch.Tensor) -> tuple[torch.Tensor]:
        return (self.table(ids),)
