"""Features of a set of images, kept on disk in blocks, so that a stopped extraction goes on where it was.

    features/<protocol>-<key>/00000.safetensors    each block of 1,000 images, written whole or not at all

The key stands for the extractor and for the images: other weights, another resize or a changed file make
another key, and what was kept for older images of the same protocol is removed.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ..files import write_whole
from ..metrics.extractors import Extractor, Features
from ..metrics.images import Images
from .scores import Damaged

BLOCK = 1000


@dataclass(frozen=True)
class FeatureCache:
    """Where the features of one set of images under one extractor are kept."""

    folder: Path
    count: int

    @classmethod
    def of(cls, root: Path, protocol: str, extractor: Extractor, images: Images) -> FeatureCache:
        text = f"{extractor.identity}\n{images.identity()}\n{len(images)}"
        key = hashlib.sha256(text.encode()).hexdigest()[:12]
        return cls(root / f"{protocol}-{key}", len(images))

    def missing(self) -> list[int]:
        """Blocks that are still to be made."""
        blocks = range(-(-self.count // BLOCK))
        return [b for b in blocks if not self._path(b).is_file()]

    def fill(self, images: Images, extractor: Extractor, prompts: Sequence[str] = ()) -> Iterator[int]:
        """Makes the missing blocks; yields how many images have been read since the last time."""
        for block in self.missing():
            start, stop = block * BLOCK, min((block + 1) * BLOCK, self.count)
            parts = []
            for first in range(start, stop, extractor.batch):
                size = min(extractor.batch, stop - first)
                parts += _extracted(extractor, images.read(first, size), prompts[first : first + size])
                yield size
            self._write(block, {name: torch.cat([p[name] for p in parts]) for name in parts[0]})

    def load(self) -> Features:
        """All features; every block must be there."""
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        try:
            blocks = [load_file(self._path(b)) for b in range(-(-self.count // BLOCK))]
        except SafetensorError:
            raise Damaged(f"the features in {self.folder} are damaged; delete them and score again") from None
        return {name: torch.cat([block[name] for block in blocks]) for name in blocks[0]}

    def drop_older(self, protocol: str) -> None:
        """Removes what was kept under the same protocol for other images or weights."""
        for other in self.folder.parent.glob(f"{protocol}-????????????"):
            if other != self.folder:
                shutil.rmtree(other, ignore_errors=True)

    def _path(self, block: int) -> Path:
        return self.folder / f"{block:05d}.safetensors"

    def _write(self, block: int, features: Features) -> None:
        from safetensors.torch import save

        self.folder.mkdir(parents=True, exist_ok=True)
        write_whole(self._path(block), save({name: value.contiguous() for name, value in features.items()}))


def cache_root() -> Path:
    """Where features of reference images are kept: $MEANCAP_CACHE, else the user's cache folder."""
    if own := os.environ.get("MEANCAP_CACHE"):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "meancap"


def _extracted(extractor: Extractor, stacks: list[Tensor], prompts: Sequence[str]) -> list[Features]:
    features, at = [], 0
    for stack in stacks:
        features.append(extractor(stack, prompts[at : at + len(stack)]))
        at += len(stack)
    return features
