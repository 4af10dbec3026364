"""From a run's options to its samples, block by block; the caller owns the loop and its progress bar.

for block in generate("runs/small", RunConfig("fashion", rule="CFG(4) | Cap(1.1)", per_class=2)):
    print(block, "is saved")

    rank, world   this process and the number of processes (`meancap_lab.runs.processes`)
    block b       belongs to process b mod world; which process makes it changes no bit of it

On a CPU the bits of a matrix product depend on the number of threads, so that number is part of a run.
Classes and prompts take turns, so that every stretch of a run holds them in equal numbers; every block is
filled up to a whole batch, so that no sample's bits depend on the count. A scene's grid is SD3's: shift 3
puts most evaluations where the state is mostly noise, which is where shapes and places are decided.
"""

from __future__ import annotations

import hashlib
from bisect import bisect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch

from meancap.files import sha256_of
from meancap.record import Record
from meancap.rules import parse
from meancap.sampling import (
    StepMethod,
    ancestral,
    euler,
    heun,
    midpoint,
    noise,
    rk4,
    sample,
    shifted,
    uniform,
)
from meancap.sampling.checks import need_guidance
from meancap.sampling.stochastic import generator_of

from ..models.classes import ClassModel, cifar, decoder, fashion, open_sit
from ..models.sit import NetworkPredictor
from ..tensor_files import local_folder
from ..torch_settings import torch_settings
from .config import RunConfig, RunIdentity, sample_seed, versions
from .folder import Bytes, Store

if TYPE_CHECKING:
    from ..models.scenes.model import SceneModel

SOLVERS: dict[str, StepMethod] = {"euler": euler, "heun": heun, "midpoint": midpoint, "rk4": rk4}
SHIFT = 3.0  # of the scenes' grid


@dataclass(frozen=True, eq=False)
class MadeBlock:
    """What one block yields: pictures NHWC, one record per sample, and the meter if diagnostics are on."""

    images: Bytes
    records: list[dict[str, Any]]
    meter: Mapping[str, Any] | None = None


Tick = Callable[[int], object]  # told the number of steps that are done
MakeBlock = Callable[[int, Tick], MadeBlock]


@dataclass(frozen=True, eq=False)
class PreparedRun:
    """Everything that a run needs."""

    config: RunIdentity
    make: MakeBlock
    made_with: dict[str, str]

    def store(self, folder: str | Path, **notes: Any) -> Store:
        """The run's folder, begun or taken up; `notes` go into run.json beside the configuration."""
        return Store(folder, self.config, self.made_with, **notes)


class RunSource(Protocol):
    """An open model, with which several runs can be made."""

    def prepare(self, config: RunConfig) -> PreparedRun: ...


def generate(
    folder: str | Path,
    config: RunConfig,
    place: tuple[int, int, int] = (0, 1, 0),
    tick: Callable[[int, int], object] = max,
) -> Iterator[int]:
    """Makes a run in `folder`, or resumes it; yields each block that is saved.

    The model is opened at once. `place` is that of this process (`meancap_lab.runs.processes.place`); `tick`
    is called during a block with the steps that are done and the steps to do, of all blocks of this process.
    """
    rank, world, local = place
    prepared = open_model(config, device_of(config.device, local)).prepare(config)
    store, steps = prepared.store(folder), len(prepared.config.times) - 1
    todo = len(store.missing(range(rank, prepared.config.blocks, world))) * steps
    return make_run(store, prepared.make, rank, world, lambda done: tick(done, todo))


def make_run(store: Store, make: MakeBlock, rank: int = 0, world: int = 1, tick: Tick = abs) -> Iterator[int]:
    """Makes, saves and yields this process's missing blocks; the last process to end finishes the run."""
    threads = store.config.threads if store.config.device == "cpu" else None
    steps = len(store.config.times) - 1
    for k, block in enumerate(store.missing(range(rank, store.config.blocks, world))):
        with torch_settings(threads, tf32=store.config.dtype == "tf32"):
            made = make(block, _after(k * steps, tick))
        try:
            store.save(block, made.images, made.records, made.meter)
        except FileNotFoundError:
            if store.finished:  # another launch of the same run was faster
                break
            raise
        tick((k + 1) * steps)
        yield block
    store.finish()


def _after(steps: int, tick: Tick) -> Tick:
    return lambda done: tick(steps + done)


def device_of(device: str, local: int = 0) -> str:
    """The device of this process, which is number `local` on its machine."""
    here = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    device = device or ("cuda" if here["cuda"] else "cpu")
    if not here.get(device.partition(":")[0]):
        present = ", ".join(kind for kind, there in here.items() if there)
        raise ValueError(f"--device {device} is not on this machine; it has {present}")
    return f"cuda:{local % torch.cuda.device_count()}" if device == "cuda" else device


def open_model(config: RunConfig, device: str = "cpu") -> RunSource:
    """The model that a run names, on a device."""
    kind, _, where = config.model.partition(":")
    # tf32: float32 weights whose matrix products an NVIDIA GPU takes in TF32, as SiT's own sampler does.
    dtype = getattr(torch, "float32" if config.dtype == "tf32" else config.dtype)
    if kind == "diffusers":
        from .prompts import PipelineSource, open_pipeline

        pipe = open_pipeline(where, dtype=dtype, device=device)
        return PipelineSource(pipe, f"diffusers:{Path(where).name}", _source_hash(where))
    if kind == "scenes":
        from ..models.scenes.model import scenes

        return SceneSource(scenes(where or None).to(device, dtype))
    if kind == "fashion":
        return ClassSource(fashion().to(device, dtype))
    if kind == "cifar":
        return ClassSource(cifar(where or None).to(device, dtype))
    decode = None if config.vae is None else decoder(config.vae, device=device)
    model = open_sit(where, decode=decode).to(device, dtype)
    return ClassSource(model, "" if config.vae is None else _source_hash(config.vae))


@dataclass(frozen=True, eq=False)
class ClassSource:
    """A class-conditional model; `decoded_by` is the hash of its autoencoder's folder."""

    model: ClassModel
    decoded_by: str = ""

    def prepare(self, config: RunConfig) -> PreparedRun:
        model = replace(self.model, channels=config.channels)
        labels = tuple(model.label(str(name)) for name in config.classes) or tuple(range(model.classes))
        negative = None if config.negative is None else model.label(str(config.negative))
        run = config.identity(
            **_facts(config, model),
            times=config.times or uniform(config.steps),
            count=config.per_class * len(labels),
            classes=labels,
            decoder=self.decoded_by,
            negative=negative,
        )

        def predictor(indices: Sequence[int]) -> NetworkPredictor:
            own = [labels[i % len(labels)] for i in indices]
            return model.predict(own, negative=negative)

        make = _blocks(model, run, predictor, lambda i: {"label": labels[i % len(labels)]})
        return PreparedRun(run, make, versions(("diffusers",) if self.decoded_by else ()))


@dataclass(frozen=True, eq=False)
class SceneSource:
    """The model of the scenes."""

    model: SceneModel

    def prepare(self, config: RunConfig) -> PreparedRun:
        if (config.prompt is None) == (config.prompts is None):
            both = "; got both" if config.prompt is not None else ""
            raise ValueError(
                f'the scenes need --prompt "a red disc left of a blue square" or --prompts FILE{both}'
            )
        if config.prompt is not None and not config.prompt.strip():
            raise ValueError(
                '--prompt needs a sentence, such as "a red disc left of a blue square"; got none'
            )
        prompts = [config.prompt or ""]
        if config.prompts is not None:
            prompts = [line for line in read_prompts(config.prompts) if line]
        return self.prepare_lines(config, prompts)

    def prepare_lines(self, config: RunConfig, prompts: Sequence[str]) -> PreparedRun:
        """A run of these sentences, `per_class` samples each."""
        from ..models.scenes.prompt import parse_prompt

        avoided = str(config.negative or "")
        for text in (*prompts, avoided):
            parse_prompt(text)
        lines = "\n".join(f"{prompt}\t{avoided}" for prompt in prompts)
        run = config.identity(
            **_facts(config, self.model),
            times=config.times or shifted(config.steps, SHIFT),
            count=config.per_class * len(prompts),
            prompts_sha256=hashlib.sha256(lines.encode()).hexdigest(),
            negative=None,
        )

        def predictor(indices: Sequence[int]) -> NetworkPredictor:
            return self.model.predict([prompts[i % len(prompts)] for i in indices], avoided)

        more = {"negative": avoided} if avoided else {}
        make = _blocks(self.model, run, predictor, lambda i: {"prompt": prompts[i % len(prompts)]}, more)
        return PreparedRun(run, make, versions())


def _facts(config: RunConfig, model: ClassModel | SceneModel) -> dict[str, Any]:
    """The open model's part of a run's identity; raises an error for a rule that it cannot serve."""
    if config.solver not in SOLVERS:
        raise ValueError(f"known solvers are {', '.join(SOLVERS)}; got {config.solver!r}")
    needs = need_guidance(config.rule).needs if config.rule else ()
    if unknown := [name for name in needs if name != "negative"]:
        raise ValueError(f"{config.rule} needs the prediction {unknown[0]!r}, which no shipped model makes")
    if needs and config.negative is None:
        raise ValueError(f"{config.rule} needs a negative prompt or class; give --negative")
    return {
        "model": model.name,
        "model_sha256": model.sha256,
        "rule": str(parse(config.rule or "CFG(1)")),
        "dtype": dtype_name(config, model.dtype),
        "device": model.device.type,
    }


def dtype_name(config: RunConfig, dtype: torch.dtype) -> str:
    """The precision of a network as run.json has it."""
    return "tf32" if config.dtype == "tf32" else str(dtype).removeprefix("torch.")


def _source_hash(source: str | Path) -> str:
    """SHA-256 over the names and contents of the files in a folder or a cached snapshot."""
    folder = local_folder(source)
    combined = hashlib.sha256()
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        combined.update(f"{path.relative_to(folder).as_posix()}\0{sha256_of(path)}\n".encode())
    return combined.hexdigest()


def read_prompts(path: str | Path) -> list[str]:
    """The lines of a prompt file, blank ones as empty text."""
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text (byte {error.start})") from None
    lines = [line.strip() for line in text.split("\n")]
    while lines and not lines[-1]:
        lines.pop()
    if not lines:
        raise ValueError(f"{path} holds no prompt")
    return lines


def device_generator(seed: int, device: torch.device) -> torch.Generator:
    """A generator of the device itself, whose stream no other kind of device can replay."""
    return generator_of(seed) if device.type == "cpu" else torch.Generator(device).manual_seed(seed % 2**63)


def _device_noise(seeds: Sequence[int], shape: Sequence[int], device: torch.device) -> torch.Tensor:
    generators = [device_generator(seed, device) for seed in seeds]
    return torch.stack([torch.randn(tuple(shape), generator=g, device=device) for g in generators])


def _blocks(
    model: ClassModel | SceneModel,
    run: RunIdentity,
    predictor: Callable[[Sequence[int]], NetworkPredictor],  # for the samples with these indices
    condition: Callable[[int], dict[str, Any]],
    more: Mapping[str, Any] | None = None,
) -> MakeBlock:
    """`condition` and `more` are what a sample's record says before and after its evaluations."""
    rule, solver = parse(run.rule), SOLVERS[run.solver]

    def make(block: int, tick: Tick) -> MadeBlock:
        indices = range(block * run.batch, (block + 1) * run.batch)
        seeds = [sample_seed(run.seed, i) for i in indices]
        predict = predictor(indices)
        predict.tick = lambda t: tick(bisect(run.times, t) - 1)
        step = ancestral(seeds, run.eta) if run.eta else solver
        record = Record() if run.diagnostics else None
        draw = noise if run.noise == "per sample" else _device_noise
        start = draw(seeds, model.shape, device=model.device)
        x = sample(predict, rule, start, run.times, step, record=record)
        own = run.indices(block)
        records = [
            {"index": i, "seed": seed, **condition(i), "evaluations": len(predict.calls), **(more or {})}
            for i, seed in zip(own, seeds, strict=False)
        ]
        for line, whole in zip(records, x.isfinite().flatten(1).all(1).tolist(), strict=False):
            line |= {} if whole else {"finite": False}
        array: Bytes = model.decode(x)[: len(own)].permute(0, 2, 3, 1).contiguous().cpu().numpy()
        meter = None
        if record is not None:
            meter = {name: value[:, : len(own)].numpy() for name, value in record.stacked().items()}
        return MadeBlock(array, records, meter)

    return make
