"""Videos from pictures, poses and other videos: Wan, HunyuanVideo, Cosmos, EasyAnimate, Motif, ConsisID."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import diffusers
import torch
from tiny_edits import one, teal
from tiny_models import BATCH, CASES, PAIR, TEXT, TWO_TEXTS, Case
from tiny_others import COGVIDEO
from tiny_parts import Processor, Words, cog_autoencoder, hunyuan_autoencoder, seeded
from tiny_variants import PICTURE, SMALL, VIDEO, changed, wan_autoencoder

WAN, HUNYUAN = "WanPipeline", "HunyuanVideoPipeline"
FRAMES = SMALL | {"num_frames": 5}
FIRST = {"image": lambda: PICTURE["image"]()[:1]}
COSMOS = {"in_channels": 5, "out_channels": 4, "num_attention_heads": 2, "attention_head_dim": 12,
          "num_layers": 1, "mlp_ratio": 2, "text_embed_dim": 16, "adaln_lora_dim": 4, "max_size": (8, 8, 8),
          "patch_size": (1, 2, 2), "rope_scale": (1.0, 1.0, 1.0), "concat_padding_mask": False,
          "extra_pos_embed_type": "learnable"}  # fmt: skip
EASY = {"num_attention_heads": 2, "attention_head_dim": 16, "in_channels": 4, "out_channels": 4,
        "time_embed_dim": 2, "text_embed_dim": 16, "num_layers": 1, "sample_width": 8, "sample_height": 8,
        "patch_size": 2}  # fmt: skip
MOTIF = {"in_channels": 9, "out_channels": 4, "num_attention_heads": 2, "attention_head_dim": 12,
         "num_layers": 1, "num_single_layers": 1, "patch_size": 1, "patch_size_t": 1, "text_embed_dim": 16,
         "image_embed_dim": 16, "rope_axes_dim": (4, 4, 4)}  # fmt: skip


def guider() -> dict[str, Any]:
    return {"guider": diffusers.ClassifierFreeGuidance(guidance_scale=7.0)}


def magvit() -> dict[str, Any]:
    blocks = ("SpatialDownBlock3D", "SpatialTemporalDownBlock3D")
    config = {
        "down_block_types": blocks, "up_block_types": tuple(name.replace("Down", "Up") for name in blocks),
        "block_out_channels": (8, 8), "latent_channels": 4, "layers_per_block": 1, "norm_num_groups": 2,
        "spatial_group_norm": False, "cache_mag_vae": True,  # the last one is read from the checkpoint
    }  # fmt: skip
    return {"vae": diffusers.AutoencoderKLMagvit.from_config(config), "text_encoder": Words()}


def harmless() -> Processor:
    """A stand-in for the guardrail, which is a package and several models of its own."""
    return Processor(to=lambda device: None, check_text_safety=lambda text: True)


def uncontrolled(**given: Any) -> tuple[None]:
    """A stand-in for Cosmos' control network, which needs torchvision: no blocks are added."""
    return (None,)


def looked_at(pipe: Any, image: Any, device: Any = None, batch_size: int = 1, **more: Any) -> torch.Tensor:
    number = image.shape[0] if isinstance(image, torch.Tensor) else batch_size
    return seeded(pipe, ["a"] * number, 4, 16)


def easy_prompt(pipe: Any, prompt_embeds: torch.Tensor, **given: Any) -> Any:
    masks = given["prompt_attention_mask"], given["negative_prompt_attention_mask"]
    return prompt_embeds, given["negative_prompt_embeds"], *masks


# fmt: off
VIDEOS: dict[str, Case] = {
    "LucyEditPipeline": changed(
        WAN, {"video": VIDEO["video"]}, FRAMES, parts=wan_autoencoder, full=("vae",),
        config=CASES[WAN].config | {"in_channels": 8}),
    "WanAnimatePipeline": Case(
        "WanAnimateTransformer3DModel",
        {k: v for k, v in CASES[WAN].config.items() if k != "in_channels"}
        | {"in_channels": 12, "latent_channels": 4, "image_dim": 16, "motion_encoder_size": 16,
           "motion_encoder_channel_sizes": {"4": 8, "8": 8, "16": 8}, "motion_style_dim": 8, "motion_dim": 4,
           "motion_encoder_dim": 8, "face_encoder_hidden_dim": 16, "face_encoder_num_heads": 2,
           "inject_face_latents_blocks": 1},
        PAIR | {"image": teal, "pose_video": lambda: [teal()] * 5, "face_video": lambda: [teal()] * 5},
        SMALL | {"segment_frame_length": 5}, parts=wan_autoencoder, settings={"encode_image": looked_at}),
    "SkyReelsV2ImageToVideoPipeline": changed(
        "SkyReelsV2Pipeline", FIRST, FRAMES, parts=wan_autoencoder, settings={"encode_image": looked_at},
        config=CASES["SkyReelsV2Pipeline"].config | {"in_channels": 12, "image_dim": 16,
                                                     "added_kv_proj_dim": 24}),
    "HunyuanSkyreelsImageToVideoPipeline": changed(
        HUNYUAN, PICTURE, FRAMES, config=CASES[HUNYUAN].config | {"in_channels": 8, "patch_size": 1},
        parts=hunyuan_autoencoder),
    "HunyuanVideoFramepackPipeline": changed(
        HUNYUAN, PICTURE, FRAMES | {"latent_window_size": 2}, parts=hunyuan_autoencoder,
        model="HunyuanVideoFramepackTransformer3DModel", settings={"encode_image": looked_at},
        config=CASES[HUNYUAN].config | {"has_image_proj": True, "image_proj_dim": 16,
                                        "has_clean_x_embedder": True, "image_condition_type": None}),
    "HunyuanVideo15ImageToVideoPipeline": replace(
        CASES["HunyuanVideo15Pipeline"], inputs=TWO_TEXTS | {"image": teal}, call={"num_frames": 2},
        settings={"encode_image": looked_at},
        config=CASES["HunyuanVideo15Pipeline"].config | {"task_type": "i2v", "image_embed_dim": 16}),
    "HunyuanImageRefinerPipeline": Case(
        "HunyuanImageTransformer2DModel",
        CASES["HunyuanImagePipeline"].config
        | {"in_channels": 8, "text_embed_2_dim": None, "guidance_embeds": True, "patch_size": (1, 1, 1),
           "rope_axes_dim": (2, 2, 4)},
        {k: v for k, v in TWO_TEXTS.items() if not k.endswith("_2")} | {"image": (BATCH, 4, 1, 4, 4)},
        {"height": 64, "width": 64}, scale="", parts=guider, settings={"latent_channels": 4}),
    "MotifVideoPipeline": Case(
        "MotifVideoTransformer3DModel", MOTIF, TEXT, FRAMES, scale="",
        parts=lambda: guider() | wan_autoencoder()),
    "MotifVideoImage2VideoPipeline": Case(
        "MotifVideoTransformer3DModel", MOTIF, one(TEXT) | {"image": teal}, FRAMES | {"prompt": None},
        scale="", parts=lambda: guider() | wan_autoencoder()),
    "Cosmos2_5_PredictBasePipeline": Case(
        "CosmosTransformer3DModel", COSMOS, PAIR, FRAMES, scheduler=CASES["SkyReelsV2Pipeline"].scheduler,
        parts=lambda: wan_autoencoder() | {"safety_checker": harmless()}),
    "Cosmos2_5_TransferPipeline": Case(
        "CosmosTransformer3DModel",
        COSMOS | {"controlnet_block_every_n": 1, "img_context_dim_in": 16, "img_context_num_tokens": 4,
                  "img_context_dim_out": 24},
        PAIR | {"controls": VIDEO["video"]}, SMALL | {"num_frames_per_chunk": 5},
        scheduler=CASES["SkyReelsV2Pipeline"].scheduler,
        parts=lambda: wan_autoencoder() | {"safety_checker": harmless(), "controlnet": uncontrolled}),
    "EasyAnimatePipeline": Case("EasyAnimateTransformer3DModel", EASY, TEXT, FRAMES, parts=magvit, std=0.6),
    "EasyAnimateControlPipeline": Case(
        "EasyAnimateTransformer3DModel", EASY | {"in_channels": 12},
        TEXT | {"control_video": lambda: VIDEO["video"]().transpose(1, 2)}, FRAMES, parts=magvit,
        std=0.6, settings={"encode_prompt": easy_prompt}),
    "EasyAnimateInpaintPipeline": Case(
        "EasyAnimateTransformer3DModel", EASY | {"in_channels": 9},
        TEXT | {"video": lambda: VIDEO["video"]().transpose(1, 2),
                "mask_video": lambda: (VIDEO["video"]().transpose(1, 2)[:, :1] > 0.5).float()},
        FRAMES, parts=magvit, std=0.6),
    "ConsisIDPipeline": Case(
        "ConsisIDTransformer3DModel",
        COGVIDEO | {"in_channels": 8, "attention_head_dim": 16, "sample_width": 2, "sample_height": 2,
                    "use_rotary_positional_embeddings": True,
                    "use_learned_positional_embeddings": True, "cross_attn_interval": 1,
                    "is_train_face": True, "cross_attn_dim_head": 1, "cross_attn_num_heads": 1,
                    "LFE_id_dim": 2, "LFE_vit_dim": 2, "LFE_depth": 5, "LFE_dim_head": 8, "LFE_num_heads": 2,
                    "LFE_num_id_token": 1, "LFE_num_querie": 1, "LFE_output_dim": 21, "LFE_ff_mult": 1,
                    "LFE_num_scale": 1},
        PAIR | PICTURE | {"id_vit_hidden": [(1, 2, 2)], "id_cond": (1, 2)},
        FRAMES | {"max_sequence_length": 5}, parts=cog_autoencoder, needs="cv2",
        scheduler=lambda: diffusers.CogVideoXDDIMScheduler(prediction_type="v_prediction")),
}
# fmt: on
