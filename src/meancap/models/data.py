"""Labelled pictures to train on, and the pixels ⇄ data map that a trained model carries with it.

    pictures  (count, channels, size, size) uint8, 0 to 255
    data      (pictures / 255 - mean) / std, with a mean picture and one std: centred, of unit variance

A cap measures lengths from the origin, so the origin is placed at the mean of the data.
"""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

FASHION = (
    "T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Pictures:
    """A data set held in memory."""

    images: Tensor
    labels: Tensor
    names: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Pixels:
    """The affine map between pictures and centred data."""

    mean: Tensor  # (channels, size, size), in [0, 1]
    std: float

    @classmethod
    def of(cls, images: Tensor) -> Pixels:
        """Mean picture and overall deviation from it."""
        values = images.double() / 255
        mean = values.mean(0)
        return cls(mean.float(), float((values - mean).square().mean().sqrt()))

    def data(self, images: Tensor) -> Tensor:
        return (images.float() / 255 - self.mean) / self.std

    def pictures(self, data: Tensor) -> Tensor:
        """Back to uint8; what lies outside 0 to 255 is clipped."""
        return ((data.float() * self.std + self.mean.to(data.device)) * 255).round().clamp(0, 255).byte()


def fashion(folder: str | Path, *, train: bool = True) -> Pictures:
    """Fashion-MNIST (Zalando, MIT licence) from its four idx files, gzipped or not."""
    part = "train" if train else "t10k"
    images = _idx(Path(folder), f"{part}-images-idx3-ubyte", 3)
    labels = _idx(Path(folder), f"{part}-labels-idx1-ubyte", 1)
    return Pictures(images[:, None], labels.long(), FASHION)


def _idx(folder: Path, name: str, dimensions: int) -> Tensor:
    """One idx file: two zero bytes, type 8, the number of dimensions, each size as big-endian int32."""
    plain, packed = folder / name, folder / f"{name}.gz"
    if plain.is_file():
        raw = plain.read_bytes()
    elif packed.is_file():
        with gzip.open(packed) as file:
            raw = file.read()
    else:
        raise FileNotFoundError(
            f"no {name}[.gz] in {folder}; get Fashion-MNIST with `apt-get install dataset-fashion-mnist` "
            "or from github.com/zalandoresearch/fashion-mnist"
        )
    if raw[:4] != bytes((0, 0, 8, dimensions)):
        raise ValueError(f"{folder / name} is no idx file of {dimensions}-dimensional bytes")
    head = 4 + 4 * dimensions
    shape = [int.from_bytes(raw[i : i + 4], "big") for i in range(4, head, 4)]
    count = torch.Size(shape).numel()
    if len(raw) != head + count:
        raise ValueError(f"{folder / name} should hold {count} bytes; it holds {len(raw) - head}")
    return torch.frombuffer(bytearray(raw[head:]), dtype=torch.uint8).reshape(shape)
