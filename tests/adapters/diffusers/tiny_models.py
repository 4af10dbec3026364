"""Every supported pipeline with random weights, small enough for one core.

Text encoders and decoders are left out: prompts come as random embeddings, results as latents. Weights are
drawn anew, because several models start with zeros where the condition enters and would make no gap at all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import diffusers
import torch

BATCH, STEPS = 2, 3


@dataclass(frozen=True)
class Case:
    """A model, the random inputs of one call by shape (a list: one tensor per sample),
    and its other arguments."""

    model: str
    config: dict[str, Any]
    inputs: dict[str, Any]
    call: dict[str, Any] = field(default_factory=dict)
    scale: str = "guidance_scale"
    parts: Callable[[], dict[str, Any]] = dict  # further components
    scheduler: Callable[[], Any] = lambda: diffusers.FlowMatchEulerDiscreteScheduler(shift=3.0)
    std: float = 0.2
    settings: dict[str, Any] = field(default_factory=dict)  # attributes of the pipeline that keep it small
    full: tuple[str, ...] = ()  # components that stay in float32, as their checkpoint says
    needs: str = ""  # a package without which diffusers does not export the pipeline


def mask(*shape: int) -> Callable[[], torch.Tensor]:
    return lambda: torch.ones(shape, dtype=torch.long)


def truth(*shape: int) -> Callable[[], torch.Tensor]:
    return lambda: torch.ones(shape, dtype=torch.bool)


# One model to a few lines: exploded, the table would be ten screens of numbers.
# fmt: off
IMAGE = {"height": 64, "width": 64}
PAIR = {"prompt_embeds": (BATCH, 5, 16), "negative_prompt_embeds": (BATCH, 5, 16)}
TEXT = PAIR | {"prompt_attention_mask": mask(BATCH, 5), "negative_prompt_attention_mask": mask(BATCH, 5)}
TWO_TEXTS = {f"{sign}prompt_{kind}{which}": shape
             for sign in ("", "negative_") for which in ("", "_2")
             for kind, shape in (("embeds", (BATCH, 5, 16)), ("embeds_mask", mask(BATCH, 5)))}
UNET = {"sample_size": 8, "block_out_channels": (4, 8), "layers_per_block": 1, "norm_num_groups": 2,
        "cross_attention_dim": 16, "attention_head_dim": 2,
        "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"),
        "up_block_types": ("CrossAttnUpBlock2D", "UpBlock2D")}
PIXART = {"num_attention_heads": 2, "attention_head_dim": 8, "in_channels": 4, "out_channels": 8,
          "num_layers": 1, "cross_attention_dim": 16, "sample_size": 8, "caption_channels": 16}


def autoencoder(**more: Any) -> diffusers.AutoencoderKL:
    return diffusers.AutoencoderKL(block_out_channels=(4,), norm_num_groups=1, **more)



CASES: dict[str, Case] = {
    "StableDiffusion3Pipeline": Case(
        "SD3Transformer2DModel",
        {"sample_size": 16, "patch_size": 2, "in_channels": 4, "num_layers": 1, "attention_head_dim": 8,
         "num_attention_heads": 2, "joint_attention_dim": 16, "caption_projection_dim": 16,
         "pooled_projection_dim": 16, "out_channels": 4, "pos_embed_max_size": 16},
        PAIR | {"pooled_prompt_embeds": (BATCH, 16), "negative_pooled_prompt_embeds": (BATCH, 16)},
        IMAGE,
    ),
    "AuraFlowPipeline": Case(
        "AuraFlowTransformer2DModel",
        {"sample_size": 16, "patch_size": 2, "in_channels": 4, "num_mmdit_layers": 1,
         "num_single_dit_layers": 1,
         "attention_head_dim": 8, "num_attention_heads": 2, "joint_attention_dim": 16,
         "caption_projection_dim": 16, "out_channels": 4, "pos_embed_max_size": 64},
        TEXT,
        IMAGE,
    ),
    "LTXPipeline": Case(
        "LTXVideoTransformer3DModel",
        {"in_channels": 8, "out_channels": 8, "num_attention_heads": 2, "attention_head_dim": 8,
         "cross_attention_dim": 16, "num_layers": 1, "caption_channels": 16},
        TEXT,
        IMAGE | {"num_frames": 9},
    ),
    "SanaPipeline": Case(
        "SanaTransformer2DModel",
        {"patch_size": 1, "in_channels": 4, "out_channels": 4, "num_layers": 1, "num_attention_heads": 2,
         "attention_head_dim": 4, "num_cross_attention_heads": 2, "cross_attention_head_dim": 4,
         "cross_attention_dim": 8, "caption_channels": 16, "sample_size": 8},
        TEXT,
        {"height": 256, "width": 256, "use_resolution_binning": False, "negative_prompt": None},
    ),
    "SanaVideoPipeline": Case(
        "SanaVideoTransformer3DModel",
        {"in_channels": 4, "out_channels": 4, "num_attention_heads": 2, "attention_head_dim": 12,
         "num_layers": 1,
         "num_cross_attention_heads": 2, "cross_attention_head_dim": 12, "cross_attention_dim": 24,
         "caption_channels": 16, "sample_size": 8, "rope_max_seq_len": 32},
        TEXT,
        IMAGE | {"frames": 5, "use_resolution_binning": False, "negative_prompt": None},
    ),
    "PRXPipeline": Case(
        "PRXTransformer2DModel",
        {"in_channels": 4, "patch_size": 1, "context_in_dim": 16, "hidden_size": 8, "mlp_ratio": 2.0,
         "num_heads": 2, "depth": 1, "axes_dim": [2, 2]},
        # The pipeline itself repeats the time twice whatever the batch, so it runs with one sample only.
        {"prompt_embeds": (1, 5, 16), "negative_prompt_embeds": (1, 5, 16),
         "prompt_attention_mask": truth(1, 5), "negative_prompt_attention_mask": truth(1, 5)},
        IMAGE | {"use_resolution_binning": False},
        std=0.3,
    ),
    "BriaPipeline": Case(
        "BriaTransformer2DModel",
        {"patch_size": 1, "in_channels": 16, "num_layers": 1, "num_single_layers": 1, "attention_head_dim": 8,
         "num_attention_heads": 2, "joint_attention_dim": 16, "axes_dims_rope": [0, 4, 4]},
        PAIR,
        {"height": 16, "width": 16},
        parts=lambda: {"vae": autoencoder(shift_factor=0.0)},
    ),
    "MochiPipeline": Case(
        "MochiTransformer3DModel",
        {"patch_size": 2, "num_attention_heads": 2, "attention_head_dim": 8, "num_layers": 2,
         "pooled_projection_dim": 16, "in_channels": 12, "text_embed_dim": 16, "time_embed_dim": 4,
         "max_sequence_length": 16},
        PAIR | {"prompt_attention_mask": truth(BATCH, 5), "negative_prompt_attention_mask": truth(BATCH, 5)},
        IMAGE | {"num_frames": 7},
        scheduler=lambda: diffusers.FlowMatchEulerDiscreteScheduler(invert_sigmas=True),
    ),
    "HiDreamImagePipeline": Case(
        "HiDreamImageTransformer2DModel",
        {"patch_size": 2, "in_channels": 4, "out_channels": 4, "num_layers": 1, "num_single_layers": 1,
         "attention_head_dim": 8, "num_attention_heads": 4, "caption_channels": [16, 16], "text_emb_dim": 32,
         "num_routed_experts": 2, "num_activated_experts": 1, "axes_dims_rope": (4, 2, 2),
         "max_resolution": (32, 32), "llama_layers": (0, 1)},
        {"prompt_embeds_t5": (BATCH, 5, 16), "negative_prompt_embeds_t5": (BATCH, 5, 16),
         "prompt_embeds_llama3": (2, BATCH, 5, 16), "negative_prompt_embeds_llama3": (2, BATCH, 5, 16),
         "pooled_prompt_embeds": (BATCH, 32), "negative_pooled_prompt_embeds": (BATCH, 32)},
        IMAGE,
        settings={"default_sample_size": 8},
    ),
    "ZImagePipeline": Case(
        "ZImageTransformer2DModel",
        {"in_channels": 4, "dim": 32, "n_layers": 1, "n_refiner_layers": 1, "n_heads": 2, "n_kv_heads": 2,
         "cap_feat_dim": 16, "axes_dims": [8, 4, 4], "axes_lens": [256, 32, 32]},
        {"prompt_embeds": [(5, 16)] * BATCH, "negative_prompt_embeds": [(5, 16)] * BATCH},
        IMAGE,
    ),
    "FluxPipeline": Case(
        "FluxTransformer2DModel",
        {"patch_size": 1, "in_channels": 16, "num_layers": 1, "num_single_layers": 1,
         "attention_head_dim": 16,
         "num_attention_heads": 2, "joint_attention_dim": 16, "pooled_projection_dim": 16,
         "axes_dims_rope": [4, 4, 8]},
        PAIR | {"pooled_prompt_embeds": (BATCH, 16), "negative_pooled_prompt_embeds": (BATCH, 16)},
        IMAGE,
        scale="true_cfg_scale",
    ),
    "ChromaPipeline": Case(
        "ChromaTransformer2DModel",
        {"patch_size": 1, "in_channels": 16, "num_layers": 1, "num_single_layers": 1,
         "attention_head_dim": 16,
         "num_attention_heads": 2, "joint_attention_dim": 16, "axes_dims_rope": [4, 4, 8],
         "approximator_hidden_dim": 32, "approximator_layers": 1, "approximator_num_channels": 16},
        PAIR | {"prompt_attention_mask": truth(BATCH, 5), "negative_prompt_attention_mask": truth(BATCH, 5)},
        IMAGE,
    ),
    "QwenImagePipeline": Case(
        "QwenImageTransformer2DModel",
        {"patch_size": 2, "in_channels": 16, "out_channels": 4, "num_layers": 1, "attention_head_dim": 16,
         "num_attention_heads": 2, "joint_attention_dim": 16, "axes_dims_rope": (8, 4, 4)},
        PAIR | {"prompt_embeds_mask": mask(BATCH, 5), "negative_prompt_embeds_mask": mask(BATCH, 5)},
        IMAGE,
        scale="true_cfg_scale",
    ),
    "CogView4Pipeline": Case(
        "CogView4Transformer2DModel",
        {"patch_size": 2, "in_channels": 4, "num_layers": 1, "attention_head_dim": 4,
         "num_attention_heads": 4,
         "out_channels": 4, "text_embed_dim": 16, "time_embed_dim": 8, "condition_dim": 4,
         "pos_embed_max_size": 16, "sample_size": 16, "rope_axes_dim": (16, 16)},
        PAIR,
        IMAGE,
        std=0.4,
    ),
    "WanPipeline": Case(
        "WanTransformer3DModel",
        {"num_attention_heads": 2, "attention_head_dim": 12, "in_channels": 4, "out_channels": 4,
         "text_dim": 16,
         "freq_dim": 16, "ffn_dim": 32, "num_layers": 1, "rope_max_seq_len": 32},
        PAIR,
        IMAGE | {"num_frames": 5},
    ),
    "SkyReelsV2Pipeline": Case(
        "SkyReelsV2Transformer3DModel",
        {"num_attention_heads": 2, "attention_head_dim": 12, "in_channels": 4, "out_channels": 4,
         "text_dim": 16,
         "freq_dim": 16, "ffn_dim": 32, "num_layers": 1, "rope_max_seq_len": 32},
        PAIR,
        IMAGE | {"num_frames": 5},
        scheduler=lambda: diffusers.UniPCMultistepScheduler(
            prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=8.0
        ),
    ),
    "HunyuanVideoPipeline": Case(
        "HunyuanVideoTransformer3DModel",
        {"in_channels": 4, "out_channels": 4, "num_attention_heads": 2, "attention_head_dim": 10,
         "num_layers": 1,
         "num_single_layers": 1, "num_refiner_layers": 1, "text_embed_dim": 16, "pooled_projection_dim": 16,
         "rope_axes_dim": (2, 4, 4)},
        PAIR | {"pooled_prompt_embeds": (BATCH, 16), "negative_pooled_prompt_embeds": (BATCH, 16),
                "prompt_attention_mask": mask(BATCH, 5), "negative_prompt_attention_mask": mask(BATCH, 5)},
        IMAGE | {"num_frames": 5},
        scale="true_cfg_scale",
    ),
    "Flux2KleinPipeline": Case(
        "Flux2Transformer2DModel",
        {"patch_size": 1, "in_channels": 16, "num_layers": 1, "num_single_layers": 1,
         "attention_head_dim": 16,
         "num_attention_heads": 2, "joint_attention_dim": 16, "axes_dims_rope": (4, 4, 4, 4),
         "guidance_embeds": False},
        PAIR,
        {"height": 16, "width": 16},
        parts=lambda: {"vae": diffusers.AutoencoderKLFlux2(
            down_block_types=("DownEncoderBlock2D",), up_block_types=("UpDecoderBlock2D",),
            block_out_channels=(4,), layers_per_block=1, latent_channels=4, norm_num_groups=1)},
    ),
    "Lumina2Pipeline": Case(
        "Lumina2Transformer2DModel",
        {"sample_size": 8, "patch_size": 2, "in_channels": 4, "hidden_size": 8, "num_layers": 1,
         "num_refiner_layers": 1, "num_attention_heads": 1, "num_kv_heads": 1, "multiple_of": 16,
         "axes_dim_rope": (4, 2, 2), "cap_feat_dim": 16},
        TEXT,
        IMAGE,
        std=0.3,
    ),
    "OvisImagePipeline": Case(
        "OvisImageTransformer2DModel",
        {"patch_size": 1, "in_channels": 16, "out_channels": 16, "num_layers": 1, "num_single_layers": 1,
         "attention_head_dim": 16, "num_attention_heads": 2, "joint_attention_dim": 16,
         "axes_dims_rope": (4, 4, 8)},
        PAIR,
        IMAGE | {"negative_prompt": None},
    ),
    "Krea2Pipeline": Case(
        "Krea2Transformer2DModel",
        {"in_channels": 16, "num_layers": 1, "attention_head_dim": 8, "num_attention_heads": 2,
         "num_key_value_heads": 1, "intermediate_size": 32, "timestep_embed_dim": 8, "text_hidden_dim": 16,
         "num_text_layers": 3, "text_num_attention_heads": 2, "text_num_key_value_heads": 1,
         "text_intermediate_size": 16, "num_layerwise_text_blocks": 1, "num_refiner_text_blocks": 1,
         "axes_dims_rope": (4, 2, 2)},
        {"prompt_embeds": (BATCH, 5, 3, 16), "negative_prompt_embeds": (BATCH, 5, 3, 16),
         "prompt_embeds_mask": truth(BATCH, 5), "negative_prompt_embeds_mask": truth(BATCH, 5)},
        IMAGE,
        std=0.3,
    ),
    "HunyuanImagePipeline": Case(
        "HunyuanImageTransformer2DModel",
        {"in_channels": 4, "out_channels": 4, "num_attention_heads": 2, "attention_head_dim": 8,
         "num_layers": 1,
         "num_single_layers": 1, "num_refiner_layers": 1, "text_embed_dim": 16, "text_embed_2_dim": 16,
         "rope_axes_dim": (4, 4)},
        TWO_TEXTS,
        {"height": 256, "width": 256},
        scale="",
        parts=lambda: {"guider": diffusers.ClassifierFreeGuidance(guidance_scale=7.0)},
    ),
    "HunyuanVideo15Pipeline": Case(
        "HunyuanVideo15Transformer3DModel",
        {"in_channels": 9, "out_channels": 4, "num_attention_heads": 2, "attention_head_dim": 8,
         "num_layers": 1,
         "num_refiner_layers": 1, "text_embed_dim": 16, "text_embed_2_dim": 16, "image_embed_dim": 12,
         "rope_axes_dim": (2, 2, 4), "target_size": 16, "task_type": "t2v"},
        TWO_TEXTS,
        {"height": 16, "width": 16, "num_frames": 2},
        scale="",
        parts=lambda: {
            "guider": diffusers.ClassifierFreeGuidance(guidance_scale=7.0),
            "vae": diffusers.AutoencoderKLHunyuanVideo15(
                latent_channels=4, block_out_channels=(8, 8), layers_per_block=1,
                spatial_compression_ratio=2, temporal_compression_ratio=1)},
        settings={"vision_num_semantic_tokens": 4},
        std=0.6,
    ),
    "StableDiffusionPipeline": Case(
        "UNet2DConditionModel", UNET, PAIR, IMAGE, scheduler=diffusers.DDIMScheduler,
        parts=lambda: {"requires_safety_checker": False},
        std=0.4,
    ),
    "StableDiffusionXLPipeline": Case(
        "UNet2DConditionModel",
        UNET | {"addition_embed_type": "text_time", "addition_time_embed_dim": 4,
                "projection_class_embeddings_input_dim": 16 + 6 * 4},
        PAIR | {"pooled_prompt_embeds": (BATCH, 16), "negative_pooled_prompt_embeds": (BATCH, 16)},
        IMAGE,
        scheduler=diffusers.EulerDiscreteScheduler,
        std=0.4,
    ),
    "PixArtAlphaPipeline": Case(
        "PixArtTransformer2DModel", PIXART, TEXT, IMAGE | {"negative_prompt": None,
        "use_resolution_binning": False},
        scheduler=diffusers.DPMSolverMultistepScheduler,
    ),
    "PixArtSigmaPipeline": Case(
        "PixArtTransformer2DModel", PIXART, TEXT, IMAGE | {"negative_prompt": None,
        "use_resolution_binning": False},
        scheduler=diffusers.DPMSolverMultistepScheduler,
    ),
}
# fmt: on
