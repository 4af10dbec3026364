"""The model of the scenes, ready to be guided by sentences.

model = scenes()
predict = model.predict(["a red disc left of a blue square"], negative="a dark background")
x = sample(predict, CFG(4) | Cap(1.1), noise([0], model.shape), shifted(16))
pictures = model.decode(x)

A prompt may leave anything out. The reference of guidance is the empty prompt, or a negative one: what the
guided picture is to move away from. Rules that look at a third prediction get both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from ..drawing import Prompt, codes
from ..prediction import Prediction
from .checkpoint import digest
from .data import Pixels
from .scene_files import load_scene_net
from .scene_net import SceneNet

SHIPPED = Path(__file__).parent / "weights" / "scenes.safetensors"

_PIECE = 32  # samples that go through the network together: what a block makes of them stays in the cache

Sentence = str | Prompt


@dataclass(frozen=True, eq=False)
class SceneModel:
    """A flow model of 32 x 32 colour pictures that is conditioned on sentences."""

    name: str
    sha256: str
    network: SceneNet
    pixels: Pixels

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of the data."""
        c = self.network.config
        return c.channels, c.size, c.size

    @property
    def device(self) -> torch.device:
        return self.network.pos_embed.device

    def to(self, device: torch.device | str, dtype: torch.dtype = torch.float32) -> SceneModel:
        """The same model elsewhere or in another precision; guidance stays in float32."""
        return replace(self, network=self.network.to(device, dtype))

    def predict(
        self, prompts: Sequence[Sentence] | Tensor, negative: Sentence | Sequence[Sentence] | None = None
    ) -> ScenePredictor:
        """The predictor for one prompt per sample (sentences, or their (n, 6) codes).

        `negative` is one sentence for all samples or one for each. Rules that look at a third prediction
        (perp_neg) get it beside the empty prompt, all others in its place; None leaves the empty prompt only.
        """
        wanted = prompts if isinstance(prompts, Tensor) else codes(prompts)
        if negative is None:
            return ScenePredictor(self.network, wanted.to(self.device))
        if isinstance(negative, (str, Prompt)):
            negative = [negative] * len(wanted)
        if len(negative) != len(wanted):
            raise ValueError(
                f"got {len(wanted)} prompts and {len(negative)} negative ones; give one negative prompt for "
                "all samples, or one for each"
            )
        return ScenePredictor(self.network, wanted.to(self.device), codes(negative).to(self.device))

    def decode(self, data: Tensor) -> Tensor:
        """Pictures (n, 3, 32, 32) uint8; what lies outside 0 to 255 is clipped."""
        return self.pixels.pictures(data)


class ScenePredictor:
    """(x, t) -> Prediction for one prompt per sample.

    `conditional` is half the work: it states m_u = m_c, for a rule that is idle and does not read it.
    """

    def __init__(
        self, network: SceneNet, wanted: Tensor, negative: Tensor | None = None, *, both: bool = False
    ) -> None:
        self.network, self.wanted, self.negative = network, wanted, negative
        self.references = [torch.full_like(wanted, -1)] if negative is None or both else [negative]
        if negative is not None and both:
            self.references.append(negative)

    def including(self, names: tuple[str, ...]) -> ScenePredictor:
        """The same predictor, with the negative prompts beside the empty one for a rule that wants both."""
        if "negative" not in names or self.negative is None:
            return self
        return ScenePredictor(self.network, self.wanted, self.negative, both=True)

    def __call__(self, x: Tensor, t: float) -> Prediction:
        v_c, v_u, *avoided = self._velocities(x, t, [self.wanted, *self.references])
        p = Prediction.from_velocity(x.to(v_c.device), t, v_c, v_u)
        return p.beside(negative=avoided[0]) if avoided else p

    def conditional(self, x: Tensor, t: float) -> Prediction:
        (v_c,) = self._velocities(x, t, [self.wanted])
        return Prediction.from_velocity(x.to(v_c.device), t, v_c, v_c)

    @torch.no_grad()
    def _velocities(self, x: Tensor, t: float, prompts: list[Tensor]) -> tuple[Tensor, ...]:
        """In float32, one tensor for each list of prompts."""
        if len(x) != len(self.wanted):
            raise ValueError(f"got {len(x)} samples for {len(self.wanted)} prompts; give one prompt each")
        weight = self.network.stem.weight
        state = torch.cat([x.to(weight.device, weight.dtype)] * len(prompts))
        code = torch.cat(prompts)
        at = torch.full((len(code),), float(t), device=weight.device, dtype=weight.dtype)
        pieces = [slice(i, i + _PIECE) for i in range(0, len(code), _PIECE)]
        return torch.cat([self.network(state[p], at[p], code[p]) for p in pieces]).float().chunk(len(prompts))


def scenes(path: str | Path | None = None) -> SceneModel:
    """The model of the scenes that comes with the package (see its model card), or one from a file."""
    path = SHIPPED if path is None else Path(path)
    network, pixels = load_scene_net(path)
    name = "scenes" if path == SHIPPED else f"scenes:{path.name}"
    return SceneModel(name, digest(path), network, pixels)
