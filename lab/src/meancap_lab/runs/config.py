"""What a run is: one frozen value whose fields are the options of `meancap generate` and of run.json.

    block   `batch` neighbouring indices; made together, saved together, the most that a kill can lose
    seed    of sample i: 1,000,003 times the run's seed, plus i, and 2^64 seeds further for every 1,000,003
            samples. Two runs of one seed share all their noise, and two runs of different seeds none of it

A user gives the options; opening the model (`meancap_lab.runs.generate`) fills in the rest: hashes, the grid,
the number of samples. Fields up to `negative` are in run.json, in this order; the others only lead to them.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any

_STRIDE = 1_000_003
_SEEDS = 2**64
_DTYPES = ("float32", "tf32", "bfloat16", "float16")
# Which models take an option, as help and error messages name them.
_MODELS = {"class": "fashion, cifar, sit:PATH", "scenes": "scenes", "pipeline": "diffusers:PATH"}


def sample_seed(seed: int, index: int) -> int:
    """The seed of one sample, for `noise` and `generator_of`: no other run seed and index have the same."""
    if not (0 <= seed < _SEEDS and index >= 0):
        raise ValueError(
            f"a seed must be from 0 to 2^64 - 1, and a sample's index from 0; got {seed}, {index}"
        )
    page, row = divmod(index, _STRIDE)
    return (page * _SEEDS + seed) * _STRIDE + row


def _option(help: str, default: Any = MISSING, *kinds: str, least: int | None = None, **argument: Any) -> Any:
    """A field that is an option too, for the models `kinds` (none: all); `argument` goes to argparse."""
    return field(
        default=default,
        metadata={"argument": {"help": help, **argument}, "kinds": kinds, "least": least},
    )


def _names(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(","))


def _square(text: str) -> tuple[int, int]:
    return int(text), int(text)


@dataclass(frozen=True)
class RunConfig:
    """A run: `RunConfig("fashion", rule="CFG(4)", per_class=2)` is `meancap generate` in Python."""

    model: str = _option(
        "fashion, cifar[:PATH], scenes[:PATH], sit:PATH or diffusers:PATH", metavar="M", required=True
    )
    model_sha256: str = ""
    rule: str = _option('guidance, such as "CFG(4) | Cap(1.1)"; none if not given', "", metavar="R")
    times: tuple[float, ...] = ()  # the grid, data at 1
    count: int = 0
    classes: tuple[int | str, ...] = _option(
        "only these classes, by number or name", (), "class", metavar="A,B", type=_names
    )
    solver: str = _option("euler (default), heun, midpoint or rk4", "euler", "class", "scenes")
    seed: int = _option("of the run; each sample has one of its own (%(default)s)", 0, least=0, type=int)
    batch: int = _option(
        "made and saved at once (%(default)s)", 50, "class", "scenes", least=1, metavar="N", type=int
    )
    # Of the network; guidance is computed in float32 at least, whatever this is.
    dtype: str = _option(
        "precision of the network (%(default)s); guidance stays in float32", "float32", choices=_DTYPES
    )
    channels: int | None = _option(
        "guide only the first N latent channels", None, "class", metavar="N", type=int
    )
    decoder: str = ""  # SHA-256 of the autoencoder's folder, for latent models
    noise: str = _option(
        "'stream' is one generator over all prompts in order, as in the paper's SD3.5 runs",
        "per sample", "pipeline", choices=("per sample", "stream"),
    )  # fmt: skip
    images: str = _option(
        "one samples.npz (arr_0 uint8 NHWC), no PNG files",
        "png",
        flag="npz",
        action="store_const",
        const="npz",
    )
    diagnostics: bool = _option("keep the guidance meter of every step", False, action="store_true")
    device: str = _option("cpu, cuda or mps; default cuda if there is one, else cpu", "")
    threads: int = _option("CPU threads; they are part of the run (%(default)s)", 1, least=1, type=int)
    prompts_sha256: str = ""
    # What the pipeline itself is told.
    guidance_scale: float | None = _option(
        "the pipeline's own scale", None, "pipeline", metavar="S", type=float
    )
    size: tuple[int, int] | None = _option(
        "height and width of the pictures", None, "pipeline", metavar="PX", type=_square
    )
    sigmas: tuple[float, ...] = ()  # given to the pipeline in place of its own grid
    # Noise level of the sampler; 0 is the ODE, which `solver` integrates.
    eta: float | None = _option(
        "its noise level, 0 (ODE) to 1 (default)", None, "class", metavar="E", type=float
    )
    # The reference prediction, or one beside it for rules that need both.
    negative: int | str | None = _option("a sentence or class to avoid", None, "class", "scenes", metavar="S")
    # Not in run.json:
    steps: int = _option("with Euler also evaluations (%(default)s)", 50, metavar="N", type=int)
    per_class: int = _option(
        "samples of each class or prompt (%(default)s)", 10, "class", "scenes", least=1, metavar="N", type=int
    )
    sampler: str = _option(
        "'ancestral' adds fresh noise in each step; a scale means another strength there (ode)",
        "ode", "class", choices=("ode", "ancestral"),
    )  # fmt: skip
    vae: str | None = _option(
        "autoencoder of a latent model: folder or cached name", None, "class", metavar="DIR"
    )
    prompts: Path | None = _option(  # noqa: RUF009
        "one prompt per line", None, "scenes", "pipeline", metavar="FILE", type=Path
    )
    prompt: str | None = _option(
        'one sentence, such as "a red disc above a square"', None, "scenes", metavar="S"
    )

    def __post_init__(self) -> None:
        if self.images not in ("png", "npz"):
            raise ValueError(f"images must be png or npz; got {self.images!r}")
        for f in fields(self):
            value, argument = getattr(self, f.name), f.metadata.get("argument", {})
            if (choices := argument.get("choices")) and value not in choices:
                raise ValueError(f"{f.name} must be one of {', '.join(choices)}; got {value!r}")
            least = f.metadata.get("least")
            if least is not None and value < least:
                raise ValueError(f"--{_flag(f)} must be at least {least}; got {value}")
        eta = self.eta or 0.0
        if not 0 <= eta <= 1 or (eta and self.solver != "euler"):
            raise ValueError(
                f"eta runs from 0 (the ODE) to 1 (memoryless), above 0 with the Euler solver only; "
                f"got eta {eta} and solver {self.solver}"
            )

    def require_kind(self, kind: str) -> None:
        """Raises an error for an option that a model of this kind does not take."""
        for f in fields(self):
            kinds = f.metadata.get("kinds", ())
            if kinds and kind not in kinds and getattr(self, f.name) != f.default:
                raise ValueError(f"--{_flag(f)} goes with {_takers(kinds)}; got --model {self.model}")

    @property
    def noise_level(self) -> float:
        """eta: 0 for the ODE; for the ancestral sampler 1, unless it was given."""
        if self.sampler == "ancestral":
            return 1.0 if self.eta is None else self.eta
        if self.eta:
            raise ValueError(f"--eta {self.eta:g} goes with --sampler ancestral; the ODE adds no noise")
        return 0.0

    @property
    def blocks(self) -> int:
        return -(-self.count // self.batch)

    def indices(self, block: int) -> range:
        """The indices of a block that belong to the run."""
        return range(block * self.batch, min((block + 1) * self.batch, self.count))

    def as_json(self) -> dict[str, Any]:
        """As it comes back from a file: tuples are lists. Unset eta and negative are left out."""
        names = [f.name for f in fields(self)]
        plain = {name: getattr(self, name) for name in names[: names.index("negative") + 1]}
        if not self.eta:
            del plain["eta"]
        if self.negative is None:
            del plain["negative"]
        copied: dict[str, Any] = json.loads(json.dumps(plain))
        return copied


def add_options(parser: argparse.ArgumentParser, *only: str) -> None:
    """The options of a run, all or some by name, each under the heading of the models that take it."""
    groups: dict[tuple[str, ...], Any] = {(): parser}
    for f in fields(RunConfig):
        if "argument" not in f.metadata or (only and f.name not in only):
            continue
        kinds = f.metadata["kinds"]
        if kinds not in groups:
            groups[kinds] = parser if only else parser.add_argument_group(f"for {_takers(kinds)}")
        argument = dict(f.metadata["argument"])
        argument.pop("flag", None)
        default = {} if f.default is MISSING else {"default": f.default}
        groups[kinds].add_argument(f"--{_flag(f)}", dest=f.name, **default, **argument)


def config_of(args: argparse.Namespace, **given: Any) -> RunConfig:
    """The run that parsed options describe, and what is given beside them."""
    named = {f.name: getattr(args, f.name) for f in fields(RunConfig) if hasattr(args, f.name)}
    return RunConfig(**{**named, **given})


def _takers(kinds: Sequence[str]) -> str:
    return " and ".join(_MODELS[kind] for kind in kinds)


def _flag(f: Any) -> str:
    argument: Mapping[str, Any] = f.metadata.get("argument", {})
    return str(argument.get("flag", f.name)).replace("_", "-")


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
