"""[generate] Making the samples of a run, block by block; the caller owns the loop and its progress bar.

    rank, world   this process and the number of processes, from torchrun's or accelerate's environment
    block b       belongs to process b mod world; which process makes it changes no bit of it

On a CPU the bits of a matrix product depend on the number of threads, so that number is part of a run.

[scene_runs] Runs of the scenes: sentences, and negative ones where asked for, into a run folder.

Prompts take turns, so that every stretch of a run holds them in equal numbers. The grid is SD3's: shift 3
puts most evaluations where the state is mostly noise, which is where shapes and places are decided.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..models.classes import ClassModel
from ..models.sit import ConditionCache, Predictor
from ..prediction import Prediction
from ..record import Record
from ..rules import Rule, parse
from ..sampling import ancestral, euler, heun, midpoint, noise, rk4, sample, shifted, uniform
from ..sampling.solvers import StepMethod
from ..scenes import draw, parse_prompt, prompt_of
from ..scenes.model import SceneModel, ScenePredictor
from ..torch_settings import torch_settings
from .config import Item, RunConfig, class_items, sample_seed, versions
from .folder import Bytes, Store

SOLVERS: dict[str, StepMethod] = {"euler": euler, "heun": heun, "midpoint": midpoint, "rk4": rk4}


@dataclass(frozen=True, eq=False)
class MadeBlock:
    """What one block yields: pictures NHWC, one record per sample, and the meter if it was asked for."""

    images: Bytes
    records: list[dict[str, Any]]
    meter: Mapping[str, Any] | None = None


MakeBlock = Callable[[int], MadeBlock]


def class_run(
    model: ClassModel,
    rule: Rule | str,
    *,
    per_class: int = 10,
    classes: Sequence[int] | None = None,
    times: Sequence[float] = uniform(50),
    solver: str = "euler",
    eta: float = 0.0,
    negative: int | None = None,
    seed: int = 0,
    batch: int = 64,
    images: str = "png",
    diagnostics: bool = False,
    threads: int = 1,
    decoder: str = "",
) -> RunConfig:
    """The configuration of `per_class` samples of each class, all classes unless some are named."""
    chosen = tuple(range(model.classes) if classes is None else classes)
    if not chosen:
        raise ValueError("a run needs at least one class")
    for label in chosen:
        if not 0 <= label < model.classes:
            raise ValueError(f"{model.name} has classes 0 to {model.classes - 1}; got {label}")
    if solver not in SOLVERS:
        raise ValueError(f"known solvers are {', '.join(SOLVERS)}; got {solver!r}")
    weight = model.network.x_embedder.proj.weight
    return RunConfig(
        model=model.name,
        model_sha256=model.sha256,
        rule=str(parse(rule) if isinstance(rule, str) else rule),
        times=tuple(times),
        count=per_class * len(chosen),
        classes=chosen,
        solver=solver,
        eta=eta,
        negative=negative,
        seed=seed,
        batch=batch,
        dtype=str(weight.dtype).removeprefix("torch."),
        channels=model.channels,
        decoder=decoder,
        images=images,
        diagnostics=diagnostics,
        device=weight.device.type,
        threads=threads,
    )


def class_blocks(model: ClassModel, config: RunConfig) -> MakeBlock:
    """The maker of a class-conditional run's blocks."""
    rule, solver = parse(config.rule), SOLVERS[config.solver]
    conditions: ConditionCache = {}  # the weights stay as they are while a run is made

    def make(block: int) -> MadeBlock:
        items = class_items(config, block)
        labels = [item.label for item in items if item.label is not None]
        predict = Counted(model.predict(labels, negative=config.negative, kept=conditions))
        seeds = [item.seed for item in items]
        x = noise(seeds, model.shape, device=model.device)
        step = ancestral(seeds, config.eta) if config.eta else solver
        record = Record() if config.diagnostics else None
        pictures = model.decode(sample(predict, rule, x, config.times, step, record=record))
        kept = len(config.indices(block))
        records = [
            {"index": item.index, "seed": item.seed, "label": item.label, "evaluations": predict.count}
            for item in items[:kept]
        ]
        return MadeBlock(to_nhwc(pictures[:kept]), records, meter_of(record, kept))

    return make


class Counted:
    """A predictor that counts its evaluations, whole ones and those that a rule needs only half of."""

    def __init__(self, predict: Predictor | ScenePredictor) -> None:
        self.predict, self.count = predict, 0

    def including(self, names: tuple[str, ...]) -> Counted:
        self.predict = self.predict.including(names)
        return self

    def __call__(self, x: Tensor, t: float) -> Prediction:
        self.count += 1
        return self.predict(x, t)

    def conditional(self, x: Tensor, t: float) -> Prediction:
        self.count += 1
        return self.predict.conditional(x, t)


def make_run(store: Store, make: MakeBlock, rank: int = 0, world: int = 1) -> Iterator[int]:
    """Makes, saves and yields this process's missing blocks; the last process to end finishes the run."""
    threads = store.config.threads if store.config.device == "cpu" else None
    for block in store.missing(range(rank, store.config.blocks, world)):
        with torch_settings(threads, tf32=store.config.dtype == "tf32"):
            made = make(block)
        try:
            store.save(block, made.images, made.records, made.meter)
        except FileNotFoundError:
            if store.finished:  # another launch of the same run was faster
                break
            raise
        yield block
    store.finish()


def run(
    folder: str | Path, model: ClassModel, config: RunConfig, *, rank: int = 0, world: int = 1
) -> Iterator[int]:
    """A class-conditional run in `folder`: begins it, or takes it up where it was left."""
    store = Store(folder, config, versions())
    yield from make_run(store, class_blocks(model, config), rank, world)


def place() -> tuple[int, int, int]:
    """Rank, number of processes, and rank on this machine, as torchrun and accelerate tell them."""
    numbers = []
    for name, default in (("RANK", 0), ("WORLD_SIZE", 1), ("LOCAL_RANK", 0)):
        text = os.environ.get(name, str(default))
        if not text.isdigit():
            raise ValueError(f"the environment variable {name} must be a whole number; got {text!r}")
        numbers.append(int(text))
    rank, world, local = numbers
    if not rank < max(world, 1):
        raise ValueError(f"RANK={rank} needs a WORLD_SIZE above it; got {world}")
    return rank, max(world, 1), local


def to_nhwc(pictures: Tensor) -> Bytes:
    """Pictures (n, channels, height, width) as an array (n, height, width, channels)."""
    array: Bytes = pictures.permute(0, 2, 3, 1).contiguous().cpu().numpy()
    return array


def meter_of(record: Record | None, kept: int) -> dict[str, Any] | None:
    """The meter as arrays of (evaluations, samples)."""
    if record is None:
        return None
    return {name: value[:, :kept].numpy() for name, value in record.stacked().items()}


SHIFT = 3.0


def complete_and_partial(count: int, seed: int) -> list[str]:
    """Prompts of the law: the first half complete, each word of the others open with probability 1/2."""
    g = torch.Generator().manual_seed(sample_seed(seed, 0))
    codes = draw(count, g).codes()
    unsaid = torch.rand(codes.shape, generator=g) < 0.5
    unsaid[: count // 2] = False
    return _sentences(torch.where(unsaid, -1, codes))


def with_negatives(count: int, seed: int) -> tuple[list[str], list[str]]:
    """Prompts that leave both colours open, and a colour that must not be there."""
    g = torch.Generator().manual_seed(sample_seed(seed, 1))
    codes = draw(count, g).codes()
    colours = codes[:, 1].clone()
    codes[:, 1] = codes[:, 3] = -1
    nothing = torch.full_like(codes, -1)
    nothing[:, 1] = colours
    return _sentences(codes), _sentences(nothing)


def _sentences(codes: Tensor) -> list[str]:
    return [str(prompt_of(row)) for row in codes.tolist()]


def scene_run(
    model: SceneModel,
    rule: Rule | str,
    prompts: Sequence[str],
    negatives: Sequence[str],
    *,
    each: int = 1,
    steps: int = 16,
    solver: str = "euler",
    seed: int = 0,
    batch: int = 32,
    images: str = "png",
    diagnostics: bool = False,
    threads: int = 1,
) -> RunConfig:
    """The configuration of `each` samples of every prompt; a negative prompt may be empty."""
    if not prompts or len(prompts) != len(negatives):
        raise ValueError(
            f"a run needs prompts, and a negative one for each; got {len(prompts)} and {len(negatives)}"
        )
    for text in (*prompts, *negatives):
        parse_prompt(text)
    if solver not in SOLVERS:
        raise ValueError(f"known solvers are {', '.join(SOLVERS)}; got {solver!r}")
    weight = model.network.stem.weight
    lines = "\n".join(f"{p}\t{n}" for p, n in zip(prompts, negatives, strict=True))
    return RunConfig(
        model=model.name,
        model_sha256=model.sha256,
        rule=str(parse(rule) if isinstance(rule, str) else rule),
        times=shifted(steps, SHIFT),
        count=each * len(prompts),
        solver=solver,
        seed=seed,
        batch=batch,
        dtype=str(weight.dtype).removeprefix("torch."),
        images=images,
        diagnostics=diagnostics,
        device=weight.device.type,
        threads=threads,
        prompts_sha256=hashlib.sha256(lines.encode()).hexdigest(),
    )


def scene_blocks(
    model: SceneModel, config: RunConfig, prompts: Sequence[str], negatives: Sequence[str]
) -> MakeBlock:
    """The maker of a run's blocks, each filled up to a whole batch: no sample's bits depend on the count."""
    rule, solver = parse(config.rule), SOLVERS[config.solver]

    def make(block: int) -> MadeBlock:
        rows = range(block * config.batch, (block + 1) * config.batch)
        items = [Item(i, sample_seed(config.seed, i), prompt=prompts[i % len(prompts)]) for i in rows]
        against = [negatives[i % len(prompts)] for i in rows]
        predict = Counted(model.predict([item.prompt or "" for item in items], against))
        x = noise([item.seed for item in items], model.shape, device=model.device)
        record = Record() if config.diagnostics else None
        pictures = model.decode(sample(predict, rule, x, config.times, solver, record=record))
        kept = len(config.indices(block))
        records = [
            {"index": item.index, "seed": item.seed, "prompt": item.prompt, "evaluations": predict.count}
            | ({"negative": n} if n else {})
            for item, n in zip(items[:kept], against, strict=False)
        ]
        return MadeBlock(to_nhwc(pictures[:kept]), records, meter_of(record, kept))

    return make
