"""What an extractor is: images in, named features out, and an identity that says which network and resize."""

from __future__ import annotations

import pickle
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten
from typing import TypeVar

import torch
from torch import Tensor, nn

Net = TypeVar("Net", bound=nn.Module)
Features = dict[str, Tensor]


@dataclass(frozen=True, eq=False)
class Extractor:
    """`identity` names network, weights and resize; features are kept on disk under it.

    `run` takes (batch, height, width, channels) bytes and one prompt per image (empty where there are none).
    """

    identity: str
    run: Callable[[Tensor, Sequence[str]], Features]
    batch: int = 50
    needs_prompts: bool = False

    def __call__(self, images: Tensor, prompts: Sequence[str] = ()) -> Features:
        if self.needs_prompts and len(prompts) != len(images):
            raise ValueError(f"{self.identity} needs one prompt per image; got {len(prompts)}")
        with torch.inference_mode():
            features = self.run(images, prompts)
        return {name: value.float().cpu() for name, value in features.items()}


def extract(extractor: Extractor, images: Tensor, prompts: Sequence[str] = ()) -> Features:
    """Features of images held in memory, in batches of the extractor's size."""
    parts = []
    for start in range(0, len(images), extractor.batch):
        rows = slice(start, start + extractor.batch)
        parts.append(extractor(images[rows], prompts[rows]))
    if not parts:
        raise ValueError("there are no images to extract features from")
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


# What torch.load raises on files that are cut off, of another format or hold more than tensors.
_UNREADABLE = (
    pickle.UnpicklingError, struct.error, RuntimeError, EOFError, ValueError, LookupError, AttributeError,
    TypeError,
)  # fmt: skip


def load_state(path: Path) -> dict[str, Tensor]:
    """Tensors from .safetensors, or from a .pt file without running anything stored in it."""
    if not path.is_file():
        raise FileNotFoundError(f"there is no file of weights at {path}")
    if path.suffix == ".safetensors":
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        try:
            return load_file(path)
        except SafetensorError as error:
            raise ValueError(f"{path} is no readable safetensors file ({error})") from error
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except _UNREADABLE as error:
        raise ValueError(f"{path} is no readable file of plain tensors ({type(error).__name__})") from error
    if not isinstance(state, dict) or not all(isinstance(v, Tensor) for v in state.values()):
        raise ValueError(f"{path} does not hold a plain table of tensors")
    return state


def filled(network: Net, state: dict[str, Tensor], path: Path, title: str) -> Net:
    """The network with the tensors of a file, in evaluation mode, or a sentence about what does not fit."""
    try:
        network.load_state_dict(state, assign=True)
    except RuntimeError as error:
        first = shorten(str(error).splitlines()[-1], 160, placeholder=" ...")
        raise ValueError(f"{path.name} is not {title}: {first}") from error
    return network.float().eval().requires_grad_(False)
