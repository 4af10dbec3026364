"""Variants of the UNet pipelines: control networks, perturbed attention, motion."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import diffusers
import torch
from tiny_models import CASES, IMAGE, PAIR, UNET, Case
from tiny_variants import HOLE, PICTURE, SMALL, STRENGTH, changed, latent_images

SD, XL = "StableDiffusionPipeline", "StableDiffusionXLPipeline"
CONTROL = {"control_image": PICTURE["image"]}
SAFE = {"requires_safety_checker": False}
PERTURBED = {"pag_scale": 2.0}


def controlnet(classic: str) -> Any:
    """A control network beside the tiny UNet of a classic pipeline."""
    config = {k: v for k, v in CASES[classic].config.items() if k not in ("sample_size", "up_block_types")}
    torch.manual_seed(1)
    made = diffusers.ControlNetModel(**config, conditioning_embedding_out_channels=(4,))
    return made.eval().requires_grad_(False)


def controlled(classic: str) -> dict[str, Any]:
    safe = SAFE if classic == SD else {}
    return latent_images(4) | {"controlnet": controlnet(classic)} | safe


def layers(*names: str) -> dict[str, Any]:
    return {"pag_applied_layers": list(names)}


# fmt: off
UNETS: dict[str, Case] = {
    "StableDiffusionControlNetPipeline": changed(SD, PICTURE, SMALL, parts=lambda: controlled(SD)),
    "StableDiffusionControlNetImg2ImgPipeline": changed(
        SD, PICTURE | CONTROL, SMALL | STRENGTH, parts=lambda: controlled(SD)),
    "StableDiffusionControlNetInpaintPipeline": changed(
        SD, HOLE | CONTROL, SMALL | STRENGTH, parts=lambda: controlled(SD)),
    "StableDiffusionXLControlNetPipeline": changed(XL, PICTURE, SMALL, parts=lambda: controlled(XL)),
    "StableDiffusionXLControlNetImg2ImgPipeline": changed(
        XL, PICTURE | CONTROL, SMALL | STRENGTH, parts=lambda: controlled(XL)),
    "StableDiffusionXLControlNetInpaintPipeline": changed(
        XL, HOLE | CONTROL, SMALL | STRENGTH, parts=lambda: controlled(XL)),
    "StableDiffusionPAGPipeline": changed(SD, {}, PERTURBED, parts=lambda: SAFE | layers("mid")),
    "StableDiffusionPAGImg2ImgPipeline": replace(
        CASES[SD], inputs=PAIR | PICTURE, call=STRENGTH | PERTURBED,
        parts=lambda: latent_images(4) | SAFE | layers("mid")),
    "StableDiffusionPAGInpaintPipeline": changed(
        SD, HOLE, SMALL | STRENGTH | PERTURBED, parts=lambda: latent_images(4) | SAFE | layers("mid")),
    "StableDiffusionControlNetPAGPipeline": changed(
        SD, PICTURE, SMALL | PERTURBED, parts=lambda: controlled(SD) | layers("mid")),
    "StableDiffusionControlNetPAGInpaintPipeline": changed(
        SD, HOLE | CONTROL, SMALL | STRENGTH | PERTURBED, parts=lambda: controlled(SD) | layers("mid")),
    "StableDiffusionXLPAGPipeline": changed(XL, {}, PERTURBED, parts=lambda: layers("mid")),
    "StableDiffusionXLPAGImg2ImgPipeline": replace(
        CASES[XL], inputs=CASES[XL].inputs | PICTURE, call=STRENGTH | PERTURBED,
        parts=lambda: latent_images(4) | layers("mid")),
    "StableDiffusionXLPAGInpaintPipeline": changed(
        XL, HOLE, SMALL | STRENGTH | PERTURBED, parts=lambda: latent_images(4) | layers("mid")),
    "StableDiffusionXLControlNetPAGPipeline": changed(
        XL, PICTURE, SMALL | PERTURBED, parts=lambda: controlled(XL) | layers("mid")),
    "StableDiffusionXLControlNetPAGImg2ImgPipeline": changed(
        XL, PICTURE | CONTROL, SMALL | STRENGTH | PERTURBED, parts=lambda: controlled(XL) | layers("mid")),
    "AnimateDiffPipeline": Case(
        "UNetMotionModel",
        {k: v for k, v in UNET.items() if k not in ("down_block_types", "up_block_types",
         "attention_head_dim")}
        | {"num_attention_heads": 2, "motion_num_attention_heads": 2,
           "down_block_types": ("DownBlockMotion", "CrossAttnDownBlockMotion"),
           "up_block_types": ("CrossAttnUpBlockMotion", "UpBlockMotion")},
        PAIR, IMAGE | {"num_frames": 3}, scheduler=diffusers.DDIMScheduler,
        parts=lambda: {"motion_adapter": None}, std=0.4),
    "KolorsPipeline": Case(
        "UNet2DConditionModel",
        UNET | {"addition_embed_type": "text_time", "addition_time_embed_dim": 4,
                "projection_class_embeddings_input_dim": 16 + 6 * 4, "encoder_hid_dim": 16,
                "encoder_hid_dim_type": "text_proj"},
        CASES[XL].inputs, IMAGE | {"max_sequence_length": 5},
        scheduler=diffusers.EulerDiscreteScheduler, std=0.4, needs="sentencepiece",
    ),
}
# fmt: on
