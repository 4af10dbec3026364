"""UNet pipelines beyond text to image: motion, adapters, union control, image embeddings, sound."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import diffusers
import torch
from tiny_models import BATCH, CASES, IMAGE, PAIR, UNET, Case, autoencoder, mask
from tiny_parts import Processor, Words, seeded, words
from tiny_unets import CONTROL, PERTURBED, SAFE, SD, UNETS, XL, controlnet, layers
from tiny_variants import HOLE, PICTURE, SMALL, STRENGTH, changed, latent_images

MOTION = UNETS["AnimateDiffPipeline"]
FRAMES = SMALL | {"num_frames": BATCH}
KOLORS = UNETS["KolorsPipeline"]
REVERSED = {"down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
            "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D")}  # fmt: skip


def frames() -> list[torch.Tensor]:
    """A video for each sample; with a control network, only as many frames as samples pass its check."""
    return list(torch.rand(BATCH, BATCH, 3, 16, 16, generator=torch.Generator().manual_seed(5)))


def moving(**more: Any) -> dict[str, Any]:
    return latent_images(4) | {"motion_adapter": None} | more


def adapter(channels: tuple[int, ...] = (4, 8)) -> Any:
    torch.manual_seed(1)
    made = diffusers.T2IAdapter(channels=list(channels), num_res_blocks=1, downscale_factor=1)
    return made.eval().requires_grad_(False)


def union() -> dict[str, Any]:
    config = {k: v for k, v in CASES[XL].config.items() if k not in ("sample_size", "up_block_types")}
    torch.manual_seed(1)
    made = diffusers.ControlNetUnionModel(
        **config, conditioning_embedding_out_channels=(4,), num_trans_channel=4, num_trans_head=2,
        num_trans_layer=1, num_proj_channel=4, num_control_type=2,
    )  # fmt: skip
    return latent_images(4) | {"controlnet": made.eval().requires_grad_(False)}


def sparse() -> Any:
    known = ("block_out_channels", "layers_per_block", "norm_num_groups", "cross_attention_dim")
    torch.manual_seed(1)
    made = diffusers.SparseControlNetModel(
        **{k: UNET[k] for k in known}, down_block_types=("DownBlockMotion", "CrossAttnDownBlockMotion"),
        attention_head_dim=2, motion_num_attention_heads=2, conditioning_channels=3,
        conditioning_embedding_out_channels=(4,), use_simplified_condition_embedding=False,
    )  # fmt: skip
    return made.eval().requires_grad_(False)


def embedded() -> dict[str, Any]:
    """What Stable unCLIP puts noise on: the embedding of a picture."""
    from diffusers.pipelines.stable_diffusion.stable_unclip_image_normalizer import (
        StableUnCLIPImageNormalizer,
    )

    return {
        "image_normalizer": StableUnCLIPImageNormalizer(embedding_dim=16),
        "image_noising_scheduler": diffusers.DDPMScheduler(),
        "image_encoder": autoencoder(),
    }


def prior() -> dict[str, Any]:
    torch.manual_seed(1)
    made = diffusers.PriorTransformer(
        num_attention_heads=2, attention_head_dim=8, embedding_dim=16, num_layers=1, num_embeddings=5,
    )  # fmt: skip
    parts = {k: v for k, v in embedded().items() if k != "image_encoder"}
    return parts | {
        "prior": made.eval().requires_grad_(False),
        "prior_scheduler": diffusers.UnCLIPScheduler(prediction_type="sample", num_train_timesteps=1000),
    }


def prior_prompt(pipe: Any, prompt: list[str], do_classifier_free_guidance: bool, **more: Any) -> Any:
    texts = [""] * len(prompt) + prompt if do_classifier_free_guidance else prompt
    return seeded(pipe, texts, 16), seeded(pipe, texts, 5, 16), torch.ones(len(texts), 5, dtype=torch.bool)


def text_prompt(pipe: Any, prompt: list[str], **more: Any) -> Any:
    return seeded(pipe, prompt, 5, 16), seeded(pipe, [""] * len(prompt), 5, 16)


def kolors_prompt(pipe: Any, prompt: list[str], **more: Any) -> Any:
    empty = [""] * len(prompt)
    return *text_prompt(pipe, prompt), seeded(pipe, prompt, 16), seeded(pipe, empty, 16)


def dream_prompt(pipe: Any, prompts: list[str], **more: Any) -> Any:
    return seeded(pipe, prompts, 5, 16), torch.ones(len(prompts), 5, dtype=torch.long)


def pictured(pipe: Any, image: Any, device: Any, number: int, guided: bool) -> torch.Tensor:
    found = seeded(pipe, ["a", "b"], 1, 16)
    return torch.cat([torch.zeros_like(found), found]) if guided else found


def movq() -> Any:
    return diffusers.VQModel(
        down_block_types=("DownEncoderBlock2D",) * 4, up_block_types=("UpDecoderBlock2D",) * 4,
        block_out_channels=(4,) * 4, latent_channels=4, num_vq_embeddings=4, norm_num_groups=1,
    )  # fmt: skip


# fmt: off
MOTIONS: dict[str, Case] = {
    "AnimateDiffPAGPipeline": replace(
        MOTION, call=FRAMES | PERTURBED, parts=lambda: moving() | layers("mid_block.*attn1")),
    "AnimateDiffSDXLPipeline": replace(
        MOTION, inputs=CASES[XL].inputs, call=FRAMES, parts=moving,
        config=MOTION.config | {k: CASES[XL].config[k] for k in (
            "addition_embed_type", "addition_time_embed_dim", "projection_class_embeddings_input_dim")}),
    "AnimateDiffControlNetPipeline": replace(
        MOTION, inputs=PAIR | {"conditioning_frames": frames}, call=FRAMES,
        parts=lambda: moving(controlnet=controlnet(SD))),
    "AnimateDiffSparseControlNetPipeline": replace(
        MOTION, inputs=PAIR | {"conditioning_frames": lambda: PICTURE["image"]()[:1]}, call=FRAMES,
        parts=lambda: moving(controlnet=sparse())),
    "AnimateDiffVideoToVideoPipeline": replace(
        MOTION, inputs=PAIR | {"video": frames}, call=SMALL | STRENGTH, parts=moving),
    "AnimateDiffVideoToVideoControlNetPipeline": replace(
        MOTION, inputs=PAIR | {"video": frames, "conditioning_frames": frames}, call=SMALL | STRENGTH,
        parts=lambda: moving(controlnet=controlnet(SD))),
    "StableDiffusionAdapterPipeline": changed(
        SD, PICTURE, SMALL, config=UNET | REVERSED,
        parts=lambda: latent_images(4) | SAFE | {"adapter": adapter()}),
    "StableDiffusionXLAdapterPipeline": changed(
        XL, PICTURE, SMALL, config=CASES[XL].config | REVERSED, std=0.6,
        parts=lambda: latent_images(4) | {"adapter": adapter()}),
    "StableDiffusionDepth2ImgPipeline": replace(
        CASES[SD], config=UNET | {"in_channels": 5}, call=STRENGTH, parts=lambda: latent_images(4),
        inputs=PAIR | PICTURE | {"depth_map": (BATCH, 16, 16)}),
    "StableDiffusionUpscalePipeline": replace(
        CASES[SD], config=UNET | {"in_channels": 7, "num_class_embeds": 1000}, call={"noise_level": 20},
        inputs=PAIR | {"image": lambda: PICTURE["image"]()[:, :, :8, :8]},
        parts=lambda: latent_images(4) | {"low_res_scheduler": diffusers.DDPMScheduler()}),
    "StableDiffusionImageVariationPipeline": replace(
        CASES[SD], inputs=PICTURE, call=SMALL, parts=lambda: latent_images(4) | SAFE,
        settings={"_encode_image": pictured}),
    "StableUnCLIPPipeline": replace(
        CASES[SD], config=UNET | {"class_embed_type": "projection",
                                  "projection_class_embeddings_input_dim": 32},
        inputs={}, call=IMAGE | {"prompt": ["a", "b"], "prior_num_inference_steps": 2}, parts=prior,
        settings={"_encode_prior_prompt": prior_prompt, "encode_prompt": text_prompt}),
    "StableUnCLIPImg2ImgPipeline": replace(
        CASES[SD], config=UNET | {"class_embed_type": "projection",
                                  "projection_class_embeddings_input_dim": 32},
        inputs=PAIR | {"image_embeds": (BATCH, 16)}, parts=embedded),
    "LDMTextToImagePipeline": replace(
        CASES[SD], inputs={}, call=IMAGE | {"prompt": ["a", "b"], "output_type": "pt"},
        parts=lambda: {"vqvae": autoencoder(), "bert": Words(), "tokenizer": words}),
    "StableDiffusionXLControlNetUnionPipeline": changed(
        XL, CONTROL, SMALL | {"control_mode": 0}, parts=union),
    "StableDiffusionXLControlNetUnionImg2ImgPipeline": changed(
        XL, PICTURE | CONTROL, SMALL | STRENGTH | {"control_mode": 0}, parts=union),
    "StableDiffusionXLControlNetUnionInpaintPipeline": changed(
        XL, HOLE | CONTROL, SMALL | STRENGTH | {"control_mode": 0}, parts=union),
    "KolorsPAGPipeline": replace(KOLORS, call=KOLORS.call | PERTURBED, parts=lambda: layers("mid")),
    "KolorsImg2ImgPipeline": replace(
        KOLORS, inputs=PICTURE, call=SMALL | STRENGTH | {"prompt": ["a", "b"]},
        parts=lambda: latent_images(4), settings={"encode_prompt": kolors_prompt}),
    "AudioLDM2Pipeline": Case(
        "AudioLDM2UNet2DConditionModel", UNET | {"cross_attention_dim": (16, 16)},
        PAIR | {"generated_prompt_embeds": (BATCH, 5, 16), "negative_generated_prompt_embeds": (BATCH, 5, 16),
                "attention_mask": mask(BATCH, 5), "negative_attention_mask": mask(BATCH, 5)},
        {"audio_length_in_s": 0.5}, scheduler=diffusers.DDIMScheduler, std=0.4,
        parts=lambda: {"vae": autoencoder(), "text_encoder_2": Words(), "language_model": Words(),
                       "vocoder": Processor(config=Processor(
                           upsample_rates=[2], sampling_rate=32, model_in_dim=8))},
    ),
    "DreamLitePipeline": Case(
        "DreamLiteUNetModel",
        {k: v for k, v in UNET.items() if not k.endswith("_types")}
        | {"attention_head_dim": 2, "transformer_layers_per_block": 1,
           "down_block_types": ("DreamLiteCrossAttnNoSelfAttnDownBlock2D", "DreamLiteCrossAttnDownBlock2D"),
           "up_block_types": ("DreamLiteCrossAttnUpBlock2D", "DreamLiteUpBlock2D")},
        {}, SMALL | {"prompt": "a", "negative_prompt": ""}, settings={"encode_prompt": dream_prompt},
        parts=lambda: {"text_encoder": autoencoder(), "vae": autoencoder()}, std=0.4,
    ),
    "Kandinsky3Pipeline": Case(
        "Kandinsky3UNet",
        {"time_embedding_dim": 4, "groups": 2, "attention_head_dim": 2, "layers_per_block": 2,
         "block_out_channels": (8, 8), "cross_attention_dim": 4, "encoder_hid_dim": 16},
        PAIR | {"attention_mask": mask(BATCH, 5), "negative_attention_mask": mask(BATCH, 5)}, IMAGE,
        scheduler=diffusers.DDPMScheduler, std=0.6,
    ),
}
MOTIONS["Kandinsky3Img2ImgPipeline"] = replace(
    MOTIONS["Kandinsky3Pipeline"], call=STRENGTH, parts=lambda: {"movq": movq()},
    inputs=MOTIONS["Kandinsky3Pipeline"].inputs | PICTURE)
# fmt: on
