"""What a run is: every choice that decides its bytes, as one frozen value that a file can hold.

item    one sample to make: its index, its seed, and its class or its prompt
block   `batch` neighbouring indices; made together, saved together, the most that a kill can lose
seed    of sample i: 1,000,003 times the run's seed, plus i; two runs of one seed share all their noise,
        two runs of different seeds none of it (up to a million samples)
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

_STRIDE = 1_000_003


def sample_seed(seed: int, index: int) -> int:
    """The generator seed of one sample; torch uses its lowest 32 bits."""
    return (seed * _STRIDE + index) % 2**32


@dataclass(frozen=True)
class Item:
    """One sample to make."""

    index: int
    seed: int
    label: int | None = None
    prompt: str | None = None


@dataclass(frozen=True)
class RunConfig:
    """The configuration in run.json; a folder begun with another one is refused."""

    model: str
    model_sha256: str
    rule: str
    times: tuple[float, ...]  # the grid, data at 1
    count: int
    classes: tuple[int, ...] = ()
    solver: str = "euler"
    seed: int = 0
    batch: int = 64
    dtype: str = "float32"  # of the network; guidance is in float32 at least, whatever this is
    channels: int | None = None  # how many leading channels are guided; None is all of them
    decoder: str = ""  # SHA-256 of the autoencoder's folder, for latent models
    noise: str = "per sample"
    images: str = "png"
    diagnostics: bool = False
    device: str = "cpu"
    threads: int = 1
    # Pipelines with prompts:
    prompts_sha256: str = ""
    guidance_scale: float | None = None  # what the pipeline itself is told
    size: tuple[int, int] | None = None  # height and width in pixels
    sigmas: tuple[float, ...] = ()  # handed to the pipeline, where its own grid is not wanted
    # Class models only:
    eta: float = 0.0  # noise level of the sampler; 0 is the ODE, which `solver` integrates
    negative: int | None = None  # a class to avoid: the reference, or beside it for rules that look at both

    def __post_init__(self) -> None:
        for name, known in (("images", ("png", "npz")), ("noise", ("per sample", "stream"))):
            if getattr(self, name) not in known:
                raise ValueError(f"{name} must be one of {', '.join(known)}; got {getattr(self, name)!r}")
        for name in ("count", "batch", "threads"):
            if getattr(self, name) < 1:
                raise ValueError(f"a run needs at least 1 for {name}; got {getattr(self, name)}")
        if not 0 <= self.eta <= 1 or (self.eta and self.solver != "euler"):
            raise ValueError(
                f"eta runs from 0 (the ODE) to 1 (memoryless), above 0 with the Euler solver only; "
                f"got eta {self.eta} and solver {self.solver}"
            )
        if self.seed < 0:
            raise ValueError(f"a run needs a seed of 0 or more; got {self.seed}")

    @property
    def blocks(self) -> int:
        return -(-self.count // self.batch)

    def indices(self, block: int) -> range:
        """The indices of a block that belong to the run."""
        return range(block * self.batch, min((block + 1) * self.batch, self.count))

    def as_json(self) -> dict[str, Any]:
        """As it comes back from a file: tuples are lists. What a run has not is not said: eta, negative."""
        plain: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        if not self.eta:
            del plain["eta"]
        if self.negative is None:
            del plain["negative"]
        return plain


def class_items(config: RunConfig, block: int) -> list[Item]:
    """The samples of a block, filled up to a whole batch so that no sample's bits depend on the count.

    Classes take turns, so that every stretch of a run holds them in equal numbers.
    """
    return [
        Item(i, sample_seed(config.seed, i), label=config.classes[i % len(config.classes)])
        for i in range(block * config.batch, (block + 1) * config.batch)
    ]


def versions(packages: Sequence[str] = ()) -> dict[str, str]:
    """The versions that decide a run's bits."""
    from importlib.metadata import PackageNotFoundError, version

    import torch

    from .. import __version__

    installed = {"meancap": __version__, "torch": torch.__version__}
    for package in packages:
        try:
            installed[package] = version(package)
        except PackageNotFoundError:
            installed[package] = "absent"
    return installed
