"""ImageReward's network: a vision transformer, and a BERT whose every layer also looks at the image.

Our own module because the published package imports with old versions of transformers and timm only.
Parameter names are those of `ImageReward.pt`, so that file loads as it is.

    reward = (head(first word vector) - 0.16717) / 1.03334
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

MEAN, SPREAD = 0.16717362830052426, 1.0333394966054072


@dataclass(frozen=True)
class Sizes:
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


def attend(q: Tensor, k: Tensor, v: Tensor, heads: int, mask: Tensor | None = None) -> Tensor:
    """Attention of (batch, tokens, width) tensors in `heads` parts; `mask` is True where a key is seen."""
    q, k, v = (x.reshape(*x.shape[:2], heads, -1).transpose(1, 2) for x in (q, k, v))
    seen = None if mask is None else mask[:, None, None, :]
    return F.scaled_dot_product_attention(q, k, v, attn_mask=seen).transpose(1, 2).flatten(2)


class VisionAttention(nn.Module):
    """Self-attention over patches."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        out: Tensor = self.proj(attend(q, k, v, self.heads))
        return out


class VisionBlock(nn.Module):
    """Attention, then a feed-forward part, each added to what came in."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width, eps=1e-6), nn.LayerNorm(width, eps=1e-6)
        self.attn = VisionAttention(width, heads)
        self.mlp = nn.ModuleDict({"fc1": nn.Linear(width, 4 * width), "fc2": nn.Linear(4 * width, width)})

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        out: Tensor = x + self.mlp["fc2"](F.gelu(self.mlp["fc1"](self.norm2(x))))
        return out


class Vision(nn.Module):
    """The image encoder, a ViT with a class token."""

    def __init__(self, s: Sizes) -> None:
        super().__init__()
        self.patch_embed = nn.ModuleDict({"proj": nn.Conv2d(3, s.vision, s.patch, s.patch)})
        self.cls_token = nn.Parameter(torch.zeros(1, 1, s.vision))
        self.pos_embed = nn.Parameter(torch.zeros(1, (s.image // s.patch) ** 2 + 1, s.vision))
        self.blocks = nn.ModuleList(VisionBlock(s.vision, s.vision_heads) for _ in range(s.vision_depth))
        self.norm = nn.LayerNorm(s.vision, eps=1e-6)

    def forward(self, pixels: Tensor) -> Tensor:
        x = self.patch_embed["proj"](pixels).flatten(2).transpose(1, 2)
        x = torch.cat((self.cls_token.expand(len(x), -1, -1), x), 1) + self.pos_embed
        for block in self.blocks:
            x = block(x)
        out: Tensor = self.norm(x)
        return out


class TextAttention(nn.Module):
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
        out: Tensor = self.output["LayerNorm"](x + self.output["dense"](attend(q, k, v, self.heads, mask)))
        return out


class TextLayer(nn.Module):
    """Attention over words, then over patches of the image, then a feed-forward part."""

    def __init__(self, s: Sizes) -> None:
        super().__init__()
        self.attention = TextAttention(s.text, s.text_heads, s.text)
        self.crossattention = TextAttention(s.text, s.text_heads, s.vision)
        self.intermediate = nn.ModuleDict({"dense": nn.Linear(s.text, 4 * s.text)})
        self.output = _dense(4 * s.text, s.text)

    def forward(self, x: Tensor, image: Tensor, mask: Tensor) -> Tensor:
        x = self.crossattention(self.attention(x, x, mask), image, None)
        wide = F.gelu(self.intermediate["dense"](x))
        out: Tensor = self.output["LayerNorm"](x + self.output["dense"](wide))
        return out


class TextEncoder(nn.Module):
    """The text encoder, a BERT that looks at the image."""

    def __init__(self, s: Sizes) -> None:
        super().__init__()
        self.embeddings = nn.ModuleDict(
            {
                "word_embeddings": nn.Embedding(s.words, s.text),
                "position_embeddings": nn.Embedding(s.places, s.text),
                "LayerNorm": nn.LayerNorm(s.text, eps=1e-12),
            }
        )
        self.encoder = nn.ModuleDict({"layer": nn.ModuleList(TextLayer(s) for _ in range(s.text_depth))})

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

    def __init__(self, sizes: Sizes | None = None) -> None:
        super().__init__()
        s = sizes or Sizes()
        self.blip = nn.ModuleDict({"visual_encoder": Vision(s), "text_encoder": TextEncoder(s)})
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
        out: Tensor = (x[:, 0] - MEAN) / SPREAD
        return out


def _dense(c_in: int, c_out: int) -> nn.ModuleDict:
    return nn.ModuleDict({"dense": nn.Linear(c_in, c_out), "LayerNorm": nn.LayerNorm(c_out, eps=1e-12)})
