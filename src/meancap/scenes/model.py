"""The model of the scenes: a flow network of 32 x 32 colour pictures that is guided by sentences.

    model = scenes()
    predict = model.predict(["a red disc left of a blue square"], negative="a dark background")
    x = sample(predict, CFG(4) | Cap(1.1), noise([0], model.shape), shifted(16))
    pictures = model.decode(x)

A prompt may leave anything out. The reference of guidance is the empty prompt, or a negative one: what the
guided picture moves away from. Rules that need a third prediction get both.

The network, with convolutions for details and a transformer between them for the composition:

    x     (batch, 3, 32, 32) on the linear path x = (1 - t) noise + t data
    t     time in [0, 1], data at 1
    code  (batch, 6) the prompt, in the order of `ATTRIBUTES`; -1 leaves an attribute open
    v     velocity data - noise

A token for each object is made from its shape, its colour and its place together, so that what belongs to
one object is bound before the transformer sees it; the third token is the background. The tokens stand in the
context of every transformer block, and their sum joins the time in every modulation.

For data of unit variance the best linear guess of v is (2t - 1) / (t^2 + (1 - t)^2) x, and what it leaves has
the variance 1 / (t^2 + (1 - t)^2); the network predicts the rest in those units.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..files import read_tensors, sha256_of
from ..models.checkpoint import load_weights, save_network
from ..models.data import Pixels
from ..models.sit import FlowModel, NetworkPredictor, TimeEmbedder, attend, modulate, position_embedding
from .law import BACKGROUNDS, COLOURS, PLACES, SHAPES
from .prompt import Prompt, codes

SHIPPED = Path(__file__).parent / "weights" / "scenes.safetensors"

_Sentence = str | Prompt


@dataclass(frozen=True, eq=False)
class SceneModel(FlowModel):
    """A flow model of 32 x 32 colour pictures that is conditioned on sentences."""

    network: SceneNet
    pixels: Pixels

    def predict(
        self, prompts: Sequence[_Sentence] | Tensor, negative: _Sentence | Sequence[_Sentence] | None = None
    ) -> NetworkPredictor:
        """The predictor for one prompt per sample (sentences, or their (n, 6) codes).

        `negative` is one sentence for all samples or one for each. Rules that need a third prediction
        (perp_neg) get it beside the empty prompt, all others in its place; None leaves the empty prompt only.
        """
        wanted = prompts if isinstance(prompts, Tensor) else codes(prompts)
        if negative is None:
            return NetworkPredictor(self.network, wanted.to(self.device), -1)
        if isinstance(negative, (str, Prompt)):
            negative = [negative] * len(wanted)
        if len(negative) != len(wanted):
            raise ValueError(
                f"got {len(wanted)} prompts and {len(negative)} negative ones; give one negative prompt for "
                "all samples, or one for each"
            )
        return NetworkPredictor(self.network, wanted.to(self.device), -1, codes(negative).to(self.device))

    def decode(self, data: Tensor) -> Tensor:
        """Pictures (n, 3, 32, 32) uint8; what lies outside 0 to 255 is clipped."""
        return self.pixels.pictures(data)


def scenes(path: str | Path | None = None) -> SceneModel:
    """The model of the scenes that comes with the package (see its model card), or one from a file."""
    path = SHIPPED if path is None else Path(path)
    network, pixels = load_scene_net(path)
    name = "scenes" if path == SHIPPED else f"scenes:{path.name}"
    return SceneModel(name, sha256_of(path), network, pixels)


def save_scene_net(
    path: str | Path, model: SceneNet, pixels: Pixels, *, dtype: torch.dtype | None = None
) -> Path:
    """One file with everything that `load_scene_net` needs; `dtype` stores the weights in less space."""
    return save_network(path, model, pixels, {"scene_net": json.dumps(asdict(model.config))}, dtype)


def load_scene_net(path: str | Path) -> tuple[SceneNet, Pixels]:
    """Loads the network in float32, and the `Pixels` that convert its output to pictures."""
    tensors, header = read_tensors(path)
    if "scene_net" not in header or "pixels.mean" not in tensors:
        raise ValueError(f"{path} is not a network of the scenes; train one with python -m studies.training")
    config = SceneNetConfig(**json.loads(header["scene_net"]))
    pixels = Pixels(tensors.pop("pixels.mean").float(), float(header["pixels.std"]))
    with torch.device("meta"):
        model = SceneNet(config)
    tensors["pos_embed"] = position_embedding(config.width, config.size // 4)[None]
    load_weights(model, tensors, path)
    return model.to(memory_format=torch.channels_last), pixels  # type: ignore[call-overload]


@dataclass(frozen=True)
class SceneNetConfig:
    """Channels at 32 and 16 pixels, convolution blocks there on each side, and the transformer at 8 x 8."""

    fine: int = 24
    middle: int = 48
    width: int = 128
    depth: int = 4
    heads: int = 4
    convolutions: int = 1
    size: int = 32
    channels: int = 3


class SceneNet(nn.Module):
    """v = SceneNet(x, t, code)."""

    piece = 32  # samples that a CPU passes through at once: what a block makes of them stays in the cache

    def __init__(self, config: SceneNetConfig) -> None:
        super().__init__()
        self.config = c = config
        side = c.size // 4
        self.prompt = _PromptEmbedder(c.width)
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

    def forward(self, x: Tensor, t: Tensor, code: Tensor) -> Tensor:
        tokens = self.prompt(code)
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
        """The transformer over 8 x 8 patches and the tokens of the prompt."""
        batch, width, high, wide = h.shape
        h = h.permute(0, 2, 3, 1).reshape(batch, high * wide, width) + self.pos_embed
        h = torch.cat([h, tokens], dim=1)
        for block in self.blocks:
            h = block(h, c)
        return h[:, : high * wide].reshape(batch, high, wide, width).permute(0, 3, 1, 2)


class _PromptEmbedder(nn.Module):
    """Three tokens: an object each, from its words together, and the background."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.shape_words = nn.Embedding(len(SHAPES) + 1, width)
        self.colour_words = nn.Embedding(len(COLOURS) + 1, width)
        self.place_words = nn.Embedding(len(PLACES) + 1, width)
        self.background_words = nn.Embedding(len(BACKGROUNDS) + 1, width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.SiLU(), nn.Linear(2 * width, width))

    def forward(self, code: Tensor) -> Tensor:
        place = code[:, 4]
        # Left and right, above and below: seen from the other object the place is its opposite.
        opposite = torch.where(place < 0, place, place ^ 1)
        words = [
            self.shape_words(code[:, 2 * k] + 1)
            + self.colour_words(code[:, 2 * k + 1] + 1)
            + self.place_words(p + 1)
            for k, p in enumerate((place, opposite))
        ]
        tokens: Tensor = self.mlp(torch.stack([*words, self.background_words(code[:, 5] + 1)], dim=1))
        return tokens


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
