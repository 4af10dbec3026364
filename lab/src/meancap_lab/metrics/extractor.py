"""What an extractor is, the features it gives, and where pretrained weights are looked for.

The order is the same for every file of weights: the path you give, its own environment variable, the folder
named by MEANCAP_WEIGHTS, torch's hub cache, and the places where the other tools keep theirs. Nothing is ever
downloaded.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from textwrap import shorten
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from ..tensor_files import read_tensors
from ..torch_settings import torch_settings

Features = dict[str, Tensor]
_Net = TypeVar("_Net", bound=nn.Module)
_ROWS = 4096  # rows looked at together
_FOLDER = "MEANCAP_WEIGHTS"


@dataclass(frozen=True, eq=False)
class Extractor:
    """`identity` names network, weights and resize; features are kept on disk under it.

    `run` takes (batch, height, width, channels) bytes and one prompt per image (empty if there are none), and
    resizes on the CPU, where the protocols define it; `network` alone goes to another device.
    """

    identity: str
    run: Callable[[Tensor, Sequence[str]], Features]
    batch: int = 50
    needs_prompts: bool = False
    network: nn.Module | None = None

    def __call__(self, images: Tensor, prompts: Sequence[str] = ()) -> Features:
        if self.needs_prompts and len(prompts) != len(images):
            raise ValueError(f"{self.identity} needs one prompt per image; got {len(prompts)}")
        # Float32 to its last digit on every device: TF32 would move a Frechet distance.
        with torch.inference_mode(), torch_settings(tf32=False):
            features = self.run(images, prompts)
        return {name: value.float().cpu() for name, value in features.items()}

    def on(self, device: str, batch: int | None = None, *, compiled: bool = False) -> Extractor:
        """The extractor with its network on a device, another batch size, and compiled by torch."""
        if self.network is not None:
            self.network.to(device)
            if compiled:
                self.network.compile()
        return replace(self, batch=batch or self.batch)


def beside(network: nn.Module, x: Tensor) -> Tensor:
    """The tensor on the network's device."""
    return x.to(next(network.parameters()).device)


def extract(extractor: Extractor, images: Tensor, prompts: Sequence[str] = ()) -> Features:
    """Features of images held in memory, in batches of the extractor's size."""
    parts = []
    for start in range(0, len(images), extractor.batch):
        rows = slice(start, start + extractor.batch)
        parts.append(extractor(images[rows], prompts[rows]))
    if not parts:
        raise ValueError("there are no images to extract features from")
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


class MissingWeights(FileNotFoundError):
    """Weights that a protocol needs and that are not on this machine."""


@dataclass(frozen=True)
class Weights:
    """A file that others publish: the names it goes by, and how the sha256 of good copies begins."""

    title: str
    names: tuple[str, ...]
    variable: str
    source: str
    habits: tuple[str, ...] = ()  # folders where other tools put it
    sha256: tuple[str, ...] = ()

    def places(self) -> Iterator[Path]:
        """Every path that is tried when none is given, in order."""
        if own := os.environ.get(self.variable):
            yield Path(own)
        shared = os.environ.get(_FOLDER)
        folders = [Path(shared)] if shared else []
        folders.append(Path(torch.hub.get_dir()) / "checkpoints")
        folders += [Path(habit).expanduser() for habit in self.habits]
        for folder in folders:
            for name in self.names:
                yield folder / name

    def find(self, path: str | Path | None = None) -> Path:
        """The file, or one sentence on what is missing and where to put it."""
        if path is not None:
            given = Path(path)
            file = next((given / n for n in self.names if (given / n).is_file()), given)
            if file.is_file():
                return file
            raise MissingWeights(f"{self.title}: there is no {self.names[0]} at {given}")
        for place in self.places():
            if place.is_file():
                return place
        raise MissingWeights(
            f"{self.title} is not on this machine: put {self.names[0]} (from {self.source}) into the folder "
            f"that {_FOLDER} names, or set {self.variable} to its path"
        )


def load_network(network: _Net, path: Path, title: str, *, rename: Callable[[str], str | None] = str) -> _Net:
    """The network with the tensors of a file in float32, for evaluation; `rename` drops a name by None."""
    named = {rename(name): value for name, value in read_tensors(path)[0].items()}
    try:
        network.load_state_dict({k: v for k, v in named.items() if k is not None}, assign=True)
    except RuntimeError as error:
        first = shorten(str(error).splitlines()[-1], 160, placeholder=" ...")
        raise ValueError(f"{path.name} is not {title}: {first}") from error
    return network.float().eval().requires_grad_(False)


def fold_norms(network: nn.Module) -> None:
    """Merge every batch norm into the convolution listed before it; the function stays the same."""
    for part in list(network.modules()):
        for (name, first), (after, norm) in pairwise(list(part.named_children())):
            if isinstance(first, nn.Conv2d) and isinstance(norm, nn.BatchNorm2d):
                setattr(part, name, fuse_conv_bn_eval(first, norm))
                setattr(part, after, nn.Identity())


def need_features(*tensors: Tensor) -> None:
    """Feature sets are finite matrices of floats with one row per image and equal widths."""
    _need_rows(*tensors)
    for x in tensors:
        if not all(torch.isfinite(block).all() for block in torch.split(x, _ROWS)):
            raise ValueError(
                "features are not finite: look for broken images or an overflow in the extractor"
            )


def need_logits(x: Tensor) -> None:
    """A logit of -inf is a probability of 0; nan, inf, and a row of -inf alone are no probabilities."""
    _need_rows(x)
    if not torch.isfinite(x.amax(1)).all():
        raise ValueError("logits are not finite: look for broken images or an overflow in the classifier")


def _need_rows(*tensors: Tensor) -> None:
    """Matrices of floats with one row per image and equal widths."""
    for x in tensors:
        if not isinstance(x, Tensor):
            raise TypeError(f"features are a torch tensor, as torch.from_numpy makes one; got {type(x)}")
        if x.dim() != 2 or not x.is_floating_point():
            raise ValueError(
                f"features are a floating-point matrix, one row per image; got {x.dtype} {tuple(x.shape)}"
            )
        if x.numel() == 0:
            raise ValueError("the features are empty; give at least one image")
    widths = {x.shape[1] for x in tensors}
    if len(widths) > 1:
        raise ValueError(f"both sets need features of the same extractor; got widths {sorted(widths)}")


def need_images(images: Tensor) -> None:
    """Images are (batch, height, width, channels) bytes: anything else raises an error."""
    if images.dtype != torch.uint8 or images.dim() != 4 or images.shape[-1] not in (1, 3):
        raise ValueError(
            "images are uint8 of shape (batch, height, width, 1 or 3), as the ADM evaluator reads them; got "
            f"{images.dtype} {tuple(images.shape)}"
        )
