"""Writing `.npz` piece by piece, so that 50,000 images never stand in memory at once.

A `.npz` is a zip of `.npy` files: a short header that tells type and shape, then the raw bytes in C order.
Entries carry the zip format's zero date, so that equal arrays make equal files.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import IO, Any
from zipfile import ZIP_STORED, ZipFile, ZipInfo

from .arrays import np, npt

Streamed = tuple["np.dtype[Any]", tuple[int, ...], Iterable[bytes]]


def write_npz(
    file: IO[bytes], streamed: Mapping[str, Streamed], arrays: Mapping[str, npt.NDArray[Any]]
) -> None:
    """`streamed` arrays come as (dtype, shape, pieces of bytes), `arrays` as they are."""
    with ZipFile(file, "w", ZIP_STORED) as archive:
        for name, (dtype, shape, pieces) in streamed.items():
            _write(archive, name, dtype, shape, pieces)
        for name, array in arrays.items():
            _write(archive, name, array.dtype, array.shape, [np.ascontiguousarray(array).tobytes()])


def _write(
    archive: ZipFile, name: str, dtype: np.dtype[Any], shape: tuple[int, ...], pieces: Iterable[bytes]
) -> None:
    header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    left = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    with archive.open(ZipInfo(f"{name}.npy"), "w", force_zip64=True) as entry:
        np.lib.format.write_array_header_1_0(entry, header)
        for piece in pieces:
            entry.write(piece)
            left -= len(piece)
    if left:
        raise ValueError(f"{name} should have shape {shape}; its pieces are {-left:+d} bytes off")
