"""What an extractor is: images in, named features out, and an identity that says which network and resize."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

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
            found = self.run(images, prompts)
        return {name: value.float().cpu() for name, value in found.items()}


def extract(extractor: Extractor, images: Tensor, prompts: Sequence[str] = ()) -> Features:
    """Features of images held in memory, in batches of the extractor's size."""
    parts = []
    for start in range(0, len(images), extractor.batch):
        rows = slice(start, start + extractor.batch)
        parts.append(extractor(images[rows], prompts[rows]))
    if not parts:
        raise ValueError("there are no images to extract features from")
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def load_state(path: Any) -> dict[str, Tensor]:
    """Tensors from .safetensors, or from a .pt file without running anything stored in it."""
    if str(path).endswith(".safetensors"):
        from safetensors.torch import load_file

        return load_file(path)
    state = torch.load(path, map_location="cpu", weights_only=True)
    if not isinstance(state, dict) or not all(isinstance(v, Tensor) for v in state.values()):
        raise ValueError(f"{path} does not hold a plain table of tensors")
    return state
