"""Training a SiT on labelled pictures: flow matching with class dropout and a running mean of the weights.

    x      (1 - t) noise + t data, with t = sigmoid(normal)
    loss   mean of |v(x, t, y) - (data - noise)|^2
    y      the label, or "no class" with probability `dropout`
    ema    the running mean of the weights: what is shipped

Everything random in step k is drawn from a generator seeded by (seed, k), so that a resumed run sees the
batches an uninterrupted one would have seen.
"""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor

from ..files import whole, write_whole
from ..models.checkpoint import save_sit
from ..models.data import Pictures, Pixels
from ..models.optimise import optimisers
from ..models.sit import SiT, SiTConfig
from .ledger import RunRefused, differences

SMALL = SiTConfig(size=28, channels=1, patch=4, width=128, depth=5, heads=4, classes=10, learn_sigma=False)


def small_model(pictures: Pictures, width: int | None = None, depth: int | None = None) -> SiTConfig:
    """The small network for pictures of this size and these classes; heads are 32 wide."""
    _, channels, size, _ = pictures.images.shape
    width = width or SMALL.width
    return replace(
        SMALL,
        size=size,
        channels=channels,
        classes=len(pictures.names),
        width=width,
        depth=depth or SMALL.depth,
        heads=max(1, width // 32),
    )


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


@dataclass(frozen=True)
class LogLine:
    """One line of the log: means over the steps since the line before."""

    step: int
    images: int
    loss: float
    rate: float
    seconds: float


class Training:
    """A training run in a folder: `train.json`, `log.jsonl`, `state.pt`; iterate over `rows()` to run it."""

    def __init__(self, folder: str | Path, config: TrainConfig, pictures: Pictures) -> None:
        self.folder, self.config = Path(folder), config
        self.folder.mkdir(parents=True, exist_ok=True)
        self.pixels = Pixels.of(pictures.images)
        self.pictures = pictures
        with torch.random.fork_rng(devices=[]):  # the caller's own random numbers go on as they were
            torch.manual_seed(config.seed)
            self.model = SiT(config.model)
            torch.nn.init.normal_(self.model.y_embedder.embedding_table.weight, std=config.labels)
        self.ema = copy.deepcopy(self.model).requires_grad_(False)
        self.optimisers = optimisers(self.model, config.rate, config.adam)
        self.step, self.seconds = 0, 0.0
        self.resume()

    def resume(self) -> None:
        """Takes up the last saved state, if there is one, and drops log lines written after it."""
        recipe, state = self.folder / "train.json", self.folder / "state.pt"
        wanted = json.loads(json.dumps(asdict(self.config)))
        if recipe.is_file() and state.is_file():
            _need_same(json.loads(recipe.read_text()), wanted, self.folder)
            saved = torch.load(state, weights_only=True)
            self.model.load_state_dict(saved["model"])
            self.ema.load_state_dict(saved["ema"])
            for optimiser, value in zip(self.optimisers, saved["optimisers"], strict=True):
                optimiser.load_state_dict(value)
            self.step, self.seconds = saved["step"], saved["seconds"]
        write_whole(recipe, json.dumps(wanted, indent=1))
        kept = [row for row in read_log(self.folder) if row.step <= self.step]
        write_whole(self.folder / "log.jsonl", "".join(map(_line, kept)))

    def rows(self, every: int = 50, save_seconds: float = 120.0) -> Iterator[LogLine]:
        """Trains to the end, yielding a log line every `every` steps and saving at least so often."""
        losses: list[Tensor] = []
        began, saved = time.monotonic() - self.seconds, time.monotonic()
        while self.step < self.config.steps:
            losses.append(self.one_step())
            self.seconds = time.monotonic() - began
            last = self.step == self.config.steps
            if self.step % every == 0 or last:
                loss = float(torch.stack(losses).mean())
                rate = self.config.rate_at(self.step - 1)
                row = LogLine(self.step, self.step * self.config.batch, loss, rate, round(self.seconds, 1))
                losses.clear()
                with (self.folder / "log.jsonl").open("a") as log:
                    log.write(_line(row))
                yield row
            if last or time.monotonic() - saved > save_seconds:
                self.save()
                saved = time.monotonic()

    def one_step(self) -> Tensor:
        """One batch; returns its loss."""
        x, t, y, v = self.batch(self.step)
        loss: Tensor = (self.model(x, t, y) - v).square().mean()
        torch.autograd.backward(loss)
        share = self.config.rate_at(self.step) / self.config.rate
        for optimiser in self.optimisers:
            for group in optimiser.param_groups:
                group["lr"] = share * group["full"]
            optimiser.step()
            optimiser.zero_grad()
        self.step += 1
        # A young mean must forget its random start: the window grows with the run up to 1 / (1 - ema).
        keep = min(self.config.ema, (1 + self.step) / (10 + self.step))
        with torch.no_grad():
            for slow, fast in zip(self.ema.parameters(), self.model.parameters(), strict=True):
                slow.lerp_(fast, 1 - keep)
        return loss.detach()

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

    def save(self) -> None:
        """Everything that a later process needs to go on."""
        state = {
            "model": self.model.state_dict(),
            "ema": self.ema.state_dict(),
            "optimisers": [o.state_dict() for o in self.optimisers],
            "step": self.step,
            "seconds": self.seconds,
        }
        with whole(self.folder / "state.pt") as part:
            torch.save(state, part)

    def export(self, path: Path, dtype: torch.dtype, names: tuple[str, ...]) -> Path:
        """The running mean of the weights as one file that `meancap generate` takes."""
        return save_sit(path, self.ema, self.pixels, names=names, dtype=dtype)


def read_log(folder: str | Path) -> list[LogLine]:
    """The whole lines of a training log; a line torn by a kill is left out."""
    path = Path(folder) / "log.jsonl"
    lines = path.read_text().splitlines(keepends=True) if path.is_file() else []
    return [LogLine(**json.loads(line)) for line in lines if line.endswith("\n")]


def _line(row: LogLine) -> str:
    return json.dumps(asdict(row)) + "\n"


def _need_same(old: dict[str, object], new: dict[str, object], folder: Path) -> None:
    """Only the length of a run may change when it is taken up again."""
    fixed = [key for key in new if key not in ("images", "cooling")]
    changed = differences({key: old.get(key) for key in fixed}, {key: new[key] for key in fixed})
    if changed:
        raise RunRefused(f"{folder} was begun with another recipe: {'; '.join(changed)}; give another folder")
