"""Making the samples of a run, block by block; the caller owns the loop and its progress bar.

    rank, world   this process and the number of processes (`meancap.runs.processes`)
    block b       belongs to process b mod world; which process makes it changes no bit of it

On a CPU the bits of a matrix product depend on the number of threads, so that number is part of a run.
Classes and prompts take turns, so that every stretch of a run holds them in equal numbers; every block is
filled up to a whole batch, so that no sample's bits depend on the count. A scene's grid is SD3's: shift 3
puts most evaluations where the state is mostly noise, which is where shapes and places are decided.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from ..models.classes import ClassModel
from ..models.sit import ConditionCache, Predictor
from ..prediction import Prediction
from ..record import Record
from ..rules import Rule, parse
from ..sampling import ancestral, euler, heun, midpoint, noise, rk4, sample
from ..sampling.solvers import StepMethod
from ..scenes.model import SceneModel, ScenePredictor
from ..torch_settings import torch_settings
from .config import RunConfig, sample_seed, versions
from .folder import Bytes, Store

SOLVERS: dict[str, StepMethod] = {"euler": euler, "heun": heun, "midpoint": midpoint, "rk4": rk4}
SHIFT = 3.0  # of the scenes' grid


@dataclass(frozen=True, eq=False)
class MadeBlock:
    """What one block yields: pictures NHWC, one record per sample, and the meter if diagnostics are on."""

    images: Bytes
    records: list[dict[str, Any]]
    meter: Mapping[str, Any] | None = None


MakeBlock = Callable[[int], MadeBlock]
_Predictors = Callable[[Sequence[int]], Predictor | ScenePredictor]  # for the samples with these indices


def class_blocks(model: ClassModel, config: RunConfig) -> MakeBlock:
    """The maker of a class-conditional run's blocks."""
    conditions: ConditionCache = {}  # the weights stay as they are while a run is made
    labels = [int(label) for label in config.classes]
    negative = None if config.negative is None else int(config.negative)

    def predictor(indices: Sequence[int]) -> Predictor:
        own = [labels[i % len(labels)] for i in indices]
        return model.predict(own, negative=negative, kept=conditions)

    return _blocks(model, config, predictor, lambda i: {"label": labels[i % len(labels)]})


def scene_blocks(
    model: SceneModel, config: RunConfig, prompts: Sequence[str], negatives: Sequence[str]
) -> MakeBlock:
    """The maker of a run of scenes; a negative prompt may be empty."""

    def predictor(indices: Sequence[int]) -> ScenePredictor:
        here = [i % len(prompts) for i in indices]
        return model.predict([prompts[i] for i in here], [negatives[i] for i in here])

    def condition(index: int) -> dict[str, Any]:
        return {"prompt": prompts[index % len(prompts)]}

    def avoided(index: int) -> dict[str, Any]:
        text = negatives[index % len(prompts)]
        return {"negative": text} if text else {}

    return _blocks(model, config, predictor, condition, avoided)


def _blocks(
    model: ClassModel | SceneModel,
    config: RunConfig,
    predictor: _Predictors,
    condition: Callable[[int], dict[str, Any]],
    more: Callable[[int], dict[str, Any]] = lambda _: {},
) -> MakeBlock:
    """`condition` and `more` are what a sample's record says before and after its evaluations."""
    rule, solver = parse(config.rule), SOLVERS[config.solver]

    def make(block: int) -> MadeBlock:
        indices = range(block * config.batch, (block + 1) * config.batch)
        seeds = [sample_seed(config.seed, i) for i in indices]
        predict = _CountedPredictor(predictor(indices))
        step = ancestral(seeds, config.eta) if config.eta else solver
        record = Record() if config.diagnostics else None
        start = noise(seeds, model.shape, device=model.device)
        pictures = model.decode(sample(predict, rule, start, config.times, step, record=record))
        own = config.indices(block)
        records = [
            {"index": i, "seed": seed, **condition(i), "evaluations": predict.count, **more(i)}
            for i, seed in zip(own, seeds, strict=False)
        ]
        array: Bytes = pictures[: len(own)].permute(0, 2, 3, 1).contiguous().cpu().numpy()
        meter = None
        if record is not None:
            meter = {name: value[:, : len(own)].numpy() for name, value in record.stacked().items()}
        return MadeBlock(array, records, meter)

    return make


class _CountedPredictor:
    """A predictor that counts its evaluations, whole ones and those that a rule needs only half of."""

    def __init__(self, predict: Predictor | ScenePredictor) -> None:
        self.predict, self.count = predict, 0

    def including(self, names: tuple[str, ...]) -> _CountedPredictor:
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


def class_run(model: ClassModel, rule: Rule | str, **options: Any) -> RunConfig:
    """Deprecated: use `RunConfig` and `prepare.generate`, or `prepare.ClassSource(model).prepare(config)`."""
    from .prepare import ClassSource

    warnings.warn("class_run is deprecated; use meancap.runs.prepare.generate", DeprecationWarning, 2)
    return ClassSource(model).prepare(RunConfig(model.name, rule=str(rule), **options)).config


def run(folder: str | Path, model: ClassModel, config: RunConfig) -> Iterator[int]:
    """Deprecated: use `prepare.generate`."""
    warnings.warn("run is deprecated; use meancap.runs.prepare.generate", DeprecationWarning, 2)
    yield from make_run(Store(folder, config, versions()), class_blocks(model, config))
