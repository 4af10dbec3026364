"""Training a SiT on labelled pictures: flow matching with class dropout and a running mean of the weights.

    x      (1 - t) noise + t data, with t = sigmoid(normal)
    loss   mean of |v(x, t, y) - (data - noise)|^2
    y      the label, or "no class" with probability `dropout`
    ema    the running mean of the weights: what is shipped

Everything random in step k is drawn from a generator seeded by (seed, k), so that a resumed run sees the
batches an uninterrupted one would have seen.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from ..models.checkpoint import save_sit
from ..models.data import Pictures, Pixels
from ..models.optimise import optimisers
from ..models.sit import SiT, SiTConfig
from .loop import LogLine, TrainingLoop, read_log

__all__ = ["SMALL", "LogLine", "TrainConfig", "Training", "read_log"]

SMALL = SiTConfig(size=28, channels=1, patch=4, width=128, depth=5, heads=4, classes=10, learn_sigma=False)


@dataclass(frozen=True)
class TrainConfig:
    """The recipe. `rate` warms up, stays, and falls to zero on a straight line over the last `cooling`."""

    images: int
    data: str = "fashion"
    model: SiTConfig = field(default_factory=lambda: SMALL)
    batch: int = 64
    rate: float = 0.01  # of Muon
    adam: float = 0.3  # of AdamW, as a share of it
    warmup: int = 200
    cooling: float = 0.3
    dropout: float = 0.1
    # Standard deviation of fresh label embeddings. Beside what a network learns first the published 0.02 is
    # so small that a short run hardly learns its classes; 0.5 teaches them from the start.
    labels: float = 0.5
    ema: float = 0.999
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("images", "batch", "warmup", "rate", "adam", "labels"):
            if not getattr(self, name) > 0:
                raise ValueError(f"training needs {name} above 0; got {getattr(self, name)}")
        for name in ("dropout", "ema", "cooling"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"training needs {name} from 0 to below 1; got {getattr(self, name)}")
        if self.seed < 0:
            raise ValueError(f"training needs a seed of 0 or more; got {self.seed}")

    @property
    def steps(self) -> int:
        return -(-self.images // self.batch)

    def rate_at(self, step: int) -> float:
        """The learning rate of step `step`, counted from 0."""
        left = (self.steps - step) / max(1.0, self.cooling * self.steps)
        return self.rate * min(1.0, (step + 1) / self.warmup, left)


class Training(TrainingLoop):
    """A training run in a folder: `train.json`, `log.jsonl`, `state.pt`; iterate over `rows()` to run it."""

    ema: SiT

    def __init__(self, folder: str | Path, config: TrainConfig, pictures: Pictures) -> None:
        self.config, self.pictures, self.pixels = config, pictures, Pixels.of(pictures.images)
        with torch.random.fork_rng(devices=[]):  # leaves the caller's random numbers unchanged
            torch.manual_seed(config.seed)
            model = SiT(config.model)
            torch.nn.init.normal_(model.y_embedder.embedding_table.weight, std=config.labels)
        super().__init__(folder, config, model, optimisers(model, config.rate, config.adam))

    def batch(self, step: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """State, time, label and velocity of one batch."""
        g = torch.Generator().manual_seed(self.config.seed * 1_000_003 + step)
        size = self.config.batch
        chosen = torch.randint(len(self.pictures.images), (size,), generator=g)
        dropped = torch.rand(size, generator=g) < self.config.dropout
        t = torch.randn(size, generator=g).sigmoid()
        data = self.pixels.data(self.pictures.images[chosen])
        noise = torch.randn(data.shape, generator=g)
        y = torch.where(dropped, self.config.model.classes, self.pictures.labels[chosen])
        at = t[:, None, None, None]
        return torch.lerp(noise, data, at), t, y, data - noise

    def export(self, path: Path, dtype: torch.dtype, names: tuple[str, ...]) -> Path:
        """The running mean of the weights as one file that `meancap generate` takes."""
        return save_sit(path, self.ema, self.pixels, names=names, dtype=dtype)
