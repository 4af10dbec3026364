"""Random weights in the published formats: for rehearsing a whole protocol where the real ones are missing.

The pictures mean nothing. What a rehearsal shows is that every file, option and count fits together.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from ..files import write_whole, writing
from ..models.sit import SiT, SiTConfig


def tiny_imagenet(folder: Path) -> tuple[Path, Path]:
    """Weights and autoencoder for the ImageNet protocol, made once in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    weights, vae = folder / "sit.pt", folder / "vae"
    if not weights.is_file():
        tiny_sit(weights)
    if not vae.is_dir():
        tiny_vae(vae)
    return weights, vae


def tiny_sd35(folder: Path) -> tuple[Path, Path]:
    """A pipeline and two prompts for the SD3.5 protocol, made once in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    pipeline, prompts = folder / "pipeline", folder / "prompts.txt"
    if not (pipeline / "model_index.json").is_file():
        tiny_sd3(folder)
    write_whole(prompts, "a dog on rocks by the beach\n\na bedroom with a large bed\n")
    return pipeline, prompts


def tiny_sit(path: Path, *, classes: int = 1000, seed: int = 0) -> Path:
    """A bare `.pt` like the released SiT files: a published width, one block, 8 x 8 latents."""
    config = SiTConfig(size=8, channels=4, patch=2, width=384, depth=1, heads=6, classes=classes)
    model = SiT(config).requires_grad_(False)
    _randomise(model, seed, 0.05)
    with torch.no_grad():
        model.y_embedder.embedding_table.weight.mul_(40)  # classes far apart, so that a cap has work to do
    with writing(path) as temporary:
        torch.save(model.state_dict(), temporary)
    return path


def tiny_vae(folder: Path, *, seed: int = 0) -> Path:
    """An autoencoder of 4-channel latents that doubles height and width."""
    from diffusers import AutoencoderKL

    make: Any = AutoencoderKL
    vae = make(
        block_out_channels=[8, 8],
        in_channels=3,
        out_channels=3,
        latent_channels=4,
        norm_num_groups=2,
        down_block_types=["DownEncoderBlock2D"] * 2,
        up_block_types=["UpDecoderBlock2D"] * 2,
        scaling_factor=0.18215,
    )
    _randomise(vae, seed, 0.3)
    vae.save_pretrained(folder)
    return folder


def tiny_sd3(folder: Path, *, seed: int = 0) -> Path:
    """A StableDiffusion3Pipeline with three small text encoders, all of them reading letter by letter."""
    import transformers
    from diffusers import FlowMatchEulerDiscreteScheduler, SD3Transformer2DModel, StableDiffusion3Pipeline
    from transformers import CLIPTextConfig, CLIPTextModelWithProjection, T5Config, T5EncoderModel

    words = _tokenizer_files(folder / "words")
    tokenizer: Any = transformers.CLIPTokenizer.from_pretrained(words)
    text = CLIPTextConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=37,
        num_hidden_layers=1,
        num_attention_heads=4,
        projection_dim=32,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    make: Any = SD3Transformer2DModel
    transformer = make(
        sample_size=32,
        patch_size=2,
        in_channels=4,
        out_channels=4,
        num_layers=1,
        attention_head_dim=8,
        num_attention_heads=4,
        joint_attention_dim=32,
        caption_projection_dim=32,
        pooled_projection_dim=64,
        pos_embed_max_size=32,
    )
    third = T5Config(
        vocab_size=len(tokenizer), d_model=32, d_kv=8, d_ff=37, num_layers=1, num_heads=4, pad_token_id=0
    )
    encoders: list[Any] = [*(CLIPTextModelWithProjection(text) for _ in range(2)), T5EncoderModel(third)]
    from diffusers import AutoencoderKL

    vae: Any = AutoencoderKL.from_pretrained(tiny_vae(folder / "tiny-vae", seed=seed))  # type: ignore[no-untyped-call]
    vae.register_to_config(shift_factor=0.0609, scaling_factor=1.5305)
    for i, module in enumerate((transformer, *encoders)):
        _randomise(module, seed + i, 0.2)
    scheduler: Any = FlowMatchEulerDiscreteScheduler
    pipe_class: Any = StableDiffusion3Pipeline
    pipe = pipe_class(
        transformer=transformer,
        scheduler=scheduler(shift=3.0),
        vae=vae,
        text_encoder=encoders[0],
        tokenizer=tokenizer,
        text_encoder_2=encoders[1],
        tokenizer_2=tokenizer,
        text_encoder_3=encoders[2],
        tokenizer_3=tokenizer,
    )
    pipe.save_pretrained(folder / "pipeline")
    return folder / "pipeline"


def _tokenizer_files(folder: Path) -> Path:
    """A CLIP tokenizer that knows bytes only: every letter is a token."""
    folder.mkdir(parents=True, exist_ok=True)
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = [chr(b) for b in printable] + [chr(256 + i) for i in range(256 - len(printable))]
    tokens = [*letters, *(f"{c}</w>" for c in letters), "<|startoftext|>", "<|endoftext|>"]
    (folder / "vocab.json").write_text(json.dumps({token: i for i, token in enumerate(tokens)}))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"model_max_length": 77, "pad_token": "<|endoftext|>", "unk_token": "<|endoftext|>"})
    )
    return folder


def _randomise(module: torch.nn.Module, seed: int, spread: float) -> None:
    """Draws every weight anew, so that no layer starts at zero and the classes differ."""
    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in module.named_parameters():
            if name != "pos_embed" and "norm" not in name:
                p.copy_(spread * torch.randn(p.shape, generator=g))
