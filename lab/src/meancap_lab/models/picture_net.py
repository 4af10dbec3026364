"""A flow network of small pictures: convolutions for details, a transformer between them for composition.

    x          (batch, channels, size, size) on the linear path x = (1 - t) noise + t data
    t          time in [0, 1], data at 1
    condition  one row for each sample; a module `prompt` turns it into tokens: `ClassTokens`, or the
               sentences of the scenes
    v          velocity data - noise

The tokens stand in the context of every transformer block, and their sum joins the time in every modulation.

For data of unit variance the best linear guess of v is (2t - 1) / (t^2 + (1 - t)^2) x, and what it leaves has
the variance 1 / (t^2 + (1 - t)^2); the network predicts the rest in those units.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..tensor_files import read_tensors
from .checkpoint import load_weights, pop_pixels, save_network
from .data import Pixels
from .sit import TimeEmbedder, attend, modulate, position_embedding


@dataclass(frozen=True)
class PictureNetConfig:
    """Channels at 32 and 16 pixels, convolution blocks there on each side, and the transformer at 8 x 8."""

    fine: int = 24
    middle: int = 48
    width: int = 128
    depth: int = 4
    heads: int = 4
    convolutions: int = 1
    size: int = 32
    channels: int = 3


class ClassTokens(nn.Module):
    """One token for a class; `classes` stands for "no class", the reference of guidance."""

    def __init__(self, classes: int, width: int) -> None:
        super().__init__()
        self.classes = classes
        self.words = nn.Embedding(classes + 1, width)
        self.mlp = token_layers(width)

    def forward(self, y: Tensor) -> Tensor:
        tokens: Tensor = self.mlp(self.words(y))[:, None]
        return tokens


def token_layers(width: int) -> nn.Sequential:
    """The two layers between embedded words and the tokens of a condition."""
    return nn.Sequential(nn.Linear(width, 2 * width), nn.SiLU(), nn.Linear(2 * width, width))


class PictureNet(nn.Module):
    """v = PictureNet(x, t, condition); `prompt` turns conditions into (batch, tokens, width)."""

    piece = 32  # samples that a CPU passes through at once: what a block makes of them stays in the cache

    def __init__(self, config: PictureNetConfig, prompt: nn.Module) -> None:
        super().__init__()
        self.config = c = config
        side = c.size // 4
        self.prompt = prompt
        self.t_embedder = TimeEmbedder(c.width)
        self.stem = nn.Conv2d(c.channels, c.fine, 3, padding=1)
        self.fine_in = _convolutions(c.convolutions, c.fine, c.width)
        self.down = nn.Conv2d(c.fine, c.middle, 2, stride=2)
        self.middle_in = _convolutions(c.convolutions, c.middle, c.width)
        self.patches = nn.Conv2d(c.middle, c.width, 2, stride=2)
        self.pos_embed = nn.Parameter(position_embedding(c.width, side)[None], requires_grad=False)
        self.blocks = nn.ModuleList(_ContextBlock(c.width, c.heads) for _ in range(c.depth))
        self.up_middle = nn.Conv2d(c.width, 4 * c.middle, 1)
        self.middle_out = _convolutions(c.convolutions, c.middle, c.width)
        self.up_fine = nn.Conv2d(c.middle, 4 * c.fine, 1)
        self.fine_out = _convolutions(c.convolutions, c.fine, c.width)
        self.last = nn.Conv2d(c.fine, c.channels, 3, padding=1)
        self.reset_parameters()

    @property
    def classes(self) -> int:
        """The number of classes of a network of `ClassTokens`; 0 for sentences."""
        return self.prompt.classes if isinstance(self.prompt, ClassTokens) else 0

    def reset_parameters(self) -> None:
        """Every block starts as the identity, and the network as the best linear guess."""
        if self.stem.weight.is_meta:
            return
        for name, p in self.named_parameters():
            if "adaLN" in name or name.startswith("last."):
                nn.init.zeros_(p)
            elif name.startswith(("t_embedder", "prompt")) and name.endswith("weight"):
                nn.init.normal_(p, std=0.5 if "words" in name else p.shape[1] ** -0.5)
            elif name.startswith("blocks") and name.endswith("weight"):
                nn.init.xavier_uniform_(p)

    def forward(self, x: Tensor, t: Tensor, condition: Tensor) -> Tensor:
        tokens = self.prompt(condition)
        c = F.silu(self.t_embedder(t) + tokens.sum(1))
        at = t[:, None, None, None].to(x.dtype)
        power = at.square() + (1 - at).square()
        linear = (2 * at - 1) / power * x
        h = self.stem((x * power.rsqrt()).contiguous(memory_format=torch.channels_last))
        for block in self.fine_in:
            h = block(h, c)
        fine = h
        h = self.down(h)
        for block in self.middle_in:
            h = block(h, c)
        middle = h
        h = self.patches(h)
        h = self._compose(h, tokens, c)
        h = middle + F.pixel_shuffle(self.up_middle(h), 2)
        for block in self.middle_out:
            h = block(h, c)
        h = fine + F.pixel_shuffle(self.up_fine(h), 2)
        for block in self.fine_out:
            h = block(h, c)
        rest: Tensor = self.last(F.relu(h))
        return linear + rest * power.rsqrt()

    def _compose(self, h: Tensor, tokens: Tensor, c: Tensor) -> Tensor:
        """The transformer over 8 x 8 patches and the tokens of the condition."""
        batch, width, high, wide = h.shape
        h = h.permute(0, 2, 3, 1).reshape(batch, high * wide, width) + self.pos_embed
        h = torch.cat([h, tokens], dim=1)
        for block in self.blocks:
            h = block(h, c)
        return h[:, : high * wide].reshape(batch, high, wide, width).permute(0, 3, 1, 2)


class _ContextBlock(nn.Module):
    """Attention and feed-forward, each shifted, scaled and gated by the condition (adaLN-zero)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self.fc1 = nn.Linear(width, 4 * width)
        self.fc2 = nn.Linear(4 * width, width)
        self.adaLN = nn.Linear(width, 6 * width)

    def forward(self, h: Tensor, c: Tensor) -> Tensor:
        shift_a, scale_a, gate_a, shift_m, scale_m, gate_m = self.adaLN(c)[:, None].chunk(6, dim=2)
        h = h + gate_a * self.proj(attend(self.qkv(modulate(_normal(h), shift_a, scale_a)), self.heads))
        out: Tensor = h + gate_m * self.fc2(F.relu(self.fc1(modulate(_normal(h), shift_m, scale_m))))
        return out


class _ConvolutionBlock(nn.Module):
    """Two 3 x 3 convolutions on normalised channels, shifted, scaled and gated by the condition."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)
        self.adaLN = nn.Linear(width, 3 * channels)

    def forward(self, h: Tensor, c: Tensor) -> Tensor:
        shift, scale, gate = self.adaLN(c)[:, None, None].chunk(3, dim=3)
        inner = modulate(_normal(h.permute(0, 2, 3, 1)), shift, scale).permute(0, 3, 1, 2)
        inner = self.second(F.relu(self.first(inner)))
        out: Tensor = h + gate.permute(0, 3, 1, 2) * inner
        return out


def _convolutions(count: int, channels: int, width: int) -> nn.ModuleList:
    return nn.ModuleList(_ConvolutionBlock(channels, width) for _ in range(count))


def _normal(h: Tensor) -> Tensor:
    """Layer norm over the last axis, without weights."""
    return F.layer_norm(h, h.shape[-1:], eps=1e-6)


def save_class_net(
    path: str | Path, model: PictureNet, pixels: Pixels, names: Sequence[str],
    *, dtype: torch.dtype | None = None, header: Mapping[str, str] | None = None,
) -> Path:  # fmt: skip
    """One file with everything that `load_class_net` needs; `dtype` stores the weights in less space."""
    about = {"picture_net": json.dumps(asdict(model.config)), "names": json.dumps(list(names))}
    return save_network(path, model, pixels, about | dict(header or {}), dtype)


def load_class_net(path: str | Path) -> tuple[PictureNet, Pixels, tuple[str, ...]]:
    """Loads a network of classes in float32, the `Pixels` of its data and the names of its classes."""
    tensors, header = read_tensors(path)
    if "picture_net" not in header or "pixels.mean" not in tensors:
        raise ValueError(
            f"{path} is not a PictureNet of classes; train one with python -m studies.training cifar"
        )
    config, names = PictureNetConfig(**json.loads(header["picture_net"])), json.loads(header["names"])
    tokens = (len(names), config.width)
    return *fill(path, tensors, header, lambda: PictureNet(config, ClassTokens(*tokens))), tuple(names)


def fill(
    path: str | Path, tensors: dict[str, Tensor], header: Mapping[str, str], make: Callable[[], PictureNet]
) -> tuple[PictureNet, Pixels]:
    """The network that `make` describes with the weights of a file, and the `Pixels` of its data."""
    with torch.device("meta"):
        model = make()
    c = model.config
    pixels = pop_pixels(tensors, header, c, path)
    tensors["pos_embed"] = position_embedding(c.width, c.size // 4)[None]
    load_weights(model, tensors, path)
    return model.to(memory_format=torch.channels_last), pixels  # type: ignore[call-overload]
