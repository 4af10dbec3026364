"""The SiT family (Ma et al. 2024): a transformer that states the velocity of a labelled latent.

    x   (batch, channels, size, size) on the linear path x = (1 - t) noise + t data
    t   time in [0, 1], data at 1, fed to the embedder unscaled
    y   class index; `classes` stands for "no class", the reference of guidance
    v   velocity data - noise, the sign used inside this package

Parameter names are those of the released checkpoints, so that a released file loads as it is.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from meancap.prediction import Prediction, Predictor


@dataclass(frozen=True)
class SiTConfig:
    """The shape of a SiT. `learn_sigma` doubles the output channels; only the first half is velocity."""

    size: int = 32
    channels: int = 4
    patch: int = 2
    width: int = 1152
    depth: int = 28
    heads: int = 16
    classes: int = 1000
    learn_sigma: bool = True

    def __post_init__(self) -> None:
        if self.size % self.patch:
            raise ValueError(f"SiT needs a size divisible by its patch; got {self.size} and {self.patch}")
        if self.width % self.heads or self.width % 4:
            raise ValueError(
                f"SiT needs a width divisible by 4 and by its heads; got {self.width} and {self.heads} heads"
            )

    @property
    def tokens(self) -> int:
        return (self.size // self.patch) ** 2

    @property
    def out_channels(self) -> int:
        return self.channels * 2 if self.learn_sigma else self.channels


# The published sizes: name -> (depth, width, heads); each comes with patches of 2, 4 and 8.
_SIZES = {"S": (12, 384, 6), "B": (12, 768, 12), "L": (24, 1024, 16), "XL": (28, 1152, 16)}


def named(name: str, *, size: int = 32) -> SiTConfig:
    """The published configuration of a name like 'SiT-XL/2', for latents of `size` squared."""
    letter, _, patch = name.removeprefix("SiT-").partition("/")
    if letter not in _SIZES or patch not in ("2", "4", "8"):
        raise ValueError(f"known are SiT-S, -B, -L and -XL, each with /2, /4 or /8; got {name!r}")
    depth, width, heads = _SIZES[letter]
    return SiTConfig(size=size, patch=int(patch), width=width, depth=depth, heads=heads)


class SiT(nn.Module):
    """v = SiT(x, t, y)."""

    def __init__(self, config: SiTConfig) -> None:
        super().__init__()
        self.config = c = config
        self.x_embedder = _Patches(c.channels, c.width, c.patch)
        self.t_embedder = TimeEmbedder(c.width)
        self.y_embedder = _LabelEmbedder(c.classes, c.width)
        self.pos_embed = nn.Parameter(torch.empty(1, c.tokens, c.width), requires_grad=False)
        self.blocks = nn.ModuleList(_SiTBlock(c.width, c.heads) for _ in range(c.depth))
        self.final_layer = _FinalLayer(c.width, c.patch, c.out_channels)
        self.reset_parameters()

    @property
    def classes(self) -> int:
        return self.config.classes

    def reset_parameters(self) -> None:
        """The published initialisation: every block starts as the identity, the output as zero."""
        if self.pos_embed.is_meta:
            return
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                nn.init.zeros_(module.bias)
        with torch.no_grad():
            self.pos_embed.copy_(position_embedding(self.config.width, self.config.size // self.config.patch))
        nn.init.xavier_uniform_(self.x_embedder.proj.weight.view(self.config.width, -1))
        for name, p in self.named_parameters():
            if name.startswith(("t_embedder", "y_embedder")) and name.endswith("weight"):
                nn.init.normal_(p, std=0.02)
            elif "adaLN" in name or name.startswith("final_layer.linear") or name == "x_embedder.proj.bias":
                nn.init.zeros_(p)

    def forward(self, x: Tensor, t: Tensor, y: Tensor) -> Tensor:
        h = self.x_embedder(x) + self.pos_embed
        c = self.t_embedder(t) + self.y_embedder(y)
        for block in self.blocks:
            h = block(h, c)
        return self.unpatch(self.final_layer(h, c))[:, : self.config.channels]

    @property
    def piece(self) -> int:
        """How many samples a CPU passes through at once: what a block makes of them stays in the cache."""
        return _ROWS * torch.get_num_threads() // self.config.tokens

    def unpatch(self, h: Tensor) -> Tensor:
        """(batch, tokens, patch * patch * channels) back to images."""
        side, p = self.config.size // self.config.patch, self.config.patch
        h = h.reshape(-1, side, side, p, p, self.config.out_channels)
        return h.permute(0, 5, 1, 3, 2, 4).reshape(-1, self.config.out_channels, side * p, side * p)


class _Patches(nn.Module):
    """One token per patch of pixels."""

    def __init__(self, channels: int, width: int, patch: int) -> None:
        super().__init__()
        self.proj = nn.Conv2d(channels, width, patch, stride=patch)

    def forward(self, x: Tensor) -> Tensor:
        patches: Tensor = self.proj(x)
        return patches.flatten(2).transpose(1, 2).contiguous()


class TimeEmbedder(nn.Module):
    """256 cosines and sines of t, then two layers."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(256, width), nn.SiLU(), nn.Linear(width, width))

    def forward(self, t: Tensor) -> Tensor:
        first: nn.Linear = self.mlp[0]  # type: ignore[assignment]
        result: Tensor = self.mlp(_waves(t, 256).to(first.weight.dtype))
        return result


class _LabelEmbedder(nn.Module):
    """One vector per class; the last row stands for no class."""

    def __init__(self, classes: int, width: int) -> None:
        super().__init__()
        self.embedding_table = nn.Embedding(classes + 1, width)

    def forward(self, y: Tensor) -> Tensor:
        result: Tensor = self.embedding_table(y)
        return result


class _Attention(nn.Module):
    """Self-attention over the patches, with the released parameter names."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, h: Tensor) -> Tensor:
        result: Tensor = self.proj(attend(self.qkv(h), self.heads))
        return result


def attend(qkv: Tensor, heads: int) -> Tensor:
    """Self-attention of (batch, tokens, 3 width) queries, keys and values."""
    batch, tokens, width = qkv.shape
    q, k, v = qkv.view(batch, tokens, 3, heads, width // (3 * heads)).permute(2, 0, 3, 1, 4).unbind(0)
    return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, tokens, width // 3)


class _FeedForward(nn.Module):
    """Two layers with a GELU between them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(width, 4 * width)
        self.fc2 = nn.Linear(4 * width, width)

    def forward(self, h: Tensor) -> Tensor:
        result: Tensor = self.fc2(F.gelu(self.fc1(h), approximate="tanh"))
        return result


class _SiTBlock(nn.Module):
    """Attention and feed-forward, each shifted, scaled and gated by the condition (adaLN-zero)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width, elementwise_affine=False, eps=1e-6)
        self.attn = _Attention(width, heads)
        self.norm2 = nn.LayerNorm(width, elementwise_affine=False, eps=1e-6)
        self.mlp = _FeedForward(width)
        self.adaLN_modulation = nn.Sequential(nn.SiLU(), nn.Linear(width, 6 * width))

    def forward(self, h: Tensor, c: Tensor) -> Tensor:
        shift_a, scale_a, gate_a, shift_m, scale_m, gate_m = self.adaLN_modulation(c)[:, None].chunk(6, dim=2)
        h = h + gate_a * self.attn(modulate(self.norm1(h), shift_a, scale_a))
        result: Tensor = h + gate_m * self.mlp(modulate(self.norm2(h), shift_m, scale_m))
        return result


class _FinalLayer(nn.Module):
    """From tokens back to patches of pixels."""

    def __init__(self, width: int, patch: int, channels: int) -> None:
        super().__init__()
        self.norm_final = nn.LayerNorm(width, elementwise_affine=False, eps=1e-6)
        self.linear = nn.Linear(width, patch * patch * channels)
        self.adaLN_modulation = nn.Sequential(nn.SiLU(), nn.Linear(width, 2 * width))

    def forward(self, h: Tensor, c: Tensor) -> Tensor:
        shift, scale = self.adaLN_modulation(c)[:, None].chunk(2, dim=2)
        result: Tensor = self.linear(modulate(self.norm_final(h), shift, scale))
        return result


def modulate(h: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    """Scale and shift of adaptive layer norm."""
    return h * (1 + scale) + shift


def _waves(t: Tensor, count: int) -> Tensor:
    """cos and sin of t at count / 2 frequencies, from 1 down to almost 1e-4."""
    rates = torch.exp(-math.log(1e4) * torch.arange(count // 2, device=t.device) / (count // 2))
    angles = t.float()[:, None] * rates
    return torch.cat([angles.cos(), angles.sin()], dim=1)


def position_embedding(width: int, side: int) -> Tensor:
    """Fixed sines and cosines: the first half of the width tells the column, the second half the row."""
    rates = 1.0 / 10000 ** (torch.arange(width // 4, dtype=torch.float64) / (width // 4))
    angles = torch.arange(side, dtype=torch.float64)[:, None] * rates
    line = torch.cat([angles.sin(), angles.cos()], dim=1)
    column = line[None].expand(side, side, -1)
    row = line[:, None].expand(side, side, -1)
    return torch.cat([column, row], dim=2).reshape(side * side, width).float()


_ROWS = 1250  # tokens in a piece, for each thread: enough for a matrix product, few enough for a cache


class NetworkPredictor(Predictor):
    """(x, t) -> Prediction of a network that takes one condition per sample.

    `conditional` is half the work: it states m_u = m_c, for a rule that is idle and does not read it.
    `negative` is the reference of guidance in place of the empty condition; `including` has both.
    `channels` guides only that many leading channels.
    """

    def __init__(
        self,
        network: Any,
        wanted: Tensor,
        empty: int,
        negative: Tensor | None = None,
        channels: int | None = None,
    ) -> None:
        self.network, self.wanted, self.negative, self.channels = network, wanted, negative, channels
        self.empty = torch.full_like(wanted, empty)
        self.rows = [wanted, self.empty if negative is None else negative]
        self.calls: list[float] = []  # the time of every evaluation, shared with what `including` returns
        self.tick: Callable[[float], object] = float  # is told each of these times

    def including(self, names: tuple[str, ...]) -> Self:
        """The same predictor, with the negative condition beside the empty one for a rule that reads it."""
        if "negative" not in names or self.negative is None:
            return self
        both = copy.copy(self)
        both.rows = [self.wanted, self.empty, self.negative]
        return both

    def __call__(self, x: Tensor, t: float) -> Prediction:
        v_c, *others = self._checked(x, t, len(self.rows)).chunk(len(self.rows))
        if self.channels is not None:
            # As in the reference sampler: the other channels keep the conditional prediction.
            others = [torch.cat([v[:, : self.channels], v_c[:, self.channels :]], dim=1) for v in others]
        p = Prediction.from_velocity(x.to(v_c.device), t, v_c, others[0])
        return p if len(others) == 1 else p.beside(negative=others[1])

    def conditional(self, x: Tensor, t: float) -> Prediction:
        v_c = self._checked(x, t, 1)
        return Prediction.from_velocity(x.to(v_c.device), t, v_c, v_c)

    @torch.no_grad()
    def _checked(self, x: Tensor, t: float, count: int) -> Tensor:
        if len(x) != len(self.wanted):
            raise ValueError(f"got {len(x)} samples for {len(self.wanted)} conditions; give one each")
        self.calls.append(float(t))
        self.tick(t)
        return self.velocities(x, t, count)

    def velocities(self, x: Tensor, t: float, count: int) -> Tensor:
        """In float32, under the first `count` of `rows`, one after the other.

        One doubled batch; on a CPU pieces, each with the bits of a plain call.
        """
        network, weight, rows = self.network, self.network.pos_embed, self.rows[:count]
        x = x.to(weight.device, weight.dtype)
        at = torch.full((len(x) * count,), float(t), device=weight.device)
        if weight.device.type != "cpu":
            both: Tensor = network(torch.cat([x] * count), at, torch.cat(rows))
            return both.float()
        cuts = pieces(len(x), network.piece)
        return torch.cat([network(x[p], at[p], row[p]) for row in rows for p in cuts]).float()


def pieces(samples: int, most: int) -> list[slice]:
    """Neighbouring samples, in pieces of nearly one size."""
    count = max(1, -(-samples // max(1, most)))
    ends = [i * samples // count for i in range(count + 1)]
    return [slice(low, high) for low, high in pairwise(ends)]


@dataclass(frozen=True, eq=False)
class FlowModel:
    """A network with its name and the hash of its weights."""

    name: str
    sha256: str
    network: Any

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of the data."""
        c = self.network.config
        return c.channels, c.size, c.size

    @property
    def device(self) -> torch.device:
        device: torch.device = self.network.pos_embed.device
        return device

    @property
    def dtype(self) -> torch.dtype:
        dtype: torch.dtype = self.network.pos_embed.dtype
        return dtype

    def to(self, device: torch.device | str, dtype: torch.dtype = torch.float32) -> Self:
        """The same model elsewhere or in another precision; guidance stays in float32."""
        return replace(self, network=self.network.to(device, dtype))
