"""Flow matching in a folder that can be stopped at any time, on garments, scenes and CIFAR-10.

    x      (1 - t) noise + t data, with t = sigmoid(normal)
    loss   mean of |v(x, t, condition) - (data - noise)|^2
    ema    the running mean of the weights: what is shipped

    train.json   the recipe; a folder of another recipe raises an error, a longer run does not
    log.jsonl    one line for every 50 steps
    state.pt     weights, their running mean, the optimisers and the log, saved with each line

Everything random in step k is drawn from a generator seeded by (seed, k), so that a resumed run sees the
batches an uninterrupted one would have seen. Muon trains the hidden matrices, AdamW the rest. Muon's momentum
is a running sum of gradients, looked at half a step ahead (Nesterov); its update is the nearest matrix with
orthonormal rows or columns, by five Newton-Schulz iterations in which only the singular values change (Jordan
et al. 2024).
"""

from __future__ import annotations

import copy
import json
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from meancap.files import sha256_of, write_whole, writing
from meancap_lab.models.checkpoint import load_sit, save_sit
from meancap_lab.models.data import Pictures, Pixels
from meancap_lab.models.picture_net import (
    ClassTokens,
    PictureNet,
    PictureNetConfig,
    load_class_net,
    save_class_net,
)
from meancap_lab.models.scenes import ATTRIBUTES, draw, load_scene_net, render, save_scene_net, scene_net
from meancap_lab.models.sit import SiT, SiTConfig
from studies.common import need_same, option

# The standard deviation of fresh label embeddings. Beside what a network learns first the published 0.02 is
# so small that a short run hardly learns its classes; 0.5 teaches them from the start.
LABEL_SPREAD = 0.5
PARTIAL = 0.25  # the share of scenes' captions of which each word is left open with probability 1/2


@dataclass(frozen=True)
class Recipe:
    """The rate rises for `warmup` steps, stays, and falls linearly to zero over the last `cooling`."""

    model: SiTConfig | PictureNetConfig
    images: int = option(0, "pictures to see")
    batch: int = option(64, "pictures of one step")
    rate: float = option(0.01, "learning rate of Muon")
    adam: float = option(0.3, "learning rate of AdamW, as a share of Muon's")
    warmup: int = option(200, "steps until the full rate")
    cooling: float = option(0.3, "share of the steps in which the rate falls")
    dropout: float = option(0.1, "share of examples without their condition")
    wrong: float = option(0.0, "share of wrong labels or captions")
    time_mean: float = option(0.0, "mean of the normal behind t")
    time_spread: float = option(1.0, "its standard deviation")
    ema: float = option(0.999, "what the running mean keeps in one step")
    seed: int = option(0, "of weights and batches")
    precision: str = option("float32", "of matrix products: float32, or bfloat16 with float32 weights")
    start: str = ""  # the sha256 of weights to start from; empty for a random start

    @property
    def steps(self) -> int:
        return -(-self.images // self.batch)

    def rate_at(self, step: int) -> float:
        """The learning rate of step `step`, counted from 0."""
        left = (self.steps - step) / max(1.0, self.cooling * self.steps)
        return self.rate * min(1.0, (step + 1) / self.warmup, left)


SIT = SiTConfig(size=28, channels=1, patch=4, width=128, depth=5, heads=4, classes=10, learn_sigma=False)
# Shapes and places are decided while the state is mostly noise: half of the times lie below 0.27.
RECIPES = {
    "fashion": Recipe(SIT, images=600_000),
    "scenes": Recipe(
        PictureNetConfig(), images=250_000, batch=32, rate=0.005, adam=0.4, warmup=100, cooling=0.5,
        time_mean=-1.0, time_spread=1.3, ema=0.998,
    ),
    "cifar": Recipe(
        PictureNetConfig(fine=32, middle=64, width=192, depth=6), images=3_000_000, batch=128, rate=0.006,
        adam=0.4, cooling=0.35, time_mean=-0.3, time_spread=1.1, ema=0.9995, precision="bfloat16",
    ),
}  # fmt: skip


class Training(ABC):
    """A training run; iterate over `rows()` to run it."""

    def __init__(self, folder: Path, recipe: Recipe, model: nn.Module, start: Path | None) -> None:
        self.folder, self.model = folder, model.train()
        self.recipe = recipe if start is None else replace(recipe, start=sha256_of(start))
        self.ema = copy.deepcopy(model).requires_grad_(False)
        self.optimisers = _optimisers(model, recipe)
        self.step, self.seconds = 0, 0.0
        self.log: list[dict[str, float]] = []
        self._resume()

    @abstractmethod
    def examples(self, g: torch.Generator) -> tuple[Tensor, Tensor]:
        """Data and conditions of one batch."""

    @abstractmethod
    def export(self, path: Path) -> Path:
        """The running mean of the weights in float16, as one file that the package reads."""

    def rows(self, every: int = 50) -> Iterator[dict[str, float]]:
        """Trains to the end; logs, saves and yields a line every `every` steps."""
        losses: list[Tensor] = []
        clock = time.monotonic()
        began = clock - self.seconds
        while self.step < self.recipe.steps:
            losses.append(self.one_step())
            if self.step % every == 0 or self.step == self.recipe.steps:
                self.seconds = round(time.monotonic() - began, 1)
                rate, loss = self.recipe.rate_at(self.step - 1), float(torch.stack(losses).mean())
                row = {"step": self.step, "images": self.step * self.recipe.batch, "loss": loss, "rate": rate}
                speed, clock = every * self.recipe.batch / (time.monotonic() - clock), time.monotonic()
                left = (self.recipe.images - row["images"]) / speed
                row |= {
                    "seconds": self.seconds,
                    "images_per_second": round(speed, 1),
                    "minutes_left": round(left / 60, 1),
                }
                self.log.append(row)
                losses.clear()
                self._save()
                yield self.log[-1]

    def one_step(self) -> Tensor:
        """One batch; returns its loss."""
        c, g = self.recipe, torch.Generator().manual_seed(self.recipe.seed * 1_000_003 + self.step)
        data, condition = self.examples(g)
        t = (c.time_mean + c.time_spread * torch.randn(c.batch, generator=g)).sigmoid()
        noise = torch.randn(data.shape, generator=g)
        x = torch.lerp(noise, data, t[:, None, None, None])
        with torch.autocast("cpu", torch.bfloat16, enabled=c.precision == "bfloat16"):
            v = self.model(x, t, condition)
        loss: Tensor = (v.float() - (data - noise)).square().mean()
        torch.autograd.backward(loss)
        share = c.rate_at(self.step) / c.rate
        for optimiser in self.optimisers:
            for group in optimiser.param_groups:
                group["lr"] = share * group["full"]
            optimiser.step()
            optimiser.zero_grad()
        self.step += 1
        # A young mean must forget its random start: the window grows with the run up to 1 / (1 - ema).
        keep = min(c.ema, (1 + self.step) / (10 + self.step))
        with torch.no_grad():
            for slow, fast in zip(self.ema.parameters(), self.model.parameters(), strict=True):
                slow.lerp_(fast, 1 - keep)
        return loss.detach()

    def _save(self) -> None:
        state = {
            "model": self.model.state_dict(),
            "ema": self.ema.state_dict(),
            "optimisers": [o.state_dict() for o in self.optimisers],
            "log": self.log,
        }
        with writing(self.folder / "state.pt") as temporary:
            torch.save(state, temporary)
        write_whole(self.folder / "log.jsonl", "".join(json.dumps(row) + "\n" for row in self.log))

    def _resume(self) -> None:
        """Takes up the last saved state, if there is one."""
        self.folder.mkdir(parents=True, exist_ok=True)
        recipe, state = self.folder / "train.json", self.folder / "state.pt"
        wanted = json.loads(json.dumps(asdict(self.recipe)))
        if recipe.is_file() and state.is_file():
            need_same(self.folder, json.loads(recipe.read_text()), wanted, ("images", "cooling"))
            saved = torch.load(state, weights_only=True)
            self.model.load_state_dict(saved["model"])
            self.ema.load_state_dict(saved["ema"])
            for optimiser, value in zip(self.optimisers, saved["optimisers"], strict=True):
                optimiser.load_state_dict(value)
            self.log = saved["log"]
            self.step, self.seconds = self.log[-1]["step"], self.log[-1]["seconds"]
        write_whole(recipe, json.dumps(wanted, indent=1))


class GarmentTraining(Training):
    """A SiT on labelled pictures; a share `wrong` of them has another class's label, always the same one."""

    ema: SiT

    def __init__(self, folder: Path, recipe: Recipe, pictures: Pictures, start: Path | None = None) -> None:
        self.pictures, self.pixels = pictures, Pixels.of(pictures.images)
        self.labels = noisy_labels(pictures.labels, len(pictures.names), recipe.wrong, recipe.seed)
        torch.manual_seed(recipe.seed)
        model = SiT(recipe.model)
        torch.nn.init.normal_(model.y_embedder.embedding_table.weight, std=LABEL_SPREAD)
        if start is not None:
            weights, self.pixels, _ = load_sit(start)
            model.load_state_dict(weights.state_dict())
        super().__init__(folder, recipe, model, start)

    def examples(self, g: torch.Generator) -> tuple[Tensor, Tensor]:
        chosen = torch.randint(len(self.pictures.images), (self.recipe.batch,), generator=g)
        dropped = torch.rand(self.recipe.batch, generator=g) < self.recipe.dropout
        label = torch.where(dropped, len(self.pictures.names), self.labels[chosen])
        return self.pixels.data(self.pictures.images[chosen]), label

    def export(self, path: Path) -> Path:
        c, names = self.recipe, self.pictures.names
        about = {"seed": c.seed, "images": c.images, "start": c.start, "label_noise": c.wrong}
        header = {"training": json.dumps(about)}
        return save_sit(path, self.ema, self.pixels, names=names, dtype=torch.float16, header=header)


class SceneTraining(Training):
    """The model that reads sentences, on scenes drawn on the way: no picture is seen twice."""

    ema: PictureNet

    def __init__(self, folder: Path, recipe: Recipe, start: Path | None = None) -> None:
        torch.manual_seed(recipe.seed)
        model = scene_net(recipe.model)
        if start is None:
            self.pixels = scene_pixels()
        else:
            weights, self.pixels = load_scene_net(start)
            model.load_state_dict(weights.state_dict())
        super().__init__(folder, recipe, model.to(memory_format=torch.channels_last), start)

    def examples(self, g: torch.Generator) -> tuple[Tensor, Tensor]:
        scenes = draw(self.recipe.batch, g)
        return self.pixels.data(render(scenes) * 255), self.caption(scenes.codes(), g)

    def caption(self, code: Tensor, g: torch.Generator) -> Tensor:
        """What a caption says of each scene: all six words, some, none, or those of another scene."""
        counts = torch.tensor(list(ATTRIBUTES.values()))
        other = (torch.rand(code.shape, generator=g) * counts).long()
        none, some, lied = torch.rand(3, len(code), 1, generator=g)
        unsaid = (some < PARTIAL) & (torch.rand(code.shape, generator=g) < 0.5)
        said = torch.where(lied < self.recipe.wrong, other, code)
        return torch.where((none < self.recipe.dropout) | unsaid, -1, said)

    def export(self, path: Path) -> Path:
        return save_scene_net(path, self.ema, self.pixels, dtype=torch.float16)


class CifarTraining(Training):
    """The network of pictures on labelled colour pictures, half of them mirrored."""

    ema: PictureNet

    def __init__(self, folder: Path, recipe: Recipe, pictures: Pictures, start: Path | None = None) -> None:
        self.pictures = pictures
        pixels = Pixels.of(pictures.images)
        self.pixels = Pixels(
            (pixels.mean + pixels.mean.flip(2)) / 2, pixels.std
        )  # as the data: mirrored or not
        torch.manual_seed(recipe.seed)
        model = PictureNet(recipe.model, ClassTokens(len(pictures.names), recipe.model.width))
        if start is not None:
            weights, self.pixels, _ = load_class_net(start)
            model.load_state_dict(weights.state_dict())
        super().__init__(folder, recipe, model.to(memory_format=torch.channels_last), start)

    def examples(self, g: torch.Generator) -> tuple[Tensor, Tensor]:
        chosen = torch.randint(len(self.pictures.images), (self.recipe.batch,), generator=g)
        mirrored, dropped = torch.rand(2, self.recipe.batch, generator=g)
        label = torch.where(
            dropped < self.recipe.dropout, len(self.pictures.names), self.pictures.labels[chosen]
        )
        data = self.pixels.data(self.pictures.images[chosen])
        return torch.where(mirrored[:, None, None, None] < 0.5, data, data.flip(3)), label

    def export(self, path: Path) -> Path:
        about = {"training": json.dumps({"seed": self.recipe.seed, "images": self.recipe.images})}
        return save_class_net(
            path, self.ema, self.pixels, self.pictures.names, dtype=torch.float16, header=about
        )


def noisy_labels(labels: Tensor, classes: int, share: float, seed: int) -> Tensor:
    """The labels, of which a share is replaced by one of the other classes; by the seed.

    With classes of one size this is what `meancap.rules.density_feedback` undoes: a label's pictures come
    with probability pi from its class and else from all classes, pi = 1 - share * classes / (classes - 1).
    """
    g = torch.Generator().manual_seed(seed * 1_000_003 + 2**31)
    replaced = torch.rand(len(labels), generator=g) < share
    other = (labels + torch.randint(1, classes, labels.shape, generator=g)) % classes
    return torch.where(replaced, other, labels)


@cache
def scene_pixels(count: int = 20_000, seed: int = 2026) -> Pixels:
    """Centre and scale of the law, from that many renders: a mean for each channel, one spread."""
    g = torch.Generator().manual_seed(seed)
    pictures = torch.cat([render(draw(1000, g)) for _ in range(count // 1000)])
    mean = pictures.double().mean((0, 2, 3), keepdim=True)[0]
    spread = float((pictures.double() - mean).square().mean().sqrt())
    return Pixels(mean.float(), spread)


def _optimisers(model: nn.Module, recipe: Recipe) -> list[torch.optim.Optimizer]:
    """Muon for matrices and convolutions inside the blocks, AdamW for all other parameters."""
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    inner = [n for n in trained if n.startswith(("blocks.", "fine_", "middle_")) and "adaLN" not in n]
    hidden = {name: trained[name] for name in inner if trained[name].dim() in (2, 4)}
    others = [p for name, p in trained.items() if name not in hidden]
    adam = torch.optim.AdamW(others, lr=recipe.adam * recipe.rate, betas=(0.9, 0.99), weight_decay=0.0)
    dtype = getattr(torch, recipe.precision)
    both: list[torch.optim.Optimizer] = [Muon(hidden.values(), recipe.rate, dtype), adam]
    for group in (group for optimiser in both for group in optimiser.param_groups):
        group["full"] = group["lr"]  # a schedule sets lr to a share of it
    return both


class Muon(torch.optim.Optimizer):
    """Momentum whose update matrix has all its singular values near one."""

    def __init__(self, params: Iterable[Tensor], lr: float, dtype: torch.dtype = torch.float32) -> None:
        super().__init__(params, {"lr": lr, "momentum": 0.95, "decay": 0.01})
        self.dtype = dtype  # of the Newton-Schulz products

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            beta, lr = group["momentum"], group["lr"]
            for p in group["params"]:
                state = self.state[p]
                if "momentum" not in state:
                    state["momentum"] = torch.zeros_like(p)
                state["momentum"].lerp_(p.grad, 1 - beta)
                ahead = torch.lerp(p.grad, state["momentum"], beta)
                p.mul_(1 - lr * group["decay"])
                matrix = ahead.flatten(1)  # a convolution: outputs by everything that one of them reads
                # A taller matrix has longer columns; the factor keeps the change of its outputs the same.
                factor = max(1.0, matrix.shape[0] / matrix.shape[1]) ** 0.5
                p.add_(orthogonal(matrix.to(self.dtype)).to(p.dtype).view(ahead.shape), alpha=-lr * factor)


def orthogonal(g: Tensor, iterations: int = 5) -> Tensor:
    """About U V' of g = U S V': each iteration sends singular values s to a s + b s^3 + c s^5."""
    a, b, c = 3.4445, -4.7750, 2.0315  # steep at 0; leaves s between about 0.7 and 1.2
    x = g.T if g.shape[0] > g.shape[1] else g
    x = x / (x.norm() + 1e-7)
    for _ in range(iterations):
        s = x @ x.T
        x = torch.addmm(x, torch.addmm(s, s, s, beta=b, alpha=c), x, beta=a)
    return x.T if g.shape[0] > g.shape[1] else x
