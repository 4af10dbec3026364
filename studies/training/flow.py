"""A training run in a folder that can be stopped at any time: recipe, log, state, and the loop over batches.

train.json   the recipe; another one is refused, a longer one is not
log.jsonl    one line per `every` steps
state.pt     weights, their running mean, the optimisers, the step and the seconds

Muon trains the hidden matrices, AdamW the rest. Muon's momentum is a running sum of gradients, looked at half
a step ahead (Nesterov); its update is the nearest matrix with orthonormal rows or columns, by five
Newton-Schulz iterations in which only the singular values change (Jordan et al. 2024).
"""

from __future__ import annotations

import copy
import json
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from meancap.files import write_whole, writing


class TrainingRecipe:
    """What all recipes share; a recipe is a frozen dataclass that gives these fields their defaults.

    The rate rises for `warmup` steps, stays, and falls to zero on a straight line over the last `cooling`.
    """

    __dataclass_fields__: ClassVar[dict[str, Any]]
    images: int
    batch: int
    rate: float
    warmup: int
    cooling: float
    ema: float

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


class TrainingLoop(ABC):
    """Flow matching with a running mean of the weights; iterate over `rows()` to run it."""

    def __init__(
        self,
        folder: str | Path,
        recipe: TrainingRecipe,
        model: nn.Module,
        optimisers: list[torch.optim.Optimizer],
    ) -> None:
        self.folder, self.recipe, self.model, self.optimisers = Path(folder), recipe, model, optimisers
        self.folder.mkdir(parents=True, exist_ok=True)
        self.ema = copy.deepcopy(model).requires_grad_(False)
        self.step, self.seconds = 0, 0.0
        self.resume()

    @abstractmethod
    def batch(self, step: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """State, time, condition and velocity of one batch, drawn from a generator seeded by the step."""

    def resume(self) -> None:
        """Takes up the last saved state, if there is one, and drops log lines written after it."""
        recipe, state = self.folder / "train.json", self.folder / "state.pt"
        wanted = json.loads(json.dumps(asdict(self.recipe)))
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
        while self.step < self.recipe.steps:
            losses.append(self.one_step())
            self.seconds = time.monotonic() - began
            last = self.step == self.recipe.steps
            if self.step % every == 0 or last:
                loss = float(torch.stack(losses).mean())
                rate = self.recipe.rate_at(self.step - 1)
                row = LogLine(self.step, self.step * self.recipe.batch, loss, rate, round(self.seconds, 1))
                losses.clear()
                with (self.folder / "log.jsonl").open("a") as log:
                    log.write(_line(row))
                yield row
            if last or time.monotonic() - saved > save_seconds:
                self.save()
                saved = time.monotonic()

    def one_step(self) -> Tensor:
        """One batch; returns its loss."""
        x, t, condition, v = self.batch(self.step)
        loss: Tensor = (self.model(x, t, condition) - v).square().mean()
        torch.autograd.backward(loss)
        share = self.recipe.rate_at(self.step) / self.recipe.rate
        for optimiser in self.optimisers:
            for group in optimiser.param_groups:
                group["lr"] = share * group["full"]
            optimiser.step()
            optimiser.zero_grad()
        self.step += 1
        # A young mean must forget its random start: the window grows with the run up to 1 / (1 - ema).
        keep = min(self.recipe.ema, (1 + self.step) / (10 + self.step))
        with torch.no_grad():
            for slow, fast in zip(self.ema.parameters(), self.model.parameters(), strict=True):
                slow.lerp_(fast, 1 - keep)
        return loss.detach()

    def save(self) -> None:
        """Everything that a later process needs to go on."""
        state = {
            "model": self.model.state_dict(),
            "ema": self.ema.state_dict(),
            "optimisers": [o.state_dict() for o in self.optimisers],
            "step": self.step,
            "seconds": self.seconds,
        }
        with writing(self.folder / "state.pt") as temporary:
            torch.save(state, temporary)


def read_log(folder: str | Path) -> list[LogLine]:
    """The whole lines of a training log; a line torn by a kill is left out."""
    path = Path(folder) / "log.jsonl"
    lines = path.read_text().splitlines(keepends=True) if path.is_file() else []
    return [LogLine(**json.loads(line)) for line in lines if line.endswith("\n")]


def _line(row: LogLine) -> str:
    return json.dumps(asdict(row)) + "\n"


def _need_same(old: dict[str, object], new: dict[str, object], folder: Path) -> None:
    """Only the length of a run may change when it is resumed."""
    changed = [k for k in new if k not in ("images", "cooling") and old.get(k) != new[k]]
    if changed:
        words = "; ".join(f"{k} was {old.get(k)}, now {new[k]}" for k in changed)
        raise ValueError(f"{folder} was begun with another recipe: {words}; give another folder")


def inside_blocks(name: str, p: Tensor) -> bool:
    """The matrices inside the blocks of a SiT, modulation excepted."""
    return name.startswith("blocks.") and p.dim() == 2 and "adaLN" not in name


def optimisers(
    model: nn.Module,
    rate: float,
    adam: float = 0.3,
    hidden_weights: Callable[[str, Tensor], bool] = inside_blocks,
) -> list[torch.optim.Optimizer]:
    """Muon for the hidden weights; AdamW, at a share `adam` of the rate, for embeddings, modulation, biases
    and the ends.
    """
    hidden: list[Tensor] = []
    rest: list[Tensor] = []
    for name, p in model.named_parameters():
        if p.requires_grad:
            (hidden if hidden_weights(name, p) else rest).append(p)
    others = torch.optim.AdamW(rest, lr=adam * rate, betas=(0.9, 0.99), weight_decay=0.0)
    both: list[torch.optim.Optimizer] = [Muon(hidden, rate), others]
    for group in (group for optimiser in both for group in optimiser.param_groups):
        group["full"] = group["lr"]  # a schedule sets lr to a share of it
    return both


class Muon(torch.optim.Optimizer):
    """Momentum whose update matrix has all its singular values near one."""

    def __init__(
        self, params: Iterable[Tensor], lr: float, momentum: float = 0.95, decay: float = 0.01
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "decay": decay})

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
                p.add_(orthogonal(matrix).view(ahead.shape), alpha=-lr * factor)


def orthogonal(g: Tensor, iterations: int = 5) -> Tensor:
    """About U V' of g = U S V': each iteration sends singular values s to a s + b s^3 + c s^5."""
    a, b, c = 3.4445, -4.7750, 2.0315  # steep at 0; leaves s between about 0.7 and 1.2
    x = g.T if g.shape[0] > g.shape[1] else g
    x = x / (x.norm() + 1e-7)
    for _ in range(iterations):
        s = x @ x.T
        x = torch.addmm(x, torch.addmm(s, s, s, beta=b, alpha=c), x, beta=a)
    return x.T if g.shape[0] > g.shape[1] else x
