"""Where pretrained weights are looked for. Nothing is ever downloaded.

The order is the same for every file: the path you give, its own environment variable, the folder named by
MEANCAP_WEIGHTS, torch's hub cache, and the places where the other tools keep theirs.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

FOLDER = "MEANCAP_WEIGHTS"


class MissingWeights(FileNotFoundError):
    """Weights that a protocol needs and that are not on this machine."""


@dataclass(frozen=True)
class Weights:
    """A file that others publish: the names it goes by, and the start of its sha256 where that is known."""

    title: str
    names: tuple[str, ...]
    variable: str
    source: str
    habits: tuple[str, ...] = ()  # folders where other tools put it; {temp} is the temporary folder
    sha256: str = ""

    def places(self) -> Iterator[Path]:
        """Every path that is tried when none is given, in order."""
        if own := os.environ.get(self.variable):
            yield Path(own)
        shared = os.environ.get(FOLDER)
        folders = [Path(shared)] if shared else []
        folders.append(Path(torch.hub.get_dir()) / "checkpoints")
        folders += [Path(h.format(temp=tempfile.gettempdir())).expanduser() for h in self.habits]
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
            f"that {FOLDER} names, or set {self.variable} to its path"
        )


def fingerprint(path: Path) -> str:
    """The first 16 digits of the file's sha256."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()[:16]


INCEPTION = Weights(
    "the FID Inception network of 2015",
    ("weights-inception-2015-12-05-6726825d.pth", "pt_inception-2015-12-05-6726825d.pth"),
    "MEANCAP_INCEPTION",
    "github.com/toshas/torch-fidelity/releases/tag/v0.2.0",
    sha256="6726825d",
)
IMAGE_REWARD = Weights(
    "ImageReward-v1.0",
    ("ImageReward.pt",),
    "MEANCAP_IMAGEREWARD",
    "huggingface.co/THUDM/ImageReward",
    habits=("~/.cache/ImageReward",),
)
BERT_WORDS = Weights(
    "the word list of bert-base-uncased",
    ("bert-base-uncased-vocab.txt", "vocab.txt"),
    "MEANCAP_BERT_VOCAB",
    "huggingface.co/google-bert/bert-base-uncased",
    habits=("~/.cache/ImageReward",),
)
