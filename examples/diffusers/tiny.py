"""Whole pipelines with random weights, text encoders and decoders included: seconds on a laptop, and noise.

They exist so that a script can be tried before the real weights arrive; only the weights differ.
"""

from __future__ import annotations

import string
from typing import Any

import torch
import transformers
from diffusers import (
    AutoencoderKL,
    AutoencoderKLQwenImage,
    AutoencoderKLWan,
    DiffusionPipeline,
    FlowMatchEulerDiscreteScheduler,
    FluxPipeline,
    FluxTransformer2DModel,
    QwenImagePipeline,
    QwenImageTransformer2DModel,
    SD3Transformer2DModel,
    StableDiffusion3Pipeline,
    UniPCMultistepScheduler,
    WanPipeline,
    WanTransformer3DModel,
)
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, processors

WIDTH = 16
SPECIAL = ("<pad>", "</s>", "<unk>")


def tiny(pipeline: type[DiffusionPipeline]) -> Any:
    """A pipeline of this class, small enough for a laptop."""
    torch.manual_seed(0)
    pipe = MADE[pipeline]()
    pipe.set_progress_bar_config(disable=True)
    return pipe


def lively(network: Any, size: float = 0.2) -> Any:
    """Weights large enough that the prompt matters; untrained networks start almost deaf to it."""
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.normal_(0, size)
    return network.eval()


def tokenizer(longest: int = 77) -> transformers.PreTrainedTokenizerFast:
    """One token for each printable character."""
    vocabulary = {token: i for i, token in enumerate((*SPECIAL, *string.printable))}
    made = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    made.post_processor = processors.TemplateProcessing("$A </s>", special_tokens=[("</s>", 1)])
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=made,
        pad_token="<pad>",
        eos_token="</s>",
        unk_token="<unk>",
        model_max_length=longest,
    )


def clip(model: type[Any]) -> Any:
    config = transformers.CLIPTextConfig(
        vocab_size=128, hidden_size=WIDTH, intermediate_size=WIDTH, num_hidden_layers=2,
        num_attention_heads=2,
        projection_dim=WIDTH, eos_token_id=1, pad_token_id=0, bos_token_id=2,
    )  # fmt: skip
    return lively(model(config))


def t5(width: int = WIDTH, kind: str = "T5") -> Any:
    config = getattr(transformers, f"{kind}Config")
    sizes = config(vocab_size=128, d_model=width, d_kv=4, d_ff=WIDTH, num_layers=1, num_heads=2)
    return lively(getattr(transformers, f"{kind}EncoderModel")(sizes))


def autoencoder() -> AutoencoderKL:
    return AutoencoderKL(
        down_block_types=["DownEncoderBlock2D"] * 2, up_block_types=["UpDecoderBlock2D"] * 2,
        block_out_channels=(4, 4), norm_num_groups=1, latent_channels=4, shift_factor=0.0,
    )  # fmt: skip


def stable_diffusion_3() -> StableDiffusion3Pipeline:
    transformer = SD3Transformer2DModel(
        sample_size=32, in_channels=4, num_layers=1, attention_head_dim=8, num_attention_heads=2,
        joint_attention_dim=2 * WIDTH, caption_projection_dim=16, pooled_projection_dim=2 * WIDTH,
        out_channels=4,
        pos_embed_max_size=32,
    )  # fmt: skip
    projected = transformers.CLIPTextModelWithProjection
    return StableDiffusion3Pipeline(
        lively(transformer, 0.5), FlowMatchEulerDiscreteScheduler(shift=3.0), autoencoder(),
        clip(projected), tokenizer(), clip(projected), tokenizer(), t5(2 * WIDTH), tokenizer(256),
    )  # fmt: skip


def flux() -> FluxPipeline:
    transformer = FluxTransformer2DModel(
        in_channels=16, num_layers=1, num_single_layers=1, attention_head_dim=16, num_attention_heads=2,
        joint_attention_dim=WIDTH, pooled_projection_dim=WIDTH, axes_dims_rope=(4, 4, 8),
        guidance_embeds=True,
    )  # fmt: skip
    return FluxPipeline(
        FlowMatchEulerDiscreteScheduler(shift=3.0), autoencoder(), clip(transformers.CLIPTextModel),
        tokenizer(), t5(WIDTH), tokenizer(512), lively(transformer, 0.5),
    )  # fmt: skip


def qwen_image() -> QwenImagePipeline:
    text = {
        "vocab_size": 128, "hidden_size": WIDTH, "intermediate_size": WIDTH, "num_hidden_layers": 1,
        "num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 2048,
        "rope_scaling": {"type": "default", "rope_type": "default", "mrope_section": [1, 1, 2]},
    }  # fmt: skip
    vision = {
        "depth": 1,
        "hidden_size": WIDTH,
        "intermediate_size": WIDTH,
        "num_heads": 2,
        "out_hidden_size": WIDTH,
    }
    encoder = transformers.Qwen2_5_VLForConditionalGeneration(
        transformers.Qwen2_5_VLConfig(text_config=text, vision_config=vision)
    )
    transformer = QwenImageTransformer2DModel(
        in_channels=16, out_channels=4, num_layers=1, attention_head_dim=16, num_attention_heads=2,
        joint_attention_dim=WIDTH, axes_dims_rope=(8, 4, 4),
    )  # fmt: skip
    vae = AutoencoderKLQwenImage(
        base_dim=8, z_dim=4, dim_mult=[1, 1], num_res_blocks=1, temperal_downsample=[False],
        latents_mean=[0.0] * 4, latents_std=[1.0] * 4,
    )  # fmt: skip
    return QwenImagePipeline(
        FlowMatchEulerDiscreteScheduler(shift=3.0),
        vae,
        lively(encoder),
        tokenizer(2048),
        lively(transformer, 0.5),
    )


def wan() -> WanPipeline:
    transformer = WanTransformer3DModel(
        num_attention_heads=2, attention_head_dim=12, in_channels=4, out_channels=4, text_dim=WIDTH,
        freq_dim=16,
        ffn_dim=32, num_layers=1, rope_max_seq_len=64,
    )  # fmt: skip
    vae = AutoencoderKLWan(
        base_dim=4, z_dim=4, dim_mult=[1, 1, 1, 1], num_res_blocks=1, temperal_downsample=[False, True, True],
        latents_mean=[0.0] * 4, latents_std=[1.0] * 4,
    )  # fmt: skip
    scheduler = UniPCMultistepScheduler(
        prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=3.0
    )
    return WanPipeline(tokenizer(512), t5(kind="UMT5"), vae, scheduler, lively(transformer, 0.5))


MADE = {
    StableDiffusion3Pipeline: stable_diffusion_3,
    FluxPipeline: flux,
    QwenImagePipeline: qwen_image,
    WanPipeline: wan,
}
