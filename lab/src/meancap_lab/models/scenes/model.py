"""The model of the scenes: a flow network of 32 x 32 colour pictures that is guided by sentences.

    model = scenes()
    predict = model.predict(["a red disc left of a blue square"], negative="a dark background")
    x = sample(predict, CFG(4) | Cap(1.1), noise([0], model.shape), shifted(16))
    pictures = model.decode(x)

A prompt may leave anything out. The reference of guidance is the empty prompt, or a negative one: what the
guided picture moves away from. Rules that need a third prediction get both.

The network is a `PictureNet` whose condition is a code (batch, 6), the prompt in the order of `ATTRIBUTES`;
-1 leaves an attribute open. A token for each object is made from its shape, its colour and its place
together, so that what belongs to one object is bound before the transformer sees it; the third token is the
background.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from meancap.files import sha256_of

from ...tensor_files import read_tensors
from ..checkpoint import save_network
from ..data import Pixels
from ..picture_net import PictureNet, PictureNetConfig, fill, token_layers
from ..sit import FlowModel, NetworkPredictor
from .law import BACKGROUNDS, COLOURS, PLACES, SHAPES
from .prompt import Prompt, codes

SHIPPED = Path(__file__).parent / "weights" / "scenes.safetensors"

_Sentence = str | Prompt


@dataclass(frozen=True, eq=False)
class SceneModel(FlowModel):
    """A flow model of 32 x 32 colour pictures that is conditioned on sentences."""

    network: PictureNet
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
    path: str | Path, model: PictureNet, pixels: Pixels, *, dtype: torch.dtype | None = None
) -> Path:
    """One file with everything that `load_scene_net` needs; `dtype` stores the weights in less space."""
    return save_network(path, model, pixels, {"scene_net": json.dumps(asdict(model.config))}, dtype)


def load_scene_net(path: str | Path) -> tuple[PictureNet, Pixels]:
    """Loads the network in float32, and the `Pixels` that convert its output to pictures."""
    tensors, header = read_tensors(path)
    if "scene_net" not in header or "pixels.mean" not in tensors:
        raise ValueError(f"{path} is not a network of the scenes; train one with python -m studies.training")
    config = PictureNetConfig(**json.loads(header["scene_net"]))
    return fill(path, tensors, header, lambda: scene_net(config))


def scene_net(config: PictureNetConfig) -> PictureNet:
    """The network of sentences: the initial weights depend only on torch's seed."""
    return PictureNet(config, SentenceTokens(config.width))


class SentenceTokens(nn.Module):
    """Three tokens: an object each, from its words together, and the background."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.shape_words = nn.Embedding(len(SHAPES) + 1, width)
        self.colour_words = nn.Embedding(len(COLOURS) + 1, width)
        self.place_words = nn.Embedding(len(PLACES) + 1, width)
        self.background_words = nn.Embedding(len(BACKGROUNDS) + 1, width)
        self.mlp = token_layers(width)

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
