"""What a user chooses of a run, and what decides its bytes.

RunConfig     the options of `meancap generate`, checked before a model is opened
RunIdentity   the run once its model is open, with hashes, the grid and the number of samples: the
              configuration in run.json. Folders with the same identity hold the same bytes
block         `batch` neighbouring indices; made together, saved together, the most that a kill can lose
seed          of sample i: 1,000,003 times the run's seed, plus i, and 2^64 seeds further for every
              1,000,003 samples. Two runs of one seed share all their noise, two of different seeds none
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

_STRIDE = 1_000_003
_SEEDS = 2**64
_MOST_SAMPLES = 10_000_000
# Every kind of model, as a user writes it.
MODELS = {
    "fashion": "fashion",
    "cifar": "cifar[:PATH]",
    "scenes": "scenes[:PATH]",
    "sit": "sit:PATH",
    "diffusers": "diffusers:PATH",
}
_CLASSES = ("fashion", "cifar", "sit")
# Options that only some kinds of models take.
TAKERS = {
    **dict.fromkeys(("classes", "channels", "sampler", "eta"), _CLASSES),
    **dict.fromkeys(("solver", "batch", "negative", "per_class"), (*_CLASSES, "scenes")),
    **dict.fromkeys(("guidance_scale", "size", "sigmas"), ("diffusers",)),
    "vae": ("sit",),
    "prompt": ("scenes",),
    "prompts": ("scenes", "diffusers"),
}
CHOICES = {
    "dtype": ("float32", "tf32", "bfloat16", "float16"),
    "noise": ("per sample", "stream", "device"),
    "images": ("png", "npz"),
    "sampler": ("ode", "ancestral"),
}
_RANGES = {
    "seed": (0, _SEEDS - 1),
    "batch": (1, 100_000),
    "threads": (1, 1024),
    "steps": (1, 10_000),
    "per_class": (1, _MOST_SAMPLES),
}


def sample_seed(seed: int, index: int) -> int:
    """The seed of one sample, for `noise` and `generator_of`: no other run seed and index have the same."""
    if not (0 <= seed < _SEEDS and index >= 0):
        raise ValueError(
            f"a seed must be from 0 to 2^64 - 1, and a sample's index from 0; got {seed}, {index}"
        )
    page, row = divmod(index, _STRIDE)
    return (page * _SEEDS + seed) * _STRIDE + row


@dataclass(frozen=True)
class RunConfig:
    """A run: `RunConfig("fashion", rule="CFG(4)", per_class=2)` is `meancap generate` in Python."""

    model: str
    rule: str | None = None
    classes: tuple[int | str, ...] = ()
    solver: str = "euler"
    sampler: str = "ode"
    eta: float | None = None  # noise level of the ancestral sampler
    negative: int | str | None = None  # the reference, or a prediction beside it for rules that need both
    seed: int = 0
    batch: int = 50
    dtype: str = "float32"  # of the network; guidance is computed in float32 at least
    channels: int | None = None
    noise: str = "per sample"
    images: str = "png"
    diagnostics: bool = False
    device: str = ""
    threads: int = 1
    guidance_scale: float | None = None
    size: tuple[int, int] | None = None
    steps: int = 50
    per_class: int = 10
    vae: str | None = None
    prompts: Path | None = None
    prompt: str | None = None
    times: tuple[float, ...] = ()  # a grid, in place of `steps`
    sigmas: tuple[float, ...] = ()  # a grid for the pipeline, in place of its own

    def __post_init__(self) -> None:
        kind, _, where = self.model.partition(":")
        form = MODELS.get(kind, "")
        if not form or (where and "PATH" not in form) or (not where and form.endswith(":PATH")):
            *first, last = MODELS.values()
            raise ValueError(f"a model is {', '.join(first)} or {last}; got {self.model!r}")
        for f in fields(self):
            value, name = getattr(self, f.name), f"--{f.name.replace('_', '-')}"
            if value != f.default and kind not in TAKERS.get(f.name, MODELS):
                raise ValueError(f"{name} goes with {takers(f.name)}; got --model {self.model}")
            if value not in CHOICES.get(f.name, (value,)):
                raise ValueError(f"{f.name} must be one of {', '.join(CHOICES[f.name])}; got {value!r}")
            least, most = _RANGES.get(f.name, (None, None))
            if least is not None and not least <= value <= most:
                raise ValueError(f"{name} must be at least {least} and at most {most}; got {value}")
        if self.rule is not None and not self.rule.strip():
            raise ValueError('--rule needs a rule, such as "CFG(4) | Cap(1.1)"; leave it out for no guidance')
        if self.noise == "stream" and kind != "diffusers":
            raise ValueError(f"--noise stream goes with {MODELS['diffusers']}; got --model {self.model}")
        eta = self.noise_level
        if not 0 <= eta <= 1 or (eta and self.solver != "euler"):
            raise ValueError(
                f"eta runs from 0 (the ODE) to 1 (memoryless), above 0 with the Euler solver only; "
                f"got eta {eta} and solver {self.solver}"
            )

    @property
    def noise_level(self) -> float:
        """eta: 0 for the ODE; for the ancestral sampler 1, unless it was given."""
        if self.sampler == "ancestral":
            return 1.0 if self.eta is None else self.eta
        if self.eta:
            raise ValueError(f"--eta {self.eta:g} goes with --sampler ancestral; the ODE adds no noise")
        return 0.0

    def identity(self, **opened: Any) -> RunIdentity:
        """The run, with what its open model brought or changed."""
        names = {f.name for f in fields(RunIdentity)}
        chosen = {f.name: getattr(self, f.name) for f in fields(self) if f.name in names}
        return RunIdentity(**{**chosen, "eta": self.noise_level, **opened})


@dataclass(frozen=True)
class RunIdentity:
    """Everything that decides the bytes of a run, in the order of run.json."""

    model: str
    model_sha256: str
    rule: str
    times: tuple[float, ...]  # the grid, data at 1
    count: int
    classes: tuple[int | str, ...] = ()
    solver: str = "euler"
    seed: int = 0
    batch: int = 50
    dtype: str = "float32"
    channels: int | None = None
    decoder: str = ""  # SHA-256 of the autoencoder's folder, for latent models
    noise: str = "per sample"
    images: str = "png"
    diagnostics: bool = False
    device: str = ""
    threads: int = 1
    prompts_sha256: str = ""
    guidance_scale: float | None = None
    size: tuple[int, int] | None = None
    sigmas: tuple[float, ...] = ()
    eta: float = 0.0  # 0 is the ODE, which `solver` integrates
    negative: int | None = None

    def __post_init__(self) -> None:
        if self.count > _MOST_SAMPLES:
            raise ValueError(f"a run has at most {_MOST_SAMPLES:,} samples; got {self.count:,}")

    @property
    def blocks(self) -> int:
        return -(-self.count // self.batch)

    def indices(self, block: int) -> range:
        """The indices of a block that belong to the run."""
        return range(block * self.batch, min((block + 1) * self.batch, self.count))

    def as_json(self) -> dict[str, Any]:
        """As it comes back from a file: tuples are lists. Unset eta and negative are left out."""
        unset = {"eta"} if not self.eta else set()
        unset |= {"negative"} if self.negative is None else set()
        copied: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return {name: value for name, value in copied.items() if name not in unset}


def takers(option: str) -> str:
    """The models that take an option, as help and error messages name them."""
    return ", ".join(MODELS[kind] for kind in TAKERS[option])


def versions(packages: Sequence[str] = ()) -> dict[str, str]:
    """The versions that decide a run's bits."""
    from importlib.metadata import PackageNotFoundError, version

    import torch

    from meancap import __version__

    installed = {"meancap": __version__, "torch": torch.__version__}
    for package in packages:
        try:
            installed[package] = version(package)
        except PackageNotFoundError:
            installed[package] = "absent"
    return installed
