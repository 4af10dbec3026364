"""Training a SiT on labelled pictures: flow matching with class dropout and a running mean of the weights.

    x      (1 - t) noise + t data, with t = sigmoid(normal)
    loss   mean of |v(x, t, y) - (data - noise)|^2
    y      the label, or "no class" with probability `dropout`
    noise  a share `label_noise` of the pictures has the label of another class, the same one throughout
    ema    the running mean of the weights: what is shipped

Everything random in step k is drawn from a generator seeded by (seed, k), so that a resumed run sees the
batches an uninterrupted one would have seen.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from meancap.models.checkpoint import load_sit, save_sit
from meancap.models.data import Pictures, Pixels
from meancap.models.sit import SiT, SiTConfig

from .loop import TrainingLoop, TrainingRecipe, optimisers

SMALL = SiTConfig(size=28, channels=1, patch=4, width=128, depth=5, heads=4, classes=10, learn_sigma=False)


@dataclass(frozen=True)
class TrainConfig(TrainingRecipe):
    """The recipe: optimisers, schedule of the rate, and what of the labels is left out."""

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
    label_noise: float = 0.0
    start: str = ""  # the sha256 of weights to start from; empty for a random start


class Training(TrainingLoop):
    """A training run in a folder: `train.json`, `log.jsonl`, `state.pt`; iterate over `rows()` to run it."""

    ema: SiT

    def __init__(
        self, folder: str | Path, config: TrainConfig, pictures: Pictures, start: str | Path | None = None
    ) -> None:
        self.config, self.pictures, self.pixels = config, pictures, Pixels.of(pictures.images)
        self.labels = noisy_labels(pictures.labels, len(pictures.names), config.label_noise, config.seed)
        with torch.random.fork_rng(devices=[]):  # leaves the caller's random numbers unchanged
            torch.manual_seed(config.seed)
            model = SiT(config.model)
            torch.nn.init.normal_(model.y_embedder.embedding_table.weight, std=config.labels)
        if start is not None:
            weights, own, _ = load_sit(start)
            if weights.config != config.model or own is None:
                raise ValueError(f"{start} has other shapes than {config.model}, or makes no pixels")
            model.load_state_dict(weights.state_dict())
            self.pixels = own
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
        y = torch.where(dropped, self.config.model.classes, self.labels[chosen])
        at = t[:, None, None, None]
        return torch.lerp(noise, data, at), t, y, data - noise

    def export(self, path: Path, dtype: torch.dtype, names: tuple[str, ...]) -> Path:
        """The running mean of the weights as one file that `meancap generate` takes."""
        training = {"seed": self.config.seed, "images": self.config.images, "start": self.config.start}
        if self.config.label_noise:
            training["label_noise"] = self.config.label_noise
        header = {"training": json.dumps(training)}
        return save_sit(path, self.ema, self.pixels, names=names, dtype=dtype, header=header)


def noisy_labels(labels: Tensor, classes: int, share: float, seed: int) -> Tensor:
    """The labels, of which a share is replaced by one of the other classes; by the seed.

    With classes of one size this is what `meancap.rules.density_feedback` undoes: a label's pictures come
    with probability pi from its class and else from all classes, pi = 1 - share * classes / (classes - 1).
    """
    if not share:
        return labels
    g = torch.Generator().manual_seed(seed * 1_000_003 + 2**31)
    replaced = torch.rand(len(labels), generator=g) < share
    other = (labels + torch.randint(1, classes, labels.shape, generator=g)) % classes
    return torch.where(replaced, other, labels)
