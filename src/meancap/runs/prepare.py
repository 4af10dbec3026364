"""From what a user asked for to a run: the model opened, the configuration made, the maker of its blocks."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from ..files import sha256_of
from ..models.checkpoint import local_folder
from ..models.classes import ClassModel, decoder, fashion, open_sit
from ..rules import parse
from ..sampling import uniform
from ..scenes.model import SceneModel, scenes
from .config import RunConfig, versions
from .generate import MakeBlock, class_blocks, class_run, scene_blocks, scene_run
from .prompts import Pipeline, open_pipeline, prompt_blocks, prompt_run, read_prompts

# tf32: float32 weights whose matrix products an NVIDIA GPU takes in TF32, as SiT's own sampler does.
DTYPES = {
    "float32": torch.float32,
    "tf32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


@dataclass(frozen=True, eq=False)
class PreparedRun:
    """Everything that a run needs."""

    config: RunConfig
    make: MakeBlock
    made_with: dict[str, str]


@dataclass(frozen=True)
class RunRequest:
    """What a user asked for; the fields are the options of `meancap generate`."""

    model: str
    rule: str | None = None
    per_class: int = 10
    classes: str | None = None
    prompts: Path | None = None
    steps: int = 50
    solver: str = "euler"
    sampler: str = "ode"
    eta: float | None = None
    seed: int = 0
    batch: int = 50
    npz: bool = False
    diagnostics: bool = False
    channels: int | None = None
    vae: str | None = None
    guidance_scale: float | None = None
    size: int | None = None
    sigmas: tuple[float, ...] = ()
    noise: str = "per sample"
    dtype: str = "float32"
    threads: int = 1
    prompt: str | None = None
    negative: str | None = None

    @property
    def kept(self) -> dict[str, Any]:
        """What every kind of run takes as it was given."""
        return {
            "seed": self.seed,
            "images": "npz" if self.npz else "png",
            "diagnostics": self.diagnostics,
            "threads": self.threads,
        }

    @property
    def noise_level(self) -> float:
        """eta: 0 for the ODE; for the ancestral sampler 1, unless it was given."""
        if self.sampler == "ancestral":
            return 1.0 if self.eta is None else self.eta
        if self.eta:
            raise ValueError(f"--eta {self.eta:g} goes with --sampler ancestral; the ODE adds no noise")
        return 0.0


def need_negative(request: RunRequest) -> None:
    """Refuses a rule that avoids something before anything is made, where nobody said what."""
    needs = () if request.rule is None else parse(request.rule).needs
    if unknown := [name for name in needs if name != "negative"]:
        raise ValueError(
            f"{request.rule} looks at the prediction {unknown[0]!r}, which no shipped model makes"
        )
    if needs and request.negative is None:
        raise ValueError(f"{request.rule} looks at a further prediction: say with --negative what to avoid")


@dataclass(frozen=True, eq=False)
class Sentences:
    """The open model of the scenes."""

    model: SceneModel

    def prepare(self, request: RunRequest) -> PreparedRun:
        need_negative(request)
        if request.guidance_scale is not None or request.classes is not None or request.channels is not None:
            raise ValueError(
                "the scenes take --prompt or --prompts, --negative and --rule; --guidance-scale, --classes "
                "and --channels go with other models"
            )
        if request.noise_level:
            raise ValueError("the scenes are sampled by the ODE; --sampler ancestral goes with class models")
        if (request.prompt is None) == (request.prompts is None):
            raise ValueError('the scenes need --prompt "a red disc left of a blue square" or --prompts FILE')
        lines = [request.prompt or ""]
        if request.prompts is not None:
            lines = [line for line in read_prompts(request.prompts) if line]
        negatives = [request.negative or ""] * len(lines)
        config = scene_run(
            self.model,
            request.rule or "CFG(1)",
            lines,
            negatives,
            each=request.per_class,
            steps=request.steps,
            solver=request.solver,
            batch=request.batch,
            **request.kept,
        )
        config = replace(config, dtype=request.dtype)
        return PreparedRun(config, scene_blocks(self.model, config, lines, negatives), versions())


@dataclass(frozen=True, eq=False)
class OpenClassModel:
    """An open class-conditional model."""

    model: ClassModel
    decoded_by: str = ""

    def prepare(self, request: RunRequest) -> PreparedRun:
        need_negative(request)
        if request.guidance_scale is not None:
            raise ValueError(
                '--guidance-scale goes with diffusers:PATH; here the rule states it, as in "CFG(4)"'
            )
        model = replace(self.model, channels=request.channels)
        chosen = (
            None if request.classes is None else [model.label(text) for text in request.classes.split(",")]
        )
        config = class_run(
            model,
            request.rule or "CFG(1)",
            per_class=request.per_class,
            classes=chosen,
            times=uniform(request.steps),
            solver=request.solver,
            eta=request.noise_level,
            negative=None if request.negative is None else model.label(request.negative),
            batch=request.batch,
            **request.kept,
            decoder=self.decoded_by,
        )
        config = replace(config, dtype=request.dtype)
        packages = ("diffusers",) if self.decoded_by else ()
        return PreparedRun(config, class_blocks(model, config), versions(packages))


@dataclass(frozen=True, eq=False)
class OpenPipeline:
    """An open diffusers pipeline."""

    pipe: Pipeline
    name: str
    sha256: str

    def prepare(self, request: RunRequest) -> PreparedRun:
        if request.prompts is None or request.prompt is not None or request.negative is not None:
            raise ValueError(
                "a pipeline needs --prompts FILE, one prompt per line; --prompt and --negative are for scenes"
            )
        if request.classes is not None or request.channels is not None:
            raise ValueError("--classes and --channels go with fashion and sit:PATH; a pipeline has prompts")
        if request.sampler != "ode" or request.eta is not None:
            raise ValueError("--sampler and --eta go with fashion and sit:PATH; a pipeline has its scheduler")
        rule = None if request.rule is None else parse(request.rule)
        if request.guidance_scale is None and (rule is None or rule.caps):
            raise ValueError(
                "give --guidance-scale: without a rule, or with one that only caps, the pipeline guides by it"
            )
        lines = read_prompts(request.prompts)
        config = prompt_run(
            self.pipe,
            lines,
            request.rule or "",
            name=self.name,
            sha256=self.sha256,
            # A full chain replaces the pipeline's combination; the scale only has to switch guidance on.
            guidance_scale=2.0 if request.guidance_scale is None else request.guidance_scale,
            steps=request.steps,
            sigmas=request.sigmas,
            size=None if request.size is None else (request.size, request.size),
            noise=request.noise,
            **request.kept,
        )
        if request.dtype == "tf32":
            config = replace(config, dtype="tf32")
        return PreparedRun(
            config, prompt_blocks(self.pipe, config, lines), versions(("diffusers", "transformers"))
        )


def open_model(request: RunRequest, device: str = "cpu") -> OpenClassModel | OpenPipeline | Sentences:
    """The model that a request names, on a device; several runs can be made with it."""
    kind, _, where = request.model.partition(":")
    dtype = DTYPES[request.dtype]
    if kind == "diffusers" and where:
        pipe = open_pipeline(where, dtype=dtype, device=device)
        return OpenPipeline(pipe, f"diffusers:{Path(where).name}", source_digest(where))
    if kind == "scenes":
        return Sentences(scenes(where or None).to(device, dtype))
    if request.prompts is not None or request.prompt is not None:
        raise ValueError(
            f"{request.model} is guided by classes; prompts go with --model scenes and --model diffusers:PATH"
        )
    if kind == "fashion" and not where:
        return OpenClassModel(fashion().to(device, dtype))
    if kind == "sit" and where:
        decode = None if request.vae is None else decoder(request.vae, device=device)
        model = open_sit(where, decode=decode).to(device, dtype)
        return OpenClassModel(model, "" if request.vae is None else source_digest(request.vae))
    raise ValueError(f"a model is fashion, scenes, sit:PATH or diffusers:PATH; got {request.model!r}")


def source_digest(source: str | Path) -> str:
    """SHA-256 over the names and contents of the files in a folder or a cached snapshot."""
    folder = local_folder(source)
    combined = hashlib.sha256()
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        combined.update(f"{path.relative_to(folder).as_posix()}\0{sha256_of(path)}\n".encode())
    return combined.hexdigest()
