"""A run as a folder, safe against a kill at any moment.

    run.json           configuration, versions; `finished` holds the counts once the run is complete
    samples/000000.png or samples.npz (arr_0 uint8 NHWC, arr_1 labels)
    records.jsonl      one line per sample: index, seed, label or prompt, evaluations
    diagnostics.npz    if asked for: each field of the meter as (evaluations, samples)

While it grows: blocks/00000.json marks a block as complete, and is written last. Every file is written
whole (`meancap.files`). Nothing in a finished folder depends on time, processes or order, so that two of them
can be compared byte for byte.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

from ..extras import need
from ..files import remove_leftovers, write_whole, writing
from .arrays import Bytes, np, npt
from .config import RunConfig
from .ledger import Ledger, locked
from .npz import write_npz


class Store:
    """The writing side of a run folder. Several processes may hold one each, on disjoint blocks."""

    def __init__(self, folder: str | Path, config: RunConfig, made_with: Mapping[str, str]) -> None:
        self.folder, self.config = Path(folder), config
        self.ledger = Ledger(self.folder, "images")
        with self.ledger.opened():
            identity = {"config": config.as_json(), "made_with": made_with}
            if self.ledger.begin(identity, finished=None)["finished"] is not None:
                self._tidy()
            if not self.finished:
                (self.folder / "blocks").mkdir(exist_ok=True)
                if config.images == "png":
                    (self.folder / "samples").mkdir(exist_ok=True)

    @property
    def finished(self) -> bool:
        return self.ledger.finished

    def done(self, block: int) -> bool:
        return self._block(block, "json").is_file()

    def missing(self, blocks: Sequence[int]) -> list[int]:
        """Those of the blocks that are still to be made; none of a finished run."""
        return [] if self.finished else [b for b in blocks if not self.done(b)]

    def save(
        self,
        block: int,
        images: Bytes,
        records: Sequence[Mapping[str, Any]],
        meter: Mapping[str, Any] | None = None,
    ) -> None:
        """One block: pictures first, then the meter, and last the records that make it count."""
        if self.config.images == "png":
            for record, image in zip(records, images, strict=True):
                self._write(sample_name(record["index"]), _png(image))
        else:
            self._write(f"blocks/{block:06d}.npy", _npy(images))
        if meter is not None:
            self._write(f"blocks/{block:06d}.meter.npz", _npz({k: np.asarray(v) for k, v in meter.items()}))
        self._write(f"blocks/{block:06d}.json", _json(list(records)))

    def finish(self) -> bool:
        """Puts the blocks together once all of them are there; whichever process sees that first does it."""
        with locked(self.folder):
            if self.finished:
                self._tidy()
                return True
            if any(not self.done(b) for b in range(self.config.blocks)):
                return False
            self._put_together()
            return True

    def _put_together(self) -> None:
        blocks = range(self.config.blocks)
        records = [r for b in blocks for r in json.loads(self._block(b, "json").read_text())]
        if self.config.images == "npz":
            pixels = (np.dtype(np.uint8), self._shape(len(records)), self._pixels())
            labels = np.asarray(
                [-1 if r.get("label") is None else r["label"] for r in records], dtype=np.int64
            )
            with writing(self.folder / "samples.npz") as temporary, temporary.open("wb") as file:
                write_npz(file, {"arr_0": pixels}, {"arr_1": labels})
        if self.config.diagnostics:
            paths = [self._block(b, "meter.npz") for b in blocks]
            meters = [_load(path) for path in paths if path.is_file()]
            fields = list(meters[0]) if meters else []
            with writing(self.folder / "diagnostics.npz") as temporary, temporary.open("wb") as file:
                write_npz(file, {}, {k: np.concatenate([m[k] for m in meters], axis=-1) for k in fields})
        self._write("records.jsonl", "".join(json.dumps(r) + "\n" for r in records).encode())
        evaluations = sum(r["evaluations"] for r in records)
        counts = {"samples": len(records), "evaluations": evaluations}
        self.ledger.write({**(self.ledger.read() or {}), "finished": counts})
        self._tidy()

    def _pixels(self) -> Iterator[bytes]:
        for block in range(self.config.blocks):
            yield np.load(self._block(block, "npy")).tobytes()

    def _shape(self, count: int) -> tuple[int, ...]:
        for block in range(self.config.blocks):
            head = np.load(self._block(block, "npy"), mmap_mode="r")
            if len(head):
                return (count, *head.shape[1:])
        return (0, 1, 1, 1)

    def _block(self, block: int, suffix: str) -> Path:
        return self.folder / "blocks" / f"{block:06d}.{suffix}"

    def _write(self, name: str, content: bytes) -> None:
        write_whole(self.folder / name, content)

    def _tidy(self) -> None:
        """Removes what a finished run no longer needs, and what killed processes left behind."""
        for leftover in (self.folder / "blocks", self.folder / ".parts"):  # .parts: of earlier versions
            shutil.rmtree(leftover, ignore_errors=True)
        for place in (self.folder, self.folder / "samples"):
            remove_leftovers(place)


def sample_name(index: int) -> str:
    """The file of one sample inside a run."""
    return f"samples/{index:06d}.png"


def _json(value: Any) -> bytes:
    return (json.dumps(value, indent=1, ensure_ascii=False) + "\n").encode()


def _filled(write: Callable[[BytesIO], object]) -> bytes:
    buffer = BytesIO()
    write(buffer)
    return buffer.getvalue()


def _npy(array: npt.NDArray[Any]) -> bytes:
    return _filled(lambda buffer: np.save(buffer, array, allow_pickle=False))


def _npz(arrays: Mapping[str, npt.NDArray[Any]]) -> bytes:
    return _filled(lambda buffer: write_npz(buffer, {}, arrays))


def _load(path: Path) -> dict[str, npt.NDArray[Any]]:
    with np.load(path, allow_pickle=False) as archive:
        return dict(archive)


def _png(image: Bytes) -> bytes:
    Image = need("PIL.Image", "images")

    picture = Image.fromarray(image[..., 0] if image.shape[-1] == 1 else image)
    return _filled(lambda buffer: picture.save(buffer, format="PNG"))
