"""Pictures edited, inpainted and controlled by transformers: Qwen-Image, FLUX, Chroma, GLM and others."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import diffusers
import torch
from PIL import Image
from tiny_models import BATCH, CASES, IMAGE, PAIR, Case, autoencoder
from tiny_others import TRANSFORMERS
from tiny_parts import Words
from tiny_unets import CONTROL, SAFE
from tiny_variants import (
    HOLE,
    SMALL,
    STRENGTH,
    changed,
    control,
    latent_images,
    qwen_autoencoder,
)

QWEN, FLUX, SD3 = "QwenImagePipeline", "FluxPipeline", "StableDiffusion3Pipeline"
CONTROL_HOLE = CONTROL | {"control_mask": HOLE["mask_image"]}


def teal() -> Image.Image:
    return Image.new("RGB", (16, 16), "teal")


def small_latents(pipe: Any, image: torch.Tensor, generator: Any) -> torch.Tensor:
    """Latents of pictures that Qwen-Image enlarges to a million pixels: one for each 64 x 64 of them."""
    small = torch.nn.functional.avg_pool2d(image.flatten(0, 1).float(), 64)
    found = small.reshape(image.shape[0], -1, 1, *small.shape[-2:])
    return torch.cat([found, found[:, :1]], dim=1).to(pipe.transformer.dtype)


def edited(inputs: dict[str, Any], call: dict[str, Any], **more: Any) -> Case:
    """A case of a Qwen-Image pipeline that edits a picture, on a grid of 8 x 8 tokens."""
    settings = {"vae_scale_factor": 64, "latent_channels": 4, "_encode_vae_image": small_latents}
    return replace(
        CASES[QWEN], inputs=CASES[QWEN].inputs | {"image": teal} | inputs, call=call,
        settings=settings | more.pop("settings", {}),
        parts=lambda: qwen_autoencoder() | {"text_encoder": Words()}, **more,
    )  # fmt: skip


def one(inputs: dict[str, Any]) -> dict[str, Any]:
    """The same inputs for a pipeline that takes one sample at a time."""
    return {k: (1, *v[1:]) if isinstance(v, tuple) else lambda v=v: v()[:1] for k, v in inputs.items()}


def dit_control() -> dict[str, Any]:
    config = TRANSFORMERS["HunyuanDiTPipeline"].config
    known = diffusers.HunyuanDiT2DControlNetModel._get_init_keys(diffusers.HunyuanDiT2DControlNetModel)
    torch.manual_seed(1)
    made = diffusers.HunyuanDiT2DControlNetModel(
        **{k: v for k, v in config.items() if k in known}, transformer_num_layers=config["num_layers"]
    )
    return latent_images(4) | SAFE | {"controlnet": made.eval().requires_grad_(False)}


# fmt: off
EDITS: dict[str, Case] = {
    "StableDiffusion3ControlNetInpaintingPipeline": changed(
        SD3, CONTROL_HOLE, SMALL,
        parts=lambda: latent_images(4) | {"controlnet": control(
            "SD3ControlNetModel", SD3, extra_conditioning_channels=1)}),
    "CogView3PlusPipeline": Case(
        "CogView3PlusTransformer2DModel",
        {k: v for k, v in CASES["CogView4Pipeline"].config.items() if k != "rope_axes_dim"},
        PAIR, IMAGE, scheduler=diffusers.DDIMScheduler, std=0.4),
    "HunyuanDiTControlNetPipeline": replace(
        TRANSFORMERS["HunyuanDiTPipeline"], parts=dit_control,
        inputs=TRANSFORMERS["HunyuanDiTPipeline"].inputs | CONTROL),
    "FluxControlNetPipeline": changed(
        FLUX, CONTROL, SMALL,
        parts=lambda: latent_images(4) | {"controlnet": control("FluxControlNetModel", FLUX)}),
    "FluxKontextInpaintPipeline": changed(
        FLUX, HOLE, SMALL | STRENGTH | {"max_area": 256, "_auto_resize": False},
        parts=lambda: latent_images(4)),
    "ChromaInpaintPipeline": changed(
        "ChromaPipeline", HOLE, SMALL | STRENGTH, parts=lambda: latent_images(4),
        config=CASES["ChromaPipeline"].config | {"guidance_embeds": False}),  # read from the checkpoint
    "QwenImageControlNetPipeline": changed(
        QWEN, CONTROL, SMALL,
        parts=lambda: qwen_autoencoder() | {"controlnet": control("QwenImageControlNetModel", QWEN)}),
    "QwenImageControlNetInpaintPipeline": changed(
        QWEN, CONTROL_HOLE, SMALL,
        parts=lambda: qwen_autoencoder() | {"controlnet": control(
            "QwenImageControlNetModel", QWEN, extra_condition_channels=4)}),
    "QwenImageEditPipeline": edited({}, {}),
    "QwenImageEditPlusPipeline": edited(one(CASES[QWEN].inputs), {}),
    "QwenImageEditInpaintPipeline": edited({"mask_image": lambda: Image.new("L", (16, 16), 255)}, STRENGTH),
    "QwenImageLayeredPipeline": edited(
        {}, {"layers": 1, "output_type": "pt"}, config=CASES[QWEN].config | {"use_additional_t_cond": True},
        settings={"get_image_caption": lambda pipe, image, **more: ["a", "b"]}),
    "GlmImagePipeline": Case(
        "GlmImageTransformer2DModel",
        {"patch_size": 2, "in_channels": 4, "out_channels": 4, "num_layers": 1, "attention_head_dim": 8,
         "num_attention_heads": 2, "text_embed_dim": 16, "time_embed_dim": 16, "condition_dim": 8,
         "prior_vq_quantizer_codebook_size": 16},
        PAIR | {"prior_token_ids": lambda: torch.arange(BATCH * 64).reshape(BATCH, 64) % 16},
        SMALL, parts=lambda: {"vae": autoencoder(
            latent_channels=4, latents_mean=(0.0,) * 4, latents_std=(1.0,) * 4)}),
}
# fmt: on
