"""Sets of images on disk, read in order and a few at a time: a folder of pictures, or an .npz file.

    .npz     `arr_0`, uint8, (count, height, width, channels), as SiT and ADM write it; `arr_1`: labels
    folder   *.png, *.jpg, *.jpeg, *.webp, in the order of their names

Fifty thousand images of 256 x 256 are ten gigabytes, so neither kind is ever held whole.
"""

from __future__ import annotations

import hashlib
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..extras import need

_TORN = (zipfile.BadZipFile, zlib.error, EOFError)  # what a cut or changed archive raises
SUFFIXES = (".png", ".jpg", ".jpeg", ".webp")


class Unreadable(ValueError):
    """Images that cannot be used, with the reason."""


@dataclass(frozen=True, eq=False)
class PictureFolder:
    """Pictures in the order of their names; grey ones have one channel, all others are taken as RGB."""

    paths: tuple[Path, ...]
    name: str

    def __len__(self) -> int:
        return len(self.paths)

    def identity(self) -> str:
        """Changes when a file is added, removed, renamed or rewritten."""
        digest = hashlib.sha256()
        for path in self.paths:
            stat = path.stat()
            digest.update(f"{path.name} {stat.st_size} {stat.st_mtime_ns}\n".encode())
        return digest.hexdigest()[:16]

    def read(self, start: int, count: int) -> list[Tensor]:
        """Some images in order, neighbours of equal size stacked: real photographs differ in size."""
        stacks: list[list[Tensor]] = []
        for path in self.paths[start : start + count]:
            shown = _picture(path)
            if stacks and stacks[-1][0].shape == shown.shape:
                stacks[-1].append(shown)
            else:
                stacks.append([shown])
        return [torch.stack(stack) for stack in stacks]


@dataclass(frozen=True, eq=False)
class Npz:
    """`arr_0` of an .npz file, streamed."""

    path: Path
    name: str
    shape: tuple[int, int, int, int]

    def __len__(self) -> int:
        return self.shape[0]

    def identity(self) -> str:
        stat = self.path.stat()
        return hashlib.sha256(f"{stat.st_size} {stat.st_mtime_ns}".encode()).hexdigest()[:16]

    def read(self, start: int, count: int) -> list[Tensor]:
        count = max(0, min(count, len(self) - start))
        size = self.shape[1] * self.shape[2] * self.shape[3]
        try:
            with zipfile.ZipFile(self.path) as archive, archive.open("arr_0.npy") as file:
                _npy_header(file, self.path)
                file.seek(start * size, 1)
                raw = file.read(count * size)
        except _TORN as error:
            raise Unreadable(f"{self.path} is damaged: {error}") from error
        if len(raw) != count * size:
            raise Unreadable(f"{self.path} ends early: arr_0 should hold {len(self)} images")
        return [torch.frombuffer(bytearray(raw), dtype=torch.uint8).reshape(count, *self.shape[1:])]


@dataclass(frozen=True, eq=False)
class PicturesInMemory:
    """Images in memory, for data sets that are loaded whole."""

    images: Tensor
    name: str

    def __len__(self) -> int:
        return len(self.images)

    def identity(self) -> str:
        return hashlib.sha256(self.images.numpy().tobytes()).hexdigest()[:16]

    def read(self, start: int, count: int) -> list[Tensor]:
        return [self.images[start : start + count]]


Images = PictureFolder | Npz | PicturesInMemory


def open_images(path: str | Path) -> Images:
    """The set of images at a path."""
    path = Path(path)
    if path.is_dir():
        pictures = sorted(p for p in path.iterdir() if p.suffix.lower() in SUFFIXES and p.is_file())
        if not pictures:
            raise Unreadable(f"there are no pictures ({', '.join(SUFFIXES)}) in {path}")
        return PictureFolder(tuple(pictures), path.name)
    if path.suffix == ".npz" and path.is_file():
        return open_npz(path)
    raise Unreadable(f"{path} is neither a folder of pictures nor an .npz file with arr_0")


def open_npz(path: Path) -> Npz:
    """Checks the header only."""
    try:
        with zipfile.ZipFile(path) as archive, archive.open("arr_0.npy") as file:
            shape, fortran, dtype = _npy_header(file, path)
    except (*_TORN, KeyError) as error:
        raise Unreadable(f"{path} is not an .npz file with an array called arr_0") from error
    if fortran or str(dtype) != "uint8" or len(shape) != 4 or shape[3] not in (1, 3):
        raise Unreadable(
            f"{path}: arr_0 must be uint8 of shape (count, height, width, 1 or 3) in C order; "
            f"got {dtype} {shape}"
        )
    if not shape[0]:
        raise Unreadable(f"there are no images in {path}: arr_0 is empty")
    return Npz(path, path.name, shape)


def npz_array(path: Path, name: str) -> Tensor | None:
    """A small array of numbers in an .npz file, or None where there is none of that name."""
    numpy = need("numpy", "images")
    try:
        with numpy.load(path, allow_pickle=False) as file:
            return torch.from_numpy(numpy.ascontiguousarray(file[name])) if name in file.files else None
    except (*_TORN, ValueError, TypeError) as error:
        raise Unreadable(f"{path}: {name} cannot be read as an array of numbers") from error


def _picture(path: Path) -> Tensor:
    numpy, pillow = need("numpy", "images"), need("PIL.Image", "images")
    try:
        with pillow.open(path) as opened:
            if opened.mode.startswith(("I", "F")):
                raise Unreadable(f"{path} has more than 8 bits per channel; save it as an 8-bit picture")
            shown = opened if opened.mode in ("L", "RGB") else opened.convert("RGB")
            array = numpy.array(shown)
    except (pillow.UnidentifiedImageError, OSError) as error:
        raise Unreadable(f"{path} cannot be read as a picture: {error}") from error
    return torch.from_numpy(array[:, :, None] if array.ndim == 2 else array)


def _npy_header(file: Any, path: Path) -> tuple[tuple[int, ...], bool, Any]:
    numpy = need("numpy", "images")
    version = numpy.lib.format.read_magic(file)
    if version == (1, 0):
        header = numpy.lib.format.read_array_header_1_0(file)
    elif version == (2, 0):
        header = numpy.lib.format.read_array_header_2_0(file)
    else:
        raise Unreadable(f"{path}: .npy format {version} is not known here")
    shape, fortran, dtype = header
    return tuple(shape), bool(fortran), dtype
