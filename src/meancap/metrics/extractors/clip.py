"""CLIP embeddings of images and of their prompts (OpenAI ViT-B/32), through transformers.

    image, text   512 numbers each; their cosine is the paper's CLIP column

Preprocessing is CLIP's own: the shorter side to 224 by Pillow's bicubic resize, the centre, CLIP's mean and
spread.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from ...extras import need
from ..locate import MissingWeights
from ..resize import three_channels
from .base import Extractor, Features

NAME = "openai/clip-vit-base-patch32"
VARIABLE = "MEANCAP_CLIP"
MEAN = (0.48145466, 0.4578275, 0.40821073)
SPREAD = (0.26862954, 0.26130258, 0.27577711)


def clip_b32(weights: str | Path | None = None) -> Extractor:
    """From a folder as `save_pretrained` writes it, else $MEANCAP_CLIP, else the Hugging Face cache."""
    transformers = need("transformers", "metrics")
    place = str(weights or os.environ.get(VARIABLE) or NAME)
    try:
        model = transformers.CLIPModel.from_pretrained(place, local_files_only=True).train(False)
        tokenizer = transformers.CLIPTokenizer.from_pretrained(place, local_files_only=True)
    except (OSError, ValueError) as error:
        raise MissingWeights(
            f"CLIP ViT-B/32 is not on this machine (looked at {place}): put {NAME} with its tokenizer "
            f"into the Hugging Face cache, or set {VARIABLE} to a folder that holds both"
        ) from error
    size = int(model.config.vision_config.image_size)
    longest = int(model.config.text_config.max_position_embeddings)

    def run(images: Tensor, prompts: Sequence[str]) -> Features:
        tokens = tokenizer(
            list(prompts), padding=True, truncation=True, max_length=longest, return_tensors="pt"
        )
        pixels = clip_pixels(images, size)
        # The whole model's output: its embeddings have unit length and have kept their names through
        # transformers 4 and 5.
        out = model(
            input_ids=tokens["input_ids"], attention_mask=tokens["attention_mask"], pixel_values=pixels
        )
        return {"image": out.image_embeds, "text": out.text_embeds}

    mark = f"{model.num_parameters():,} parameters"
    return Extractor(f"CLIP {place} ({mark}), bicubic {size} centre crop", run, batch=8, needs_prompts=True)


def clip_pixels(images: Tensor, size: int) -> Tensor:
    """CLIP's preprocessing of (batch, height, width, channels) bytes."""
    numpy, pillow = need("numpy", "images"), need("PIL.Image", "images")
    pictures = []
    for pixels in three_channels(images).numpy():
        shown = pillow.fromarray(pixels)
        wide, high = shown.size
        short = min(wide, high)
        # Both sides as torchvision and OpenAI's code have it: the shorter exactly `size`, the longer cut to
        # an integer.
        shape = (
            size if wide <= high else size * wide // short,
            size if high <= wide else size * high // short,
        )
        shown = shown.resize(shape, pillow.Resampling.BICUBIC)
        left, top = round((shape[0] - size) / 2), round((shape[1] - size) / 2)
        shown = shown.crop((left, top, left + size, top + size))
        pictures.append(torch.from_numpy(numpy.array(shown)))
    x = torch.stack(pictures).permute(0, 3, 1, 2).float() / 255
    return (x - torch.tensor(MEAN)[:, None, None]) / torch.tensor(SPREAD)[:, None, None]
