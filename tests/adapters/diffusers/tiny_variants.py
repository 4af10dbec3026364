"""Variants of the pipelines in `tiny_models`: image to image, inpainting, editing, perturbed attention."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import diffusers
import torch
from tiny_models import BATCH, CASES, PAIR, Case, autoencoder

PICTURE = {"image": lambda: torch.rand(BATCH, 3, 16, 16, generator=torch.Generator().manual_seed(5))}
HOLE = PICTURE | {"mask_image": lambda: (torch.arange(16.0) > 7).expand(BATCH, 1, 16, 16).float()}
VIDEO = {"video": lambda: torch.rand(BATCH, 5, 3, 16, 16, generator=torch.Generator().manual_seed(5))}
SMALL = {"height": 16, "width": 16}


def latent_images(channels: int) -> dict[str, Any]:
    return {"vae": autoencoder(latent_channels=channels, shift_factor=0.0)}


def changed(name: str, inputs: dict[str, Any], call: dict[str, Any], **more: Any) -> Case:
    case = CASES[name]
    return replace(case, inputs=case.inputs | inputs, call=case.call | call, **more)


def qwen_autoencoder() -> dict[str, Any]:
    return {
        "vae": diffusers.AutoencoderKLQwenImage(
            base_dim=8,
            z_dim=4,
            dim_mult=[1, 1],
            num_res_blocks=1,
            temperal_downsample=[False],
            latents_mean=[0.0] * 4,
            latents_std=[1.0] * 4,
        )
    }


def wan_autoencoder() -> dict[str, Any]:
    return {
        "vae": diffusers.AutoencoderKLWan(
            base_dim=4,
            z_dim=4,
            dim_mult=[1, 1, 1, 1],
            num_res_blocks=1,
            temperal_downsample=[False, True, True],
            latents_mean=[0.0] * 4,
            latents_std=[1.0] * 4,
        )
    }


def control(name: str, classic: str, **more: Any) -> Any:
    known = getattr(diffusers, name)._get_init_keys(getattr(diffusers, name))
    torch.manual_seed(1)
    config = {k: v for k, v in CASES[classic].config.items() if k in known}
    made = getattr(diffusers, name)(**config, **more)
    return made.eval().requires_grad_(False)


def sana_autoencoder() -> dict[str, Any]:
    blocks = {"block_types": "ResBlock", "block_out_channels": (4, 4), "layers_per_block": (1, 1)}
    return {
        "vae": diffusers.AutoencoderDC(
            in_channels=3,
            latent_channels=4,
            **{f"encoder_{k}": v for k, v in blocks.items()},
            **{f"decoder_{k}": v for k, v in blocks.items()},
            encoder_qkv_multiscales=((), ()),
            decoder_qkv_multiscales=((), ()),
        )
    }


STRENGTH = {"strength": 0.7, "num_inference_steps": 4}

# fmt: off
VARIANTS: dict[str, Case] = {
    "StableDiffusion3Img2ImgPipeline": changed(
        "StableDiffusion3Pipeline", PICTURE, SMALL | STRENGTH, parts=lambda: latent_images(4)),
    "StableDiffusion3InpaintPipeline": changed(
        "StableDiffusion3Pipeline", HOLE, SMALL | STRENGTH, parts=lambda: latent_images(16),
        config=CASES["StableDiffusion3Pipeline"].config | {"in_channels": 16, "out_channels": 16}),
    "StableDiffusion3PAGPipeline": changed(
        "StableDiffusion3Pipeline", {}, {"pag_scale": 2.0},
        parts=lambda: {"pag_applied_layers": ["blocks.0"]}),
    "FluxImg2ImgPipeline": changed("FluxPipeline", PICTURE, SMALL | STRENGTH, parts=lambda: latent_images(4)),
    "FluxInpaintPipeline": changed("FluxPipeline", HOLE, SMALL | STRENGTH, parts=lambda: latent_images(4)),
    "FluxKontextPipeline": changed(
        "FluxPipeline", PICTURE, SMALL | {"max_area": 256, "_auto_resize": False},
        parts=lambda: latent_images(4)),
    "ChromaImg2ImgPipeline": changed("ChromaPipeline", PICTURE, SMALL | STRENGTH,
    parts=lambda: latent_images(4)),
    "QwenImageImg2ImgPipeline": changed(
        "QwenImagePipeline", PICTURE, SMALL | STRENGTH, parts=qwen_autoencoder),
    "WanVideoToVideoPipeline": replace(
        CASES["WanPipeline"], inputs=PAIR | VIDEO, call=SMALL | STRENGTH, parts=wan_autoencoder),
    "ZImageImg2ImgPipeline": changed("ZImagePipeline", PICTURE, SMALL | STRENGTH,
    parts=lambda: latent_images(4)),
    "StableDiffusionImg2ImgPipeline": changed(
        "StableDiffusionPipeline", PICTURE, STRENGTH,
        parts=lambda: latent_images(4) | {"requires_safety_checker": False}),
    "StableDiffusionXLImg2ImgPipeline": changed(
        "StableDiffusionXLPipeline", PICTURE, STRENGTH, parts=lambda: latent_images(4)),
    "ErnieImagePipeline": Case(
        "ErnieImageTransformer2DModel",
        {"hidden_size": 16, "num_attention_heads": 2, "num_layers": 1, "ffn_hidden_size": 16,
         "in_channels": 4,
         "out_channels": 4, "text_in_dim": 16, "rope_axes_dim": (4, 2, 2)},
        {"prompt_embeds": [(5, 16)] * BATCH, "negative_prompt_embeds": [(5, 16)] * BATCH},
        {"height": 128, "width": 128, "use_pe": False},
    ),
    "QwenImageInpaintPipeline": changed("QwenImagePipeline", HOLE, SMALL | STRENGTH, parts=qwen_autoencoder),
    "ZImageInpaintPipeline": changed("ZImagePipeline", HOLE, SMALL | STRENGTH,
    parts=lambda: latent_images(4)),
    "StableDiffusionInpaintPipeline": changed(
        "StableDiffusionPipeline", HOLE, SMALL | STRENGTH,
        parts=lambda: latent_images(4) | {"requires_safety_checker": False}),
    "StableDiffusionXLInpaintPipeline": changed(
        "StableDiffusionXLPipeline", HOLE, SMALL | STRENGTH, parts=lambda: latent_images(4)),
    "StableDiffusion3ControlNetPipeline": changed(
        "StableDiffusion3Pipeline", {"control_image": PICTURE["image"]}, SMALL,
        parts=lambda: latent_images(4) | {"controlnet": control("SD3ControlNetModel",
        "StableDiffusion3Pipeline")}),
    "SanaControlNetPipeline": changed(
        "SanaPipeline", {"control_image": PICTURE["image"]}, {"height": 32, "width": 32},
        parts=lambda: sana_autoencoder() | {"controlnet": control("SanaControlNetModel", "SanaPipeline")}),
    "CogView4ControlPipeline": changed(
        "CogView4Pipeline", {"control_image": PICTURE["image"]}, SMALL, parts=lambda: latent_images(4),
        config=CASES["CogView4Pipeline"].config | {"in_channels": 8}),
    "WanImageToVideoPipeline": changed(
        "WanPipeline", {"image": lambda: PICTURE["image"]()[:1]}, SMALL, parts=wan_autoencoder,
        config=CASES["WanPipeline"].config | {"in_channels": 12}),
    "WanVACEPipeline": replace(
        CASES["WanPipeline"], model="WanVACETransformer3DModel", parts=wan_autoencoder,
        config=CASES["WanPipeline"].config | {"vace_layers": [0], "vace_in_channels": 4 * 2 + 64},
        inputs={"prompt_embeds": (1, 5, 16), "negative_prompt_embeds": (1, 5, 16)},
        call=SMALL | {"num_frames": 5}),
    "Kandinsky5T2IPipeline": Case(
        "Kandinsky5Transformer3DModel",
        {"in_visual_dim": 4, "out_visual_dim": 4, "in_text_dim": 16, "in_text_dim2": 16, "time_dim": 16,
         "model_dim": 16, "ff_dim": 16, "num_text_blocks": 1, "num_visual_blocks": 1, "axes_dims": (2, 2, 4)},
        {"prompt_embeds_qwen": (BATCH, 5, 16), "negative_prompt_embeds_qwen": (BATCH, 5, 16),
         "prompt_embeds_clip": (BATCH, 16), "negative_prompt_embeds_clip": (BATCH, 16),
         "prompt_cu_seqlens": lambda: torch.tensor([0, 5, 10]),
         "negative_prompt_cu_seqlens": lambda: torch.tensor([0, 5, 10])},
        {"height": 64, "width": 64},
        settings={"resolutions": [(64, 64)]},
    ),
    "Flux2KleinInpaintPipeline": changed("Flux2KleinPipeline", HOLE, STRENGTH),
}
# fmt: on
