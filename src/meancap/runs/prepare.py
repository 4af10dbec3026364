"""From a run's options to a run: the model opened, the configuration completed, the maker of its blocks.

for block in generate("runs/small", RunConfig("fashion", rule="CFG(4) | Cap(1.1)", per_class=2)):
    print(block, "is saved")
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import torch

from ..files import sha256_of
from ..models.checkpoint import local_folder
from ..models.classes import ClassModel, decoder, fashion, open_sit
from ..rules import parse
from ..sampling import shifted, uniform
from ..scenes import parse_prompt
from ..scenes.model import SceneModel, scenes
from .config import RunConfig, versions
from .folder import Store
from .generate import SHIFT, SOLVERS, MakeBlock, class_blocks, make_run, scene_blocks
from .prompts import Pipeline, denoiser, open_pipeline, prompt_blocks, read_prompts, scheduler_grid


@dataclass(frozen=True, eq=False)
class PreparedRun:
    """Everything that a run needs."""

    config: RunConfig
    make: MakeBlock
    made_with: dict[str, str]

    def store(self, folder: str | Path) -> Store:
        """The run's folder, begun or taken up."""
        return Store(folder, self.config, self.made_with)


class RunSource(Protocol):
    """An open model, with which several runs can be made."""

    def prepare(self, config: RunConfig) -> PreparedRun: ...


def generate(folder: str | Path, config: RunConfig) -> Iterator[int]:
    """Makes a run in `folder`, or resumes it; yields each block that is saved."""
    prepared = open_model(config, config.device or "cpu").prepare(config)
    yield from make_run(prepared.store(folder), prepared.make)


@dataclass(frozen=True, eq=False)
class ClassSource:
    """A class-conditional model; `decoded_by` is the hash of its autoencoder's folder."""

    model: ClassModel
    decoded_by: str = ""

    def prepare(self, config: RunConfig) -> PreparedRun:
        config.require_kind("class")
        _check_rule(config)
        model = replace(self.model, channels=config.channels)
        classes = tuple(model.label(str(name)) for name in config.classes) or tuple(range(model.classes))
        config = replace(
            _opened(config, model, model.network.x_embedder.proj.weight),
            times=config.times or uniform(config.steps),
            count=config.per_class * len(classes),
            classes=classes,
            decoder=self.decoded_by,
            eta=config.noise_level,
            negative=None if config.negative is None else model.label(str(config.negative)),
        )
        packages = ("diffusers",) if self.decoded_by else ()
        return PreparedRun(config, class_blocks(model, config), versions(packages))


@dataclass(frozen=True, eq=False)
class SceneSource:
    """The model of the scenes."""

    model: SceneModel

    def prepare(self, config: RunConfig) -> PreparedRun:
        config.require_kind("scenes")
        _check_rule(config)
        if (config.prompt is None) == (config.prompts is None):
            raise ValueError('the scenes need --prompt "a red disc left of a blue square" or --prompts FILE')
        lines = [config.prompt or ""]
        if config.prompts is not None:
            lines = [line for line in read_prompts(config.prompts) if line]
        return self.prepare_lines(config, lines, [str(config.negative or "")] * len(lines))

    def prepare_lines(
        self, config: RunConfig, prompts: Sequence[str], negatives: Sequence[str]
    ) -> PreparedRun:
        """A run of these sentences, `per_class` samples each; a negative one may be empty."""
        if not prompts or len(prompts) != len(negatives):
            raise ValueError(
                f"a run needs prompts, and a negative one for each; got {len(prompts)} and {len(negatives)}"
            )
        for text in (*prompts, *negatives):
            parse_prompt(text)
        lines = "\n".join(f"{p}\t{n}" for p, n in zip(prompts, negatives, strict=True))
        config = replace(
            _opened(config, self.model, self.model.network.stem.weight),
            times=config.times or shifted(config.steps, SHIFT),
            count=config.per_class * len(prompts),
            prompts_sha256=hashlib.sha256(lines.encode()).hexdigest(),
            negative=None,
        )
        return PreparedRun(config, scene_blocks(self.model, config, prompts, negatives), versions())


@dataclass(frozen=True, eq=False)
class PipelineSource:
    """A diffusers pipeline."""

    pipe: Pipeline
    name: str
    sha256: str

    def prepare(self, config: RunConfig) -> PreparedRun:
        config.require_kind("pipeline")
        if config.prompts is None:
            raise ValueError("a pipeline needs --prompts FILE, one prompt per line")
        return self.prepare_lines(config, read_prompts(config.prompts))

    def prepare_lines(self, config: RunConfig, prompts: Sequence[str]) -> PreparedRun:
        """A run of one picture per prompt; without a rule the pipeline guides by its own scale."""
        rule = parse(config.rule) if config.rule else None
        if config.guidance_scale is None and (rule is None or rule.caps):
            raise ValueError(
                "give --guidance-scale: without a rule, or with one that only caps, the pipeline guides by it"
            )
        network = denoiser(self.pipe)
        config = replace(
            config,
            model=self.name,
            model_sha256=self.sha256,
            rule="" if rule is None else str(rule),
            times=scheduler_grid(self.pipe, config.steps, config.sigmas),
            count=len(prompts),
            solver=type(self.pipe.scheduler).__name__,
            batch=1,
            dtype=_dtype_name(config, network.dtype),
            device=network.device.type,
            prompts_sha256=hashlib.sha256("\n".join(prompts).encode()).hexdigest(),
            # A full chain replaces the pipeline's combination; the scale only has to switch guidance on.
            guidance_scale=2.0 if config.guidance_scale is None else float(config.guidance_scale),
            sigmas=tuple(float(s) for s in config.sigmas),
        )
        return PreparedRun(
            config, prompt_blocks(self.pipe, config, prompts), versions(("diffusers", "transformers"))
        )


def open_model(config: RunConfig, device: str = "cpu") -> RunSource:
    """The model that a run names, on a device."""
    kind, _, where = config.model.partition(":")
    # tf32: float32 weights whose matrix products an NVIDIA GPU takes in TF32, as SiT's own sampler does.
    dtype = getattr(torch, "float32" if config.dtype == "tf32" else config.dtype)
    if kind == "diffusers" and where:
        pipe = open_pipeline(where, dtype=dtype, device=device)
        return PipelineSource(pipe, f"diffusers:{Path(where).name}", _source_hash(where))
    if kind == "scenes":
        return SceneSource(scenes(where or None).to(device, dtype))
    if kind == "fashion" and not where:
        return ClassSource(fashion().to(device, dtype))
    if kind == "sit" and where:
        decode = None if config.vae is None else decoder(config.vae, device=device)
        model = open_sit(where, decode=decode).to(device, dtype)
        return ClassSource(model, "" if config.vae is None else _source_hash(config.vae))
    raise ValueError(f"a model is fashion, scenes, sit:PATH or diffusers:PATH; got {config.model!r}")


def _check_rule(config: RunConfig) -> None:
    """Raises an error for a rule that needs a further prediction, before anything is made."""
    if config.solver not in SOLVERS:
        raise ValueError(f"known solvers are {', '.join(SOLVERS)}; got {config.solver!r}")
    needs = parse(config.rule).needs if config.rule else ()
    if unknown := [name for name in needs if name != "negative"]:
        raise ValueError(f"{config.rule} needs the prediction {unknown[0]!r}, which no shipped model makes")
    if needs and config.negative is None:
        raise ValueError(f"{config.rule} needs a further prediction: give --negative, what to avoid")


def _opened(config: RunConfig, model: ClassModel | SceneModel, weight: torch.Tensor) -> RunConfig:
    return replace(
        config,
        model=model.name,
        model_sha256=model.sha256,
        rule=str(parse(config.rule or "CFG(1)")),
        dtype=_dtype_name(config, weight.dtype),
        device=weight.device.type,
    )


def _dtype_name(config: RunConfig, dtype: Any) -> str:
    return "tf32" if config.dtype == "tf32" else str(dtype).removeprefix("torch.")


def _source_hash(source: str | Path) -> str:
    """SHA-256 over the names and contents of the files in a folder or a cached snapshot."""
    folder = local_folder(source)
    combined = hashlib.sha256()
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        combined.update(f"{path.relative_to(folder).as_posix()}\0{sha256_of(path)}\n".encode())
    return combined.hexdigest()
