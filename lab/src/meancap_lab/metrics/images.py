"""Sets of images on disk, read in order and a few at a time: a folder of pictures, or an .npz file.

    .npz     `arr_0`, uint8, (count, height, width, channels), as SiT and ADM write it; `arr_1`: labels
    folder   *.png, *.jpg, *.jpeg, *.webp, in the order of their names

Fifty thousand images of 256 x 256 are ten gigabytes, so neither kind is ever held whole.

There are three ways of bringing an image to the size of a network; each makes another FID. All take (batch,
height, width, 3) uint8 and give (batch, 3, size, size) float32 with values 0..255.

    tf1_bilinear    what ADM's TensorFlow graph does: corners at pixel origins, no antialiasing
    clean_bicubic   what Clean-FID does: Pillow's antialiased bicubic on floats, per channel, no rounding
    direct_8bit     what the paper's SD3.5 protocol does: Pillow's resize of the 8-bit image, result 8-bit
"""

from __future__ import annotations

import hashlib
import math
import zipfile
import zlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from meancap.files import sha256_of

from ..extras import need
from .extractor import need_images

_TORN = (zipfile.BadZipFile, zlib.error, EOFError)  # what a cut or changed archive raises
_SUFFIXES = (".png", ".jpg", ".jpeg", ".webp")


class Unreadable(ValueError):
    """Images that cannot be used, with the reason."""


@dataclass(frozen=True, eq=False)
class PictureFolder:
    """Pictures in the order of their names; grey ones have one channel, all others are taken as RGB."""

    paths: tuple[Path, ...]
    name: str

    def __len__(self) -> int:
        return len(self.paths)

    @cached_property
    def identity(self) -> str:
        """Changes with the name or the content of any file."""
        combined = hashlib.sha256()
        for path in self.paths:
            combined.update(f"{path.name} {sha256_of(path)}\n".encode())
        return combined.hexdigest()[:16]

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
class _Npz:
    """`arr_0` of an .npz file: mapped into memory, or streamed if it is compressed."""

    path: Path
    name: str
    shape: tuple[int, int, int, int]

    def __len__(self) -> int:
        return self.shape[0]

    @cached_property
    def identity(self) -> str:
        try:
            with zipfile.ZipFile(self.path) as archive:
                torn = archive.testzip()
        except _TORN as error:
            raise Unreadable(f"{self.path} is damaged: {error}") from error
        if torn:
            raise Unreadable(f"{self.path} is damaged: {torn} does not fit its checksum")
        return sha256_of(self.path)[:16]

    def read(self, start: int, count: int) -> list[Tensor]:
        count = max(0, min(count, len(self) - start))
        if self._pixels is not None:
            return [torch.from_numpy(self._pixels[start : start + count].copy())]
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

    @cached_property
    def _pixels(self) -> Any:
        """The bytes of an uncompressed entry are a stretch of the zip; a seek would read all before it."""
        len(self.identity)  # raises an error if a byte was changed, which a map would not notice
        with zipfile.ZipFile(self.path) as archive, archive.open("arr_0.npy") as entry:
            info = archive.getinfo("arr_0.npy")
            _npy_header(entry, self.path)
            header = entry.tell()
        if info.compress_type != zipfile.ZIP_STORED:
            return None
        with self.path.open("rb") as file:
            file.seek(info.header_offset + 26)
            name, extra = (int.from_bytes(file.read(2), "little") for _ in range(2))
        start = info.header_offset + 30 + name + extra + header
        if self.path.stat().st_size < start + math.prod(self.shape):
            raise Unreadable(f"{self.path} ends early: arr_0 should hold {len(self)} images")
        numpy = need("numpy", "images")
        return numpy.memmap(self.path, numpy.uint8, "r", start, self.shape)


@dataclass(frozen=True, eq=False)
class PicturesInMemory:
    """Images in memory, for data sets that are loaded whole."""

    images: Tensor
    name: str

    def __len__(self) -> int:
        return len(self.images)

    @cached_property
    def identity(self) -> str:
        return hashlib.sha256(self.images.numpy().tobytes()).hexdigest()[:16]

    def read(self, start: int, count: int) -> list[Tensor]:
        return [self.images[start : start + count]]


Images = PictureFolder | _Npz | PicturesInMemory


def open_images(path: str | Path) -> Images:
    """The set of images at a path."""
    path = Path(path)
    if path.is_dir():
        pictures = sorted(p for p in path.iterdir() if p.suffix.lower() in _SUFFIXES and p.is_file())
        if not pictures:
            raise Unreadable(f"there are no pictures ({', '.join(_SUFFIXES)}) in {path}")
        return PictureFolder(tuple(pictures), path.name)
    if path.suffix == ".npz" and path.is_file():
        return open_npz(path)
    raise Unreadable(f"{path} is neither a folder of pictures nor an .npz file with arr_0")


def open_npz(path: Path) -> _Npz:
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
    return _Npz(path, path.name, shape)


def npz_array(path: Path, name: str) -> Tensor | None:
    """A small array of numbers in an .npz file, or None if there is none of that name."""
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
    npy = need("numpy", "images").lib.format
    version = npy.read_magic(file)
    readers = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
    if version not in readers:
        raise Unreadable(f"{path}: .npy format {version} is not supported")
    shape, fortran, dtype = readers[version](file)
    return tuple(shape), bool(fortran), dtype


def tf1_bilinear(images: Tensor, size: int) -> Tensor:
    """Output pixel i samples the input at i * (in / out), between its floor and the next pixel."""
    need_images(images)
    x = images.permute(0, 3, 1, 2).float()
    return _lerp_axis(_lerp_axis(x, 2, size), 3, size)


def _lerp_axis(x: Tensor, axis: int, size: int) -> Tensor:
    length = x.shape[axis]
    # The graph computes positions in float32; so does this.
    place = torch.arange(size, dtype=torch.float32) * torch.tensor(length / size, dtype=torch.float32)
    low = place.floor().long().clamp(max=length - 1)
    high = (low + 1).clamp(max=length - 1)
    weight = (place - low).reshape([-1 if i == axis else 1 for i in range(x.dim())])
    first = x.index_select(axis, low)
    return first + (x.index_select(axis, high) - first) * weight


def clean_bicubic(images: Tensor, size: int) -> Tensor:
    """Pillow's bicubic in mode F, cut to 0..255, not rounded."""
    return _resized(images, size, "BICUBIC", "float32").clamp_(0, 255)


def direct_8bit(images: Tensor, size: int, *, bicubic: bool = False) -> Tensor:
    """Pillow's bilinear (or bicubic) resize of the 8-bit image, without keeping the aspect ratio."""
    return _resized(images, size, "BICUBIC" if bicubic else "BILINEAR", "uint8")


def _resized(images: Tensor, size: int, method: str, dtype: str) -> Tensor:
    """Each channel by itself, which is what Pillow does with a colour image too."""
    need_images(images)
    numpy, image = need("numpy", "images"), need("PIL.Image", "images")
    out = torch.empty(len(images), images.shape[3], size, size)
    for i, pixels in enumerate(images.numpy()):
        for c in range(pixels.shape[2]):
            plane = image.fromarray(pixels[:, :, c].astype(dtype))
            plane = plane.resize((size, size), image.Resampling[method])
            out[i, c] = torch.from_numpy(numpy.array(plane, dtype=numpy.float32))
    return out


def three_channels(images: Tensor) -> Tensor:
    """Grey images repeated over three channels; colour ones as they are."""
    need_images(images)
    return images if images.shape[-1] == 3 else images.expand(-1, -1, -1, 3)
