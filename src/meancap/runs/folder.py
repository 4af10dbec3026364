"""Reading a finished run folder: what reports, scores and galleries start from. No model is needed.

run = Run.open("DIR");  run.images([0, 1, 2]);  run.labels;  run.meter["scale"]
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from zipfile import ZipFile

from ..extras import need
from .arrays import Bytes, np, npt
from .ledger import Ledger
from .store import sample_name


@dataclass(frozen=True)
class Run:
    """A finished run; `config` is run.json's configuration as plain values."""

    folder: Path
    config: dict[str, Any]
    made_with: dict[str, str]
    finished: dict[str, int]
    records: list[dict[str, Any]]

    @classmethod
    def open(cls, folder: str | Path) -> Run:
        folder = Path(folder)
        content = Ledger(folder, "images").read()
        if content is None:
            raise FileNotFoundError(f"{folder} is no run folder: it has no run.json")
        if content["finished"] is None:
            raise ValueError(f"the run in {folder} is not finished; give its command again to go on")
        records = _read_records(folder / "records.jsonl", content["finished"]["samples"])
        return cls(folder, content["config"], content["made_with"], content["finished"], records)

    @property
    def rule(self) -> str:
        return str(self.config["rule"])

    @property
    def seeds(self) -> list[int]:
        return [r["seed"] for r in self.records]

    @property
    def labels(self) -> list[int]:
        return [r["label"] for r in self.records if r.get("label") is not None]

    @property
    def prompts(self) -> list[str]:
        return [r["prompt"] for r in self.records if r.get("prompt") is not None]

    def __len__(self) -> int:
        return len(self.records)

    def images(self, positions: Sequence[int] | None = None) -> Bytes:
        """Some pictures, or all, as (count, height, width, channels) uint8."""
        chosen = range(len(self)) if positions is None else positions
        if self.config["images"] == "npz":
            return np.stack([self._pixels[i] for i in chosen])
        return np.stack([_read_png(self.folder / sample_name(self.records[i]["index"])) for i in chosen])

    def batches(self, size: int = 256) -> Iterator[Bytes]:
        """All pictures in order, `size` at a time, without holding more."""
        for start in range(0, len(self), size):
            yield self.images(range(start, min(start + size, len(self))))

    @cached_property
    def meter(self) -> dict[str, npt.NDArray[Any]]:
        """Each field of the guidance meter as (evaluations, samples)."""
        path = self.folder / "diagnostics.npz"
        if not path.is_file():
            raise ValueError(f"the run in {self.folder} kept no diagnostics; make it with --diagnostics")
        with np.load(path, allow_pickle=False) as archive:
            return dict(archive)

    @cached_property
    def _pixels(self) -> Bytes:
        """arr_0, mapped from the file: an entry stored without compression is a stretch of the zip."""
        path = self.folder / "samples.npz"
        with ZipFile(path) as archive:
            info = archive.getinfo("arr_0.npy")
            with archive.open(info) as entry:
                np.lib.format.read_magic(entry)
                shape, fortran, dtype = np.lib.format.read_array_header_1_0(entry)
                header = entry.tell()
        with path.open("rb") as file:
            file.seek(info.header_offset + 26)
            name, extra = (int.from_bytes(file.read(2), "little") for _ in range(2))
        assert not fortran and dtype == np.uint8
        start = info.header_offset + 30 + name + extra + header
        return np.memmap(path, np.uint8, "r", start, shape)


def _read_records(path: Path, count: int) -> list[dict[str, Any]]:
    try:
        records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    except (FileNotFoundError, ValueError):
        records = []
    if len(records) != count:
        raise ValueError(f"{path} is missing or damaged: one line for each of {count} samples is needed")
    return records


def _read_png(path: Path) -> Bytes:
    Image = need("PIL.Image", "images")

    with Image.open(path) as picture:
        pixels = np.asarray(picture)
    return pixels[..., None] if pixels.ndim == 2 else pixels
