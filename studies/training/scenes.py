"""Training the network of the scenes: flow matching on pictures drawn on the way, with clause dropout.

    x        (1 - t) noise + t data, with t = sigmoid(normal)
    loss     mean of |v(x, t, code) - (data - noise)|^2
    code     the scene's six words; with probability `dropout` all are left open; else, with probability
             `partial`, each is left open with probability 1/2
    wrong    a share of the captions that belong to another scene of the law
    ema      the running mean of the weights: what is shipped

Scenes, words and noise of step k are drawn from a generator seeded by (seed, k): no picture is seen twice,
and a resumed run sees the batches an uninterrupted one would have seen.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from meancap.models.data import Pixels
from meancap.scenes import ATTRIBUTES, SceneNet, SceneNetConfig, draw, load_scene_net, render, save_scene_net

from .loop import TrainingLoop, TrainingRecipe, optimisers


@dataclass(frozen=True)
class SceneTrainConfig(TrainingRecipe):
    """The recipe: optimisers, schedule of the rate, and what of the captions is left out."""

    images: int
    model: SceneNetConfig = field(default_factory=SceneNetConfig)
    batch: int = 32
    rate: float = 0.005  # of Muon
    adam: float = 0.4  # of AdamW, as a share of it
    warmup: int = 100
    cooling: float = 0.5
    dropout: float = 0.1
    partial: float = 0.25
    wrong: float = 0.0
    # Shapes and places are decided while the state is mostly noise: half of the times lie below 0.27.
    time_mean: float = -1.0
    time_spread: float = 1.3
    ema: float = 0.998
    seed: int = 0
    start: str = ""  # the sha256 of weights to start from; empty for a random start


class SceneTraining(TrainingLoop):
    """A training run in a folder; iterate over `rows()` to run it. `start` names weights to go on from."""

    ema: SceneNet

    def __init__(self, folder: str | Path, config: SceneTrainConfig, start: str | Path | None = None) -> None:
        self.config = config
        if start is None:
            with torch.random.fork_rng(devices=[]):  # leaves the caller's random numbers unchanged
                torch.manual_seed(config.seed)
                model, self.pixels = SceneNet(config.model), scene_pixels()
        else:
            model, self.pixels = load_scene_net(start)
            for name, p in model.named_parameters():
                p.requires_grad_(name != "pos_embed")
        model = model.to(memory_format=torch.channels_last).train()  # type: ignore[call-overload]
        super().__init__(folder, config, model, optimisers(model, config.rate, config.adam, hidden_weights))

    def batch(self, step: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """State, time, prompt and velocity of one batch."""
        g = torch.Generator().manual_seed(self.config.seed * 1_000_003 + step)
        c, size = self.config, self.config.batch
        scenes = draw(size, g)
        t = (c.time_mean + c.time_spread * torch.randn(size, generator=g)).sigmoid()
        data = self.pixels.data(render(scenes) * 255)
        noise = torch.randn(data.shape, generator=g)
        code = self.caption(scenes.codes(), g)
        at = t[:, None, None, None]
        return torch.lerp(noise, data, at), t, code, data - noise

    def caption(self, code: Tensor, g: torch.Generator) -> Tensor:
        """What a caption says of each scene: all six words, some, none, or those of another scene."""
        c, size = self.config, len(code)
        counts = torch.tensor(list(ATTRIBUTES.values()))
        other = (torch.rand(code.shape, generator=g) * counts).long()
        lied = torch.rand(size, 1, generator=g) < c.wrong
        none, some = torch.rand(2, size, 1, generator=g)
        unsaid = (some < c.partial) & (torch.rand(code.shape, generator=g) < 0.5)
        return torch.where((none < c.dropout) | unsaid, -1, torch.where(lied, other, code))

    def export(self, path: Path, dtype: torch.dtype = torch.float16) -> Path:
        """The running mean of the weights as one file that `meancap.models.scenes` takes."""
        return save_scene_net(path, self.ema, self.pixels, dtype=dtype)


def hidden_weights(name: str, p: Tensor) -> bool:
    """What Muon trains: the transformer's matrices and the convolutions inside the blocks."""
    inner = name.startswith(("blocks.", "fine_", "middle_"))
    return inner and p.dim() in (2, 4) and "adaLN" not in name


@cache
def scene_pixels(count: int = 20_000, seed: int = 2026) -> Pixels:
    """Centre and scale of the law, from that many renders: a mean for each channel, one spread."""
    g = torch.Generator().manual_seed(seed)
    pictures = torch.cat([render(draw(1000, g)) for _ in range(count // 1000)])
    mean = pictures.double().mean((0, 2, 3), keepdim=True)[0]
    spread = float((pictures.double() - mean).square().mean().sqrt())
    return Pixels(mean.float(), spread)
