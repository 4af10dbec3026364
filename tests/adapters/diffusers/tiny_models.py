"""A tiny pipeline for each denoiser of the table, with random weights, and what all tiny pipelines share.

Text encoders and decoders are left out: prompts come as random embeddings, results as latents. Weights are
drawn anew, because several models start with zeros where the condition enters and would make no gap at all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import FunctionType, SimpleNamespace
from typing import Any

import diffusers
import torch
from diffusers.pipelines.ltx2 import LTX2TextConnectors
from diffusers.pipelines.stable_audio_3 import StableAudio3DurationEmbedder
from PIL import Image

BATCH, STEPS = 2, 3


@dataclass(frozen=True)
class Case:
    """A model, the random inputs of one call by shape (a list: one tensor per sample), its other arguments.

    A pipeline gets those of the inputs, arguments and parts that it takes.
    """

    model: str
    config: dict[str, Any]
    inputs: dict[str, Any]
    call: dict[str, Any] = field(default_factory=dict)
    scale: str = "guidance_scale"
    parts: dict[str, Any] = field(default_factory=dict)  # further components, see `components`
    scheduler: Callable[[], Any] = lambda: diffusers.FlowMatchEulerDiscreteScheduler(shift=3.0)
    std: float = 0.2
    settings: dict[str, Any] = field(default_factory=dict)  # attributes of the pipeline that keep it small
    full: tuple[str, ...] = ()  # components that stay in float32, as their checkpoint says
    needs: str = ""  # a package without which diffusers does not export the pipeline


def component(kind, config, seed=1):
    """A module with random weights; keys of the config that its class does not know are ignored."""
    torch.manual_seed(seed)
    cls = getattr(diffusers, kind) if isinstance(kind, str) else kind
    return cls.from_config(config).eval().requires_grad_(False)


def components(parts):
    """Parts are pairs of a class and its config, functions and classes to be called, or the thing itself."""
    return {
        name: component(*part) if isinstance(part, tuple)
        else part() if isinstance(part, (FunctionType, type)) else part
        for name, part in parts.items()
    }  # fmt: skip


def drawn(*shape):
    return lambda: torch.rand(*shape, generator=torch.Generator().manual_seed(5))


def teal():
    return Image.new("RGB", (16, 16), "teal")


def mask(dtype=torch.long, batch=BATCH):
    return lambda: torch.ones(batch, 5, dtype=dtype)


def both(**inputs):
    """The same inputs for the prompt and for the negative prompt."""
    return {f"{sign}{name}": what for name, what in inputs.items() for sign in ("", "negative_")}


def one(inputs):
    """The same inputs for a pipeline that takes one sample at a time."""
    return {k: (1, *v[1:]) if isinstance(v, tuple) else lambda v=v: v()[:1] for k, v in inputs.items()}


PAIR = both(prompt_embeds=(BATCH, 5, 16))
TEXT = PAIR | both(prompt_attention_mask=mask())
POOLED = PAIR | both(pooled_prompt_embeds=(BATCH, 16))
PICTURE = {"image": drawn(BATCH, 3, 16, 16)}
FIRST = {"image": lambda: PICTURE["image"]()[:1]}
HOLE = PICTURE | {"mask_image": lambda: (torch.arange(16.0) > 7).expand(BATCH, 1, 16, 16).float()}
VIDEO = {"video": drawn(BATCH, 5, 3, 16, 16)}
CONTROL = {"control_image": PICTURE["image"]}
IMAGE, SMALL = {"height": 64, "width": 64}, {"height": 16, "width": 16}
STRENGTH = {"strength": 0.7, "num_inference_steps": 4}
SAFE = {"requires_safety_checker": False}
GUIDER = {"guider": lambda: diffusers.ClassifierFreeGuidance(guidance_scale=7.0)}


def deep(count, down="DownEncoderBlock2D", up="UpDecoderBlock2D"):
    return {"down_block_types": [down] * count, "up_block_types": [up] * count}


def kl(**more):
    return "AutoencoderKL", {"block_out_channels": (4,), "norm_num_groups": 1, **more}


FOUR = {"block_out_channels": (4, 4, 4, 4), "latent_channels": 4, "layers_per_block": 1, "norm_num_groups": 2}
NORMAL = {"latents_mean": [0.0] * 4, "latents_std": [1.0] * 4}
WAN = {"base_dim": 4, "z_dim": 4, "dim_mult": [1] * 4, "num_res_blocks": 1,
       "temperal_downsample": [False, True, True]} | NORMAL  # fmt: skip
# One for each latent space; a pipeline without one takes its latents to be an eighth of the picture.
VAE = {"vae": kl(latent_channels=4, shift_factor=0.0)}
WAN_VAE = {"vae": ("AutoencoderKLWan", WAN)}
QWEN = WAN | {"base_dim": 8, "dim_mult": [1, 1], "temperal_downsample": [False]}
QWEN_VAE = {"vae": ("AutoencoderKLQwenImage", QWEN)}
HUNYUAN_BLOCKS = deep(4, "HunyuanVideoDownBlock3D", "HunyuanVideoUpBlock3D")
HUNYUAN = FOUR | HUNYUAN_BLOCKS | {"mid_block_add_attention": False}
HUNYUAN_VAE = {"vae": ("AutoencoderKLHunyuanVideo", HUNYUAN)}
COG_VAE = {"vae": ("AutoencoderKLCogVideoX", FOUR | deep(4, "CogVideoXDownBlock3D", "CogVideoXUpBlock3D"))}
SANA = {"block_types": "ResBlock", "block_out_channels": (4, 4), "layers_per_block": (1, 1)}
SANA |= {"qkv_multiscales": ((), ())}
SANA_VAE = {"vae": ("AutoencoderDC", {"in_channels": 3, "latent_channels": 4} | {
    f"{side}_{k}": v for side in ("encoder", "decoder") for k, v in SANA.items()})}  # fmt: skip
MAGVIT = FOUR | {
    "block_out_channels": (8, 8), "spatial_group_norm": False,
    "cache_mag_vae": True,  # read from the checkpoint
    **{f"{side.lower()}_block_types": (f"Spatial{side}Block3D", f"SpatialTemporal{side}Block3D")
       for side in ("Down", "Up")},
}  # fmt: skip


class Processor(SimpleNamespace):
    """A stand-in of which a pipeline asks only what it is given."""


class Words(torch.nn.Module):
    """A text encoder of one table."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.table = torch.nn.Embedding(64, 16)
        self.config = Processor(model_type="words")

    dtype = property(lambda self: self.table.weight.dtype)
    device = property(lambda self: self.table.weight.device)

    def forward(self, ids):
        return (self.table(ids),)


def words(texts, **more):
    return Processor(input_ids=torch.tensor([[sum(map(ord, text)) % 64] * 5 for text in texts]))


def seeded(pipe, texts, *shape):
    """An embedding for each text, the same whenever it is asked for."""
    made = [torch.randn(shape, generator=torch.Generator().manual_seed(sum(map(ord, t)))) for t in texts]
    denoiser = getattr(pipe, "unet", None) or pipe.transformer
    return torch.stack(made).to(denoiser.dtype)


def looked_at(pipe, image, device=None, batch_size=1, **more):
    number = image.shape[0] if isinstance(image, torch.Tensor) else batch_size
    return seeded(pipe, ["a"] * number, 4, 16)


FRAMES = SMALL | {"num_frames": 5}
CLIP = IMAGE | {"num_frames": 5}
TRUE = TEXT | both(prompt_attention_mask=mask(torch.bool))
MASKED = PAIR | both(prompt_embeds_mask=mask())
TWO_TEXTS = {f"{sign}prompt_{kind}{which}": what
             for sign in ("", "negative_") for which in ("", "_2")
             for kind, what in (("embeds", (BATCH, 5, 16)), ("embeds_mask", mask()))}  # fmt: skip
# What is small in every model; each takes those of them that it knows.
HEADS = {"num_attention_heads": 2, "attention_head_dim": 8, "num_layers": 1, "in_channels": 4,
         "sample_size": 8, "cross_attention_dim": 16, "text_embed_dim": 16, "num_single_layers": 1,
         "joint_attention_dim": 16, "caption_channels": 16, "num_refiner_layers": 1, "rope_max_seq_len": 32,
         "pooled_projection_dim": 16, "text_embed_2_dim": 16, "pos_embed_max_size": 16, "sample_width": 8,
         "sample_height": 8, "num_cross_attention_heads": 2, "caption_projection_dim": 16}  # fmt: skip
TINY = HEADS | {"out_channels": 4}
SINGLE = HEADS | {"in_channels": 16, "patch_size": 1}
UNET = {"sample_size": 8, "block_out_channels": (4, 8), "layers_per_block": 1, "norm_num_groups": 2,
        "cross_attention_dim": 16, "attention_head_dim": 2,
        "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"),
        "up_block_types": ("CrossAttnUpBlock2D", "UpBlock2D")}  # fmt: skip
TIMED = {"addition_embed_type": "text_time", "addition_time_embed_dim": 4,
         "projection_class_embeddings_input_dim": 16 + 6 * 4}  # fmt: skip
PIXART = TINY | {"out_channels": 8}
COGVIDEO = TINY | {"time_embed_dim": 4, "sample_frames": 9, "max_text_seq_length": 5}
WAN_MODEL = TINY | {"attention_head_dim": 12, "text_dim": 16, "freq_dim": 16, "ffn_dim": 32}
KANDINSKY = {"in_visual_dim": 4, "out_visual_dim": 4, "in_text_dim": 16, "in_text_dim2": 16, "time_dim": 16,
             "model_dim": 16, "ff_dim": 16, "num_text_blocks": 1, "num_visual_blocks": 1,
             "axes_dims": (2, 2, 4)}  # fmt: skip
LTX2_AUTOENCODER = {
    "latent_channels": 4, "block_out_channels": (8,), "decoder_block_out_channels": (8,),
    "layers_per_block": (1,), "decoder_layers_per_block": (1, 1), "spatio_temporal_scaling": (True,),
    "decoder_spatio_temporal_scaling": (True,), "decoder_inject_noise": (False, False),
    "downsample_type": ("spatial",), "upsample_residual": (False,), "upsample_factor": (1,),
    "timestep_conditioning": False, "patch_size": 1, "patch_size_t": 1,
}  # fmt: skip
LTX2_CONNECTORS = {
    "caption_channels": 16, "text_proj_in_factor": 3, "connector_rope_base_seq_len": 32,
    "rope_double_precision": False, "causal_temporal_positioning": False, "rope_type": "split",
    **{f"{side}_connector_{k}": v for side in ("video", "audio") for k, v in (
        HEADS | {"num_learnable_registers": None}).items()},
}  # fmt: skip
LTX2_AUDIO = {
    "base_channels": 4, "ch_mult": (1,), "num_res_blocks": 1, "attn_resolutions": None, "resolution": 32,
    "latent_channels": 2, "norm_type": "pixel", "causality_axis": "height", "mid_block_add_attention": False,
    "mel_bins": 8,
}  # fmt: skip
COSMOS = TINY | {"in_channels": 5, "attention_head_dim": 12, "mlp_ratio": 2, "adaln_lora_dim": 4,
                 "max_size": (8, 8, 8), "patch_size": (1, 2, 2), "rope_scale": (1.0, 1.0, 1.0),
                 "concat_padding_mask": False, "extra_pos_embed_type": "learnable"}  # fmt: skip
EASY = TINY | {"attention_head_dim": 16, "time_embed_dim": 2, "patch_size": 2}
EASY_PARTS = {"vae": ("AutoencoderKLMagvit", MAGVIT), "text_encoder": Words}


def rounded():
    return diffusers.UniPCMultistepScheduler(
        prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=8.0
    )


def cog_scheduler():
    return diffusers.CogVideoXDDIMScheduler(prediction_type="v_prediction")


def fibo_prompt(pipe, prompt, **more):
    found = seeded(pipe, prompt, 5, 32)
    return found, [found[..., :16]] * 2, torch.ones(found.shape[:2], dtype=found.dtype)


def audio_prompt(pipe, prompt, device):
    return seeded(pipe, prompt, 5, 16), torch.full((len(prompt),), 5)


def dream_prompt(pipe, prompts, **more):
    return seeded(pipe, prompts, 5, 16), torch.ones(len(prompts), 5, dtype=torch.long)


def uncontrolled(**given):
    """A stand-in for Cosmos' control network, which needs torchvision: no blocks are added."""
    return (None,)


# The guardrail is a package and several models of its own.
HARMLESS = {"safety_checker": Processor(to=lambda device: None, check_text_safety=lambda text: True)}
UNBINNED = {"use_resolution_binning": False, "negative_prompt": None}

# One model to a few lines: exploded, the table would be ten screens of numbers.
# fmt: off
CASES = {
    "StableDiffusion3Pipeline": Case(
        "SD3Transformer2DModel", TINY | {"sample_size": 16, "patch_size": 2}, POOLED, IMAGE),
    "AuraFlowPipeline": Case(
        "AuraFlowTransformer2DModel",
        TINY | {"sample_size": 16, "patch_size": 2, "num_mmdit_layers": 1, "num_single_dit_layers": 1,
                "pos_embed_max_size": 64},
        TEXT, IMAGE),
    "LTXPipeline": Case(
        "LTXVideoTransformer3DModel", TINY | {"in_channels": 8, "out_channels": 8},
        TEXT, IMAGE | {"num_frames": 9}),
    "SanaPipeline": Case(
        "SanaTransformer2DModel",
        TINY | {"patch_size": 1, "attention_head_dim": 4, "cross_attention_head_dim": 4,
                "cross_attention_dim": 8},
        TEXT, UNBINNED | {"height": 256, "width": 256}),
    "SanaVideoPipeline": Case(
        "SanaVideoTransformer3DModel",
        TINY | {"attention_head_dim": 12, "cross_attention_head_dim": 12, "cross_attention_dim": 24},
        TEXT, IMAGE | UNBINNED | {"frames": 5}),
    "PRXPipeline": Case(
        "PRXTransformer2DModel",
        {"in_channels": 4, "patch_size": 1, "context_in_dim": 16, "hidden_size": 8, "mlp_ratio": 2.0,
         "num_heads": 2, "depth": 1, "axes_dim": [2, 2]},
        # The pipeline itself repeats the time twice whatever the batch, so it runs with one sample only.
        one(TRUE), IMAGE | {"use_resolution_binning": False}, std=0.3),
    "BriaPipeline": Case(
        "BriaTransformer2DModel", SINGLE | {"axes_dims_rope": [0, 4, 4], "pooled_projection_dim": None},
        PAIR, SMALL,
        parts={"vae": kl(shift_factor=0.0)}),
    "MochiPipeline": Case(
        "MochiTransformer3DModel",
        HEADS | {"patch_size": 2, "num_layers": 2, "in_channels": 12, "time_embed_dim": 4,
                 "max_sequence_length": 16},
        TRUE, IMAGE | {"num_frames": 7},
        scheduler=lambda: diffusers.FlowMatchEulerDiscreteScheduler(invert_sigmas=True)),
    "HiDreamImagePipeline": Case(
        "HiDreamImageTransformer2DModel",
        TINY | {"patch_size": 2, "num_attention_heads": 4, "caption_channels": [16, 16], "text_emb_dim": 32,
                "num_routed_experts": 2, "num_activated_experts": 1, "axes_dims_rope": (4, 2, 2),
                "max_resolution": (32, 32), "llama_layers": (0, 1)},
        both(prompt_embeds_t5=(BATCH, 5, 16), prompt_embeds_llama3=(2, BATCH, 5, 16),
             pooled_prompt_embeds=(BATCH, 32)),
        IMAGE, settings={"default_sample_size": 8}),
    "ZImagePipeline": Case(
        "ZImageTransformer2DModel",
        {"in_channels": 4, "dim": 32, "n_layers": 1, "n_refiner_layers": 1, "n_heads": 2, "n_kv_heads": 2,
         "cap_feat_dim": 16, "axes_dims": [8, 4, 4], "axes_lens": [256, 32, 32]},
        both(prompt_embeds=[(5, 16)] * BATCH), IMAGE),
    "FluxPipeline": Case(
        "FluxTransformer2DModel", SINGLE | {"attention_head_dim": 16, "axes_dims_rope": [4, 4, 8]},
        POOLED, IMAGE, scale="true_cfg_scale"),
    "ChromaPipeline": Case(
        "ChromaTransformer2DModel",
        SINGLE | {"attention_head_dim": 16, "axes_dims_rope": [4, 4, 8], "approximator_hidden_dim": 32,
                  "approximator_layers": 1, "approximator_num_channels": 16},
        TRUE, IMAGE),
    "QwenImagePipeline": Case(
        "QwenImageTransformer2DModel",
        TINY | {"patch_size": 2, "in_channels": 16, "attention_head_dim": 16, "axes_dims_rope": (8, 4, 4)},
        MASKED, IMAGE, scale="true_cfg_scale"),
    "CogView4Pipeline": Case(
        "CogView4Transformer2DModel",
        TINY | {"patch_size": 2, "attention_head_dim": 4, "num_attention_heads": 4, "time_embed_dim": 8,
                "condition_dim": 4, "sample_size": 16, "rope_axes_dim": (16, 16)},
        PAIR, IMAGE, std=0.4),
    "WanPipeline": Case("WanTransformer3DModel", WAN_MODEL, PAIR, CLIP),
    "SkyReelsV2Pipeline": Case("SkyReelsV2Transformer3DModel", WAN_MODEL, PAIR, CLIP, scheduler=rounded),
    "HunyuanVideoPipeline": Case(
        "HunyuanVideoTransformer3DModel", TINY | {"attention_head_dim": 10, "rope_axes_dim": (2, 4, 4)},
        POOLED | TEXT, CLIP, scale="true_cfg_scale"),
    "Flux2KleinPipeline": Case(
        "Flux2Transformer2DModel",
        SINGLE | {"attention_head_dim": 16, "axes_dims_rope": (4, 4, 4, 4), "guidance_embeds": False},
        PAIR, SMALL,
        parts={"vae": ("AutoencoderKLFlux2", deep(1) | kl(layers_per_block=1, latent_channels=4)[1])}),
    "Lumina2Pipeline": Case(
        "Lumina2Transformer2DModel",
        {"sample_size": 8, "patch_size": 2, "in_channels": 4, "hidden_size": 8, "num_layers": 1,
         "num_refiner_layers": 1, "num_attention_heads": 1, "num_kv_heads": 1, "multiple_of": 16,
         "axes_dim_rope": (4, 2, 2), "cap_feat_dim": 16},
        TEXT, IMAGE, std=0.3),
    "OvisImagePipeline": Case(
        "OvisImageTransformer2DModel",
        SINGLE | {"out_channels": 16, "attention_head_dim": 16, "axes_dims_rope": (4, 4, 8)},
        PAIR, IMAGE | {"negative_prompt": None}),
    "Krea2Pipeline": Case(
        "Krea2Transformer2DModel",
        HEADS | {"in_channels": 16, "num_key_value_heads": 1, "intermediate_size": 32,
                 "timestep_embed_dim": 8, "text_hidden_dim": 16, "num_text_layers": 3,
                 "text_num_attention_heads": 2, "text_num_key_value_heads": 1, "text_intermediate_size": 16,
                 "num_layerwise_text_blocks": 1, "num_refiner_text_blocks": 1, "axes_dims_rope": (4, 2, 2)},
        both(prompt_embeds=(BATCH, 5, 3, 16), prompt_embeds_mask=mask(torch.bool)), IMAGE, std=0.3),
    "HunyuanImagePipeline": Case(
        "HunyuanImageTransformer2DModel", TINY | {"rope_axes_dim": (4, 4)},
        TWO_TEXTS, {"height": 256, "width": 256}, scale="", parts=GUIDER),
    "HunyuanImageRefinerPipeline": Case(
        "HunyuanImageTransformer2DModel",
        TINY | {"in_channels": 8, "text_embed_2_dim": None, "guidance_embeds": True, "patch_size": (1, 1, 1),
                "rope_axes_dim": (2, 2, 4)},
        MASKED | {"image": (BATCH, 4, 1, 4, 4)}, IMAGE, scale="", parts=GUIDER,
        settings={"latent_channels": 4}),
    "HunyuanVideo15Pipeline": Case(
        "HunyuanVideo15Transformer3DModel",
        TINY | {"in_channels": 9, "image_embed_dim": 12, "rope_axes_dim": (2, 2, 4), "target_size": 16,
                "task_type": "t2v"},
        TWO_TEXTS, SMALL | {"num_frames": 2}, scale="", std=0.6,
        settings={"vision_num_semantic_tokens": 4},
        parts=GUIDER | {"vae": ("AutoencoderKLHunyuanVideo15", {
            "latent_channels": 4, "block_out_channels": (8, 8), "layers_per_block": 1,
            "spatial_compression_ratio": 2, "temporal_compression_ratio": 1})}),
    "MotifVideoPipeline": Case(
        "MotifVideoTransformer3DModel",
        TINY | {"in_channels": 9, "attention_head_dim": 12, "patch_size": 1, "patch_size_t": 1,
                "image_embed_dim": 16, "rope_axes_dim": (4, 4, 4)},
        TEXT, FRAMES, scale="", parts=GUIDER | WAN_VAE),
    "StableDiffusionPipeline": Case(
        "UNet2DConditionModel", UNET, PAIR, IMAGE, scheduler=diffusers.DDIMScheduler, parts=SAFE, std=0.4),
    "StableDiffusionXLPipeline": Case(
        "UNet2DConditionModel", UNET | TIMED, POOLED, IMAGE, scheduler=diffusers.EulerDiscreteScheduler,
        std=0.4),
    "KolorsPipeline": Case(
        "UNet2DConditionModel", UNET | TIMED | {"encoder_hid_dim": 16, "encoder_hid_dim_type": "text_proj"},
        POOLED, IMAGE | {"max_sequence_length": 5}, scheduler=diffusers.EulerDiscreteScheduler, std=0.4,
        needs="sentencepiece"),
    "AnimateDiffPipeline": Case(
        "UNetMotionModel",
        {k: v for k, v in UNET.items() if k != "attention_head_dim"}
        | {"num_attention_heads": 2, "motion_num_attention_heads": 2,
           "down_block_types": ("DownBlockMotion", "CrossAttnDownBlockMotion"),
           "up_block_types": ("CrossAttnUpBlockMotion", "UpBlockMotion")},
        PAIR, IMAGE | {"num_frames": 3}, scheduler=diffusers.DDIMScheduler, parts={"motion_adapter": None},
        std=0.4),
    "AudioLDM2Pipeline": Case(
        "AudioLDM2UNet2DConditionModel", UNET | {"cross_attention_dim": (16, 16)},
        PAIR | both(generated_prompt_embeds=(BATCH, 5, 16), attention_mask=mask()),
        {"audio_length_in_s": 0.5}, scheduler=diffusers.DDIMScheduler, std=0.4,
        parts={"vae": kl(), "text_encoder_2": Words, "language_model": Words, "vocoder": Processor(
            config=Processor(upsample_rates=[2], sampling_rate=32, model_in_dim=8))}),
    "DreamLitePipeline": Case(
        "DreamLiteUNetModel",
        UNET | {"transformer_layers_per_block": 1, "down_block_types": (
                    "DreamLiteCrossAttnNoSelfAttnDownBlock2D", "DreamLiteCrossAttnDownBlock2D"),
                "up_block_types": ("DreamLiteCrossAttnUpBlock2D", "DreamLiteUpBlock2D")},
        {}, SMALL | {"prompt": "a", "negative_prompt": ""}, settings={"encode_prompt": dream_prompt},
        parts={"text_encoder": kl(), "vae": kl()}, std=0.4),
    "Kandinsky3Pipeline": Case(
        "Kandinsky3UNet",
        {"time_embedding_dim": 4, "groups": 2, "attention_head_dim": 2, "layers_per_block": 2,
         "block_out_channels": (8, 8), "cross_attention_dim": 4, "encoder_hid_dim": 16},
        PAIR | both(attention_mask=mask()), IMAGE, scheduler=diffusers.DDPMScheduler, std=0.6),
    "PixArtAlphaPipeline": Case(
        "PixArtTransformer2DModel", PIXART, TEXT, IMAGE | UNBINNED,
        scheduler=diffusers.DPMSolverMultistepScheduler),
    "PixArtSigmaPipeline": Case(
        "PixArtTransformer2DModel", PIXART, TEXT, IMAGE | UNBINNED,
        scheduler=diffusers.DPMSolverMultistepScheduler),
    "ErnieImagePipeline": Case(
        "ErnieImageTransformer2DModel",
        TINY | {"hidden_size": 16, "ffn_hidden_size": 16, "text_in_dim": 16, "rope_axes_dim": (4, 2, 2)},
        both(prompt_embeds=[(5, 16)] * BATCH), {"height": 128, "width": 128, "use_pe": False}),
    "CogView3PlusPipeline": Case(
        "CogView3PlusTransformer2DModel",
        TINY | {"patch_size": 2, "attention_head_dim": 4, "num_attention_heads": 4, "time_embed_dim": 8,
                "condition_dim": 4, "sample_size": 16},
        PAIR, IMAGE, scheduler=diffusers.DDIMScheduler, std=0.4),
    "GlmImagePipeline": Case(
        "GlmImageTransformer2DModel",
        TINY | {"patch_size": 2, "time_embed_dim": 16, "condition_dim": 8,
                "prior_vq_quantizer_codebook_size": 16},
        PAIR | {"prior_token_ids": lambda: torch.arange(BATCH * 64).reshape(BATCH, 64) % 16}, SMALL,
        parts={"vae": kl(latent_channels=4, latents_mean=(0.0,) * 4, latents_std=(1.0,) * 4)}),
    "WanAnimatePipeline": Case(
        "WanAnimateTransformer3DModel",
        WAN_MODEL
        | {"in_channels": 12, "latent_channels": 4, "image_dim": 16, "motion_encoder_size": 16,
           "motion_encoder_channel_sizes": {"4": 8, "8": 8, "16": 8}, "motion_style_dim": 8, "motion_dim": 4,
           "motion_encoder_dim": 8, "face_encoder_hidden_dim": 16, "face_encoder_num_heads": 2,
           "inject_face_latents_blocks": 1},
        PAIR | {"image": teal, "pose_video": lambda: [teal()] * 5, "face_video": lambda: [teal()] * 5},
        SMALL | {"segment_frame_length": 5}, parts=WAN_VAE, settings={"encode_image": looked_at}),
    "StableAudio3Pipeline": Case(
        "StableAudio3DiTModel",
        {"io_channels": 8, "embed_dim": 16, "depth": 1, "num_heads": 2, "cond_token_dim": 16,
         "global_cond_dim": 16, "local_add_cond_dim": 9, "timestep_features_dim": 8, "ff_mult": 2.0,
         "num_memory_tokens": 2, "use_differential_attention": False},
        PAIR | both(encoder_attention_mask=mask()), {"duration": 1.0},
        scheduler=lambda: diffusers.FlowMatchEulerDiscreteScheduler(num_train_timesteps=1, shift=1.0),
        parts={
            "vae": ("AutoencoderSAME", {
                "audio_channels": 2, "patch_size": 2, "encoder_channels": 8, "encoder_c_mults": (2,),
                "encoder_strides": (2,), "encoder_transformer_depths": (1,), "latent_dim": 8,
                "use_differential_attention": False, "dim_heads": 4, "ff_mult": 2, "sampling_rate": 64}),
            "duration_embedder": (StableAudio3DurationEmbedder, {"output_dim": 16, "fourier_dim": 8})}),
    "CogVideoXPipeline": Case(
        "CogVideoXTransformer3DModel", COGVIDEO, PAIR,
        IMAGE | {"num_frames": 9, "max_sequence_length": 5}, std=0.4, scheduler=cog_scheduler),
    "LTX2Pipeline": Case(
        "LTX2VideoTransformer3DModel",
        TINY | {"audio_in_channels": 4, "audio_out_channels": 4, "audio_num_attention_heads": 2,
                "audio_attention_head_dim": 4, "audio_cross_attention_dim": 8, "num_layers": 2,
                "rope_double_precision": False, "rope_type": "split", "vae_scale_factors": (8, 32, 32)},
        TEXT | both(prompt_embeds=(BATCH, 5, 16 * 3)),
        {"height": 32, "width": 32, "num_frames": 5, "frame_rate": 25.0, "stg_scale": 0.0,
         "modality_scale": 1.0, "guidance_rescale": 0.0, "audio_guidance_scale": 5.0, "audio_stg_scale": 0.0,
         "audio_modality_scale": 1.0, "audio_guidance_rescale": 0.0,
         "spatio_temporal_guidance_blocks": [1], "use_cross_timestep": False, "max_sequence_length": 5},
        parts={"connectors": (LTX2TextConnectors, LTX2_CONNECTORS),
               "vae": ("AutoencoderKLLTX2Video", LTX2_AUTOENCODER),
               "audio_vae": ("AutoencoderKLLTX2Audio", LTX2_AUDIO)}),
    "LattePipeline": Case(
        "LatteTransformer3DModel",
        PIXART | {"patch_size": 2, "num_embeds_ada_norm": 1000, "norm_type": "ada_norm_single",
                  "norm_elementwise_affine": False, "video_length": 2},
        PAIR, IMAGE | {"video_length": 2, "negative_prompt": None, "clean_caption": False},
        scheduler=diffusers.DDIMScheduler),
    "AllegroPipeline": Case(
        "AllegroTransformer3DModel",
        TINY | {"attention_head_dim": 12, "cross_attention_dim": 24, "sample_frames": 8},
        TEXT, IMAGE | {"num_frames": 8, "negative_prompt": None, "clean_caption": False},
        scheduler=diffusers.EulerAncestralDiscreteScheduler),
    "HunyuanDiTPipeline": Case(
        "HunyuanDiT2DModel",
        HEADS | {"sample_size": 16, "num_layers": 2, "patch_size": 2, "num_attention_heads": 3,
                 "cross_attention_dim_t5": 16, "pooled_projection_dim": 4, "hidden_size": 24,
                 "activation_fn": "gelu-approximate", "text_len": 5, "text_len_t5": 5},
        TEXT | both(prompt_embeds_2=(BATCH, 5, 16), prompt_attention_mask_2=mask()),
        SMALL | {"use_resolution_binning": False}, parts=SAFE,
        scheduler=lambda: diffusers.DDPMScheduler(clip_sample=False)),
    "QwenImage21Pipeline": Case(
        "QwenImage21Transformer2DModel",
        TINY | {"in_channels": 16, "out_channels": 16, "attention_head_dim": 16, "context_in_dim": 16,
                "axes_dims_rope": (4, 6, 6)},
        PAIR, IMAGE, scale="true_cfg_scale",
        parts={"processor": Processor(
            apply_chat_template=lambda *text, **more: [[0]], tokenizer=Processor(encode=lambda text: [0]))}),
    "LongCatImagePipeline": Case(
        "LongCatImageTransformer2DModel",
        HEADS | {"in_channels": 64, "attention_head_dim": 16, "axes_dims_rope": [4, 6, 6]},
        PAIR, IMAGE | {"enable_prompt_rewrite": False},
        settings={"encode_prompt": lambda pipe, prompt_embeds, **more: (prompt_embeds, torch.zeros(5, 3))}),
    "Kandinsky5T2IPipeline": Case(
        "Kandinsky5Transformer3DModel", KANDINSKY,
        both(prompt_embeds_qwen=(BATCH, 5, 16), prompt_embeds_clip=(BATCH, 16),
             prompt_cu_seqlens=lambda: torch.tensor([0, 5, 10])),
        IMAGE, settings={"resolutions": [(64, 64)]}),
    "Kandinsky6TI2VAPipeline": Case(
        "Kandinsky6Transformer3DModel", KANDINSKY | {"in_audio_dim": 4, "out_audio_dim": 4}, POOLED,
        CLIP | {"sample_audio": False}),
    "BriaFiboPipeline": Case(
        "BriaFiboTransformer2DModel",
        HEADS | {"in_channels": 16, "joint_attention_dim": 32, "axes_dims_rope": [0, 4, 4],
                 "text_encoder_dim": 16, "pooled_projection_dim": None},
        {}, SMALL | {"prompt": ["a", "b"]}, settings={"get_prompt_embeds": fibo_prompt},
        parts={"text_encoder": kl(), "vae": ("AutoencoderKLWan", {
            "base_dim": 4, "z_dim": 16, "dim_mult": [1], "num_res_blocks": 1, "temperal_downsample": []})}),
    "BriaFibo2Pipeline": Case(
        "BriaFibo2Transformer2DModel",
        {"in_channels": 4, "dim": 32, "n_layers": 2, "n_refiner_layers": 1, "n_heads": 2, "cap_feat_dim": 16,
         "injection_layer_ids": (1,), "perceiver_num_layers": 1, "min_num_gist_tokens": 4,
         "max_num_gist_tokens": 8, "gist_step": 2, "gist_min_text_len": 2, "gist_max_text_len": 16,
         "axes_dims": (4, 6, 6), "axes_lens": (64, 64, 64)},
        both(prompt_embeds=(BATCH, 2, 5, 16)), IMAGE),
    "LongCatAudioDiTPipeline": Case(
        "LongCatAudioDiTTransformer",
        {"dit_dim": 16, "dit_depth": 1, "dit_heads": 2, "dit_text_dim": 16, "latent_dim": 8,
         "text_conv": False},
        {}, {"prompt": ["a", "b"], "audio_duration_s": 0.01}, settings={"encode_prompt": audio_prompt},
        parts={"vae": ("LongCatAudioDiTVae", {
            "in_channels": 1, "channels": 16, "c_mults": [1, 2], "strides": [2], "latent_dim": 8,
            "encoder_latent_dim": 16, "downsampling_ratio": 2, "sample_rate": 4000})},
        scheduler=lambda: diffusers.FlowMatchEulerDiscreteScheduler(shift=1.0, invert_sigmas=True)),
    "StableAudioPipeline": Case(
        "StableAudioDiTModel",
        TINY | {"attention_head_dim": 4, "num_key_value_attention_heads": 2, "time_proj_dim": 8,
                "global_states_input_dim": 32, "cross_attention_input_dim": 16},
        PAIR | both(attention_mask=mask()), {"return_dict": True},
        scheduler=lambda: diffusers.EDMDPMSolverMultistepScheduler(
            prediction_type="v_prediction", sigma_data=1.0),
        parts={
            "vae": ("AutoencoderOobleck", {
                "encoder_hidden_size": 4, "downsampling_ratios": [1, 2], "decoder_channels": 4,
                "decoder_input_channels": 4, "audio_channels": 2, "channel_multiples": [1, 2],
                "sampling_rate": 8}),
            "projection_model": ("StableAudioProjectionModel", {
                "text_encoder_dim": 16, "conditioning_dim": 16, "min_value": 0, "max_value": 32})}),
    "NucleusMoEImagePipeline": Case(
        "NucleusMoEImageTransformer2DModel",
        TINY | {"in_channels": 16, "attention_head_dim": 16, "axes_dims_rope": (4, 6, 6),
                "moe_enabled": False, "capacity_factors": [8.0]},
        MASKED, IMAGE),
    "Cosmos2_5_PredictBasePipeline": Case(
        "CosmosTransformer3DModel", COSMOS, PAIR, FRAMES, scheduler=rounded, parts=WAN_VAE | HARMLESS),
    "Cosmos2_5_TransferPipeline": Case(
        "CosmosTransformer3DModel",
        COSMOS | {"controlnet_block_every_n": 1, "img_context_dim_in": 16, "img_context_num_tokens": 4,
                  "img_context_dim_out": 24},
        PAIR | {"controls": VIDEO["video"]}, SMALL | {"num_frames_per_chunk": 5}, scheduler=rounded,
        parts=WAN_VAE | HARMLESS | {"controlnet": lambda: uncontrolled}),
    "EasyAnimatePipeline": Case(
        "EasyAnimateTransformer3DModel", EASY, TEXT, FRAMES, parts=EASY_PARTS, std=0.6),
}
# fmt: on
