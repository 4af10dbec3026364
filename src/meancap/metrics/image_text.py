"""Networks that look at an image and its prompt.

    image, text   CLIP embeddings (OpenAI ViT-B/32) through transformers, 512 numbers each; their cosine is
                  the paper's CLIP column
    reward        ImageReward-v1.0 (Xu et al. 2023): how people would like an image as an answer to a prompt;
                  0 is the average of its training data, negative ones are ordinary

Preprocessing is CLIP's own: the shorter side to 224 by Pillow's bicubic resize, the centre, CLIP's mean and
spread. ImageReward is a vision transformer and a BERT whose every layer also looks at the image, our own
module because the published package imports with old versions of transformers and timm only; parameter names
are those of `ImageReward.pt`, so that file loads as it is.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..extras import need
from .extractor import Extractor, Features, MissingWeights, Weights, fingerprint, load_network
from .images import three_channels

IMAGE_REWARD = Weights(
    "ImageReward-v1.0",
    ("ImageReward.pt",),
    "MEANCAP_IMAGEREWARD",
    "huggingface.co/THUDM/ImageReward",
    habits=("~/.cache/ImageReward",),
)
BERT_WORDS = Weights(
    "the word list of bert-base-uncased",
    ("bert-base-uncased-vocab.txt", "vocab.txt"),
    "MEANCAP_BERT_VOCAB",
    "huggingface.co/google-bert/bert-base-uncased",
    habits=("~/.cache/ImageReward",),
)

CLIP_NAME = "openai/clip-vit-base-patch32"
CLIP_VARIABLE = "MEANCAP_CLIP"
_CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
_CLIP_SPREAD = (0.26862954, 0.26130258, 0.27577711)


def clip_b32(weights: str | Path | None = None) -> Extractor:
    """From a folder as `save_pretrained` writes it, else $MEANCAP_CLIP, else the Hugging Face cache."""
    transformers = need("transformers", "metrics")
    place = str(weights or os.environ.get(CLIP_VARIABLE) or CLIP_NAME)
    try:
        model = transformers.CLIPModel.from_pretrained(place, local_files_only=True).train(False)
        tokenizer = transformers.CLIPTokenizer.from_pretrained(place, local_files_only=True)
    except (OSError, ValueError) as error:
        raise MissingWeights(
            f"CLIP ViT-B/32 is not on this machine (looked at {place}): put {CLIP_NAME} with its tokenizer "
            f"into the Hugging Face cache, or set {CLIP_VARIABLE} to a folder that holds both"
        ) from error
    size = int(model.config.vision_config.image_size)
    longest = int(model.config.text_config.max_position_embeddings)

    def run(images: Tensor, prompts: Sequence[str]) -> Features:
        tokens = tokenizer(
            list(prompts), padding=True, truncation=True, max_length=longest, return_tensors="pt"
        )
        pixels = _clip_pixels(images, size)
        # The whole model's output: its embeddings have unit length and have kept their names through
        # transformers 4 and 5.
        out = model(
            input_ids=tokens["input_ids"], attention_mask=tokens["attention_mask"], pixel_values=pixels
        )
        return {"image": out.image_embeds, "text": out.text_embeds}

    mark = f"{model.num_parameters():,} parameters"
    return Extractor(f"CLIP {place} ({mark}), bicubic {size} centre crop", run, batch=8, needs_prompts=True)


def _clip_pixels(images: Tensor, size: int) -> Tensor:
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
    return (x - torch.tensor(_CLIP_MEAN)[:, None, None]) / torch.tensor(_CLIP_SPREAD)[:, None, None]


_LENGTH = 35  # words per prompt, padded or cut, as published
# Of the training objective, not of the score: projections of BLIP, and a buffer of BERT.
_UNUSED = ("blip.vision_proj.", "blip.text_proj.", "blip.text_encoder.embeddings.position_ids")


def image_reward(weights: str | Path | None = None, words: str | Path | None = None) -> Extractor:
    """From `ImageReward.pt` and the word list of bert-base-uncased."""
    path, vocabulary = IMAGE_REWARD.find(weights), BERT_WORDS.find(words)
    network = _load_image_reward(path)
    tokenizer = need("transformers", "metrics").BertTokenizer(str(vocabulary))

    def run(images: Tensor, prompts: Sequence[str]) -> Features:
        tokens = tokenizer(
            list(prompts), padding="max_length", truncation=True, max_length=_LENGTH, return_tensors="pt"
        )
        pixels = _clip_pixels(images, 224)
        reward = network(pixels, tokens["input_ids"], tokens["attention_mask"])
        return {"reward": reward[:, None]}

    mark = fingerprint(path)
    return Extractor(f"ImageReward-v1.0 (sha256 {mark})", run, batch=1, needs_prompts=True)


def _load_image_reward(path: Path, sizes: _Sizes | None = None) -> ImageReward:
    """The network with the tensors of `ImageReward.pt`."""
    with torch.device("meta"):
        network = ImageReward(sizes)
    return load_network(network, path, "ImageReward-v1.0", leave_out=_UNUSED)


_MEAN, _SPREAD = 0.16717362830052426, 1.0333394966054072


@dataclass(frozen=True)
class _Sizes:
    """Those of ImageReward-v1.0; tests use smaller ones."""

    image: int = 224
    patch: int = 16
    vision: int = 1024
    vision_depth: int = 24
    vision_heads: int = 16
    text: int = 768
    text_depth: int = 12
    text_heads: int = 12
    words: int = 30524
    places: int = 512
    head: tuple[int, ...] = (1024, 128, 64, 16)


def _attend(q: Tensor, k: Tensor, v: Tensor, heads: int, mask: Tensor | None = None) -> Tensor:
    """Attention of (batch, tokens, width) tensors in `heads` parts; `mask` is True where a key is seen."""
    q, k, v = (x.reshape(*x.shape[:2], heads, -1).transpose(1, 2) for x in (q, k, v))
    seen = None if mask is None else mask[:, None, None, :]
    return F.scaled_dot_product_attention(q, k, v, attn_mask=seen).transpose(1, 2).flatten(2)


class _VisionAttention(nn.Module):
    """Self-attention over patches."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        out: Tensor = self.proj(_attend(q, k, v, self.heads))
        return out


class _VisionBlock(nn.Module):
    """Attention, then a feed-forward part, each added to what came in."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width, eps=1e-6), nn.LayerNorm(width, eps=1e-6)
        self.attn = _VisionAttention(width, heads)
        self.mlp = nn.ModuleDict({"fc1": nn.Linear(width, 4 * width), "fc2": nn.Linear(4 * width, width)})

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        out: Tensor = x + self.mlp["fc2"](F.gelu(self.mlp["fc1"](self.norm2(x))))
        return out


class _Vision(nn.Module):
    """The image encoder, a ViT with a class token."""

    def __init__(self, s: _Sizes) -> None:
        super().__init__()
        self.patch_embed = nn.ModuleDict({"proj": nn.Conv2d(3, s.vision, s.patch, s.patch)})
        self.cls_token = nn.Parameter(torch.zeros(1, 1, s.vision))
        self.pos_embed = nn.Parameter(torch.zeros(1, (s.image // s.patch) ** 2 + 1, s.vision))
        self.blocks = nn.ModuleList(_VisionBlock(s.vision, s.vision_heads) for _ in range(s.vision_depth))
        self.norm = nn.LayerNorm(s.vision, eps=1e-6)

    def forward(self, pixels: Tensor) -> Tensor:
        x = self.patch_embed["proj"](pixels).flatten(2).transpose(1, 2)
        x = torch.cat((self.cls_token.expand(len(x), -1, -1), x), 1) + self.pos_embed
        for block in self.blocks:
            x = block(x)
        out: Tensor = self.norm(x)
        return out


class _TextAttention(nn.Module):
    """Attention of words to words, or of words to image patches; then residual and norm."""

    def __init__(self, width: int, heads: int, seen: int) -> None:
        super().__init__()
        self.heads = heads
        self.self = nn.ModuleDict(
            {"query": nn.Linear(width, width), "key": nn.Linear(seen, width), "value": nn.Linear(seen, width)}
        )
        self.output = _dense(width, width)

    def forward(self, x: Tensor, seen: Tensor, mask: Tensor | None) -> Tensor:
        q, k, v = self.self["query"](x), self.self["key"](seen), self.self["value"](seen)
        out: Tensor = self.output["LayerNorm"](x + self.output["dense"](_attend(q, k, v, self.heads, mask)))
        return out


class _TextLayer(nn.Module):
    """Attention over words, then over patches of the image, then a feed-forward part."""

    def __init__(self, s: _Sizes) -> None:
        super().__init__()
        self.attention = _TextAttention(s.text, s.text_heads, s.text)
        self.crossattention = _TextAttention(s.text, s.text_heads, s.vision)
        self.intermediate = nn.ModuleDict({"dense": nn.Linear(s.text, 4 * s.text)})
        self.output = _dense(4 * s.text, s.text)

    def forward(self, x: Tensor, image: Tensor, mask: Tensor) -> Tensor:
        x = self.crossattention(self.attention(x, x, mask), image, None)
        wide = F.gelu(self.intermediate["dense"](x))
        out: Tensor = self.output["LayerNorm"](x + self.output["dense"](wide))
        return out


class _TextEncoder(nn.Module):
    """The text encoder, a BERT that looks at the image."""

    def __init__(self, s: _Sizes) -> None:
        super().__init__()
        self.embeddings = nn.ModuleDict(
            {
                "word_embeddings": nn.Embedding(s.words, s.text),
                "position_embeddings": nn.Embedding(s.places, s.text),
                "LayerNorm": nn.LayerNorm(s.text, eps=1e-12),
            }
        )
        self.encoder = nn.ModuleDict({"layer": nn.ModuleList(_TextLayer(s) for _ in range(s.text_depth))})

    def forward(self, words: Tensor, mask: Tensor, image: Tensor) -> Tensor:
        places = torch.arange(words.shape[1], device=words.device)
        x = self.embeddings["word_embeddings"](words) + self.embeddings["position_embeddings"](places)
        x = self.embeddings["LayerNorm"](x)
        out: Tensor = x
        for layer in self.encoder["layer"].children():
            out = layer(out, image, mask)
        return out


class ImageReward(nn.Module):
    """Takes CLIP-normalised pixels, word numbers and a mask of real words; gives one reward per pair."""

    def __init__(self, sizes: _Sizes | None = None) -> None:
        super().__init__()
        s = sizes or _Sizes()
        self.blip = nn.ModuleDict({"visual_encoder": _Vision(s), "text_encoder": _TextEncoder(s)})
        widths = (s.text, *s.head, 1)
        # Numbered as in the file, where dropouts stand between the first four.
        numbers = [str(min(2 * i, i + 3)) for i in range(len(widths) - 1)]
        layers = zip(numbers, widths[:-1], widths[1:], strict=True)
        self.mlp = nn.ModuleDict({"layers": nn.ModuleDict({k: nn.Linear(i, o) for k, i, o in layers})})

    def forward(self, pixels: Tensor, words: Tensor, mask: Tensor) -> Tensor:
        image = self.blip["visual_encoder"](pixels)
        x = self.blip["text_encoder"](words, mask.bool(), image)[:, 0]
        for layer in self.mlp["layers"].children():
            x = layer(x)
        out: Tensor = (x[:, 0] - _MEAN) / _SPREAD
        return out


def _dense(c_in: int, c_out: int) -> nn.ModuleDict:
    return nn.ModuleDict({"dense": nn.Linear(c_in, c_out), "LayerNorm": nn.LayerNorm(c_out, eps=1e-12)})
