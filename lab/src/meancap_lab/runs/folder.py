"""A run as a folder, safe against a kill at any moment: its run.json, writing it, reading it when finished.

    run.json           configuration, versions; `finished` holds the counts once the run is complete, with
                       `not_finite` if samples are NaN; `left_open` of a run of `reproduce` has what the
                       paper does not state
    samples/000000.png or samples.npz (arr_0 uint8 NHWC, arr_1 labels)
    records.jsonl      one line per sample: index, seed, label or prompt, evaluations
    diagnostics.npz    with --diagnostics: each field of the meter as (evaluations, samples)

    run = Run.open("DIR");  run.images([0, 1, 2]);  run.labels;  run.meter["scale"]

While it grows, blocks/00000.json marks a block as complete and is written last. Every file is written whole
(`meancap.files`). Nothing in a finished folder depends on time, processes or order, so that two of them can
be compared byte for byte.
"""

from __future__ import annotations

import json
import os
import shutil
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from io import BytesIO
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any
from zipfile import ZIP_STORED, BadZipFile, ZipFile, ZipInfo, is_zipfile

from meancap.files import is_temporary, remove_leftovers, write_whole, writing

from ..extras import need
from .config import RunIdentity

need("numpy", "images")
import numpy as np  # noqa: E402
from numpy import typing as npt  # noqa: E402

if TYPE_CHECKING:
    from ..metrics.images import Images as PictureSet

Bytes = npt.NDArray[np.uint8]
_Streamed = tuple["np.dtype[Any]", tuple[int, ...], Iterable[bytes]]


def write_npz(
    file: IO[bytes], streamed: Mapping[str, _Streamed], arrays: Mapping[str, npt.NDArray[Any]]
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


FORMAT = 1
FIELDS = {  # what run.json holds, by kind
    "images": {"config", "made_with", "finished"},
    "gmm": {"config", "made_with", "finished"},
    "bench": {"config"},
}


class RunRefused(ValueError):
    """The folder belongs to another run, or cannot be used."""


@dataclass(frozen=True)
class Ledger:
    """The run.json of one folder."""

    folder: Path
    kind: str  # one of FIELDS

    def begin(self, identity: Mapping[str, Mapping[str, Any]], **rest: Any) -> dict[str, Any]:
        """Begins the folder or checks that it belongs to this run; the caller holds the lock."""
        old = self.read()
        if old is not None:
            changed = [d for part, value in identity.items() for d in differences(old[part], value)]
            if changed:
                raise RunRefused(
                    f"{self.folder} belongs to another run: {'; '.join(changed)}; give another folder"
                )
            return old
        if not all(is_temporary(path) for path in self.folder.iterdir()):
            raise RunRefused(f"{self.folder} holds files but no run.json; give an empty or a new folder")
        named = {} if self.kind == "images" else {"experiment": self.kind}
        begun = {"format": FORMAT, **named, **{k: dict(v) for k, v in identity.items()}, **rest}
        self.write(begun)
        return begun

    def read(self) -> dict[str, Any] | None:
        """The content of run.json, or None if there is none."""
        path = self.folder / "run.json"
        if not path.is_file():
            return None
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except ValueError:
            raise RunRefused(f"{path} is damaged; move the folder away and start again") from None
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise RunRefused(f"{path} is not a run of format {FORMAT}; give another folder")
        if (kind := content.get("experiment", "images")) != self.kind:
            raise RunRefused(f"{path} is of the experiment {kind!r}, not {self.kind!r}; give another folder")
        if missing := FIELDS[kind] - content.keys():
            raise RunRefused(f"{path} lacks {', '.join(sorted(missing))}; move the folder away")
        return content

    def write(self, content: Mapping[str, Any]) -> None:
        """Replaces run.json."""
        text = json.dumps(content, indent=1, ensure_ascii=False)
        write_whole(self.folder / "run.json", text + "\n")

    @property
    def finished(self) -> bool:
        """Whether the run is complete; a benchmark never is, since more can always be added."""
        content = self.read()
        return content is not None and content.get("finished") is not None

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Makes the folder if there is none, and locks it for one process."""
        if self.folder.exists() and not self.folder.is_dir():
            raise RunRefused(f"{self.folder} is a file; a run needs a folder")
        self.folder.mkdir(parents=True, exist_ok=True)
        with folder_lock(self.folder):
            yield


@contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    """Admits one process at a time; the system releases the lock when the process ends, however it ends."""
    try:
        import fcntl
    except ImportError:  # not a POSIX system: one process there
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """What differs between two configurations, one phrase each."""
    phrases = []
    for key in [*new, *(k for k in old if k not in new)]:
        a, b = old.get(key), new.get(key)
        if a != b:
            phrases.append(f"{key} was {_short(a)}, now {_short(b)}")
    return phrases


def _short(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:40]}… ({len(text)} characters)"


class Store:
    """The writing side of a run folder. Several processes may hold one each, on disjoint blocks."""

    def __init__(
        self, folder: str | Path, config: RunIdentity, made_with: Mapping[str, str], **notes: Any
    ) -> None:
        self.folder, self.config = Path(folder), config
        self.ledger = Ledger(self.folder, "images")
        with self.ledger.opened():
            identity = {"config": config.as_json(), "made_with": made_with}
            if self.ledger.begin(identity, **notes, finished=None)["finished"] is not None:
                self._tidy()
                self._need_pictures()
            else:
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
                self._write(_sample_name(record["index"]), png_bytes(image))
        else:
            self._write(
                f"blocks/{block:06d}.npy", _filled(lambda file: np.save(file, images, allow_pickle=False))
            )
        if meter is not None:
            arrays = {name: np.asarray(value) for name, value in meter.items()}
            content = _filled(lambda file: write_npz(file, {}, arrays))
            self._write(f"blocks/{block:06d}.meter.npz", content)
        text = json.dumps(list(records), indent=1, ensure_ascii=False) + "\n"
        self._write(f"blocks/{block:06d}.json", text.encode())

    def finish(self) -> bool:
        """Puts the blocks together once all of them are there; whichever process sees that first does it."""
        with folder_lock(self.folder):
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
            meters = [read_npz(path) for path in paths if path.is_file()]
            fields = list(meters[0]) if meters else []
            with writing(self.folder / "diagnostics.npz") as temporary, temporary.open("wb") as file:
                write_npz(file, {}, {k: np.concatenate([m[k] for m in meters], axis=-1) for k in fields})
        self._write("records.jsonl", "".join(json.dumps(r) + "\n" for r in records).encode())
        evaluations = sum(r["evaluations"] for r in records)
        counts = {"samples": len(records), "evaluations": evaluations}
        if lost := sum(not r.get("finite", True) for r in records):
            counts["not_finite"] = lost
        self.ledger.write({**(self.ledger.read() or {}), "finished": counts})
        self._tidy()

    def _need_pictures(self) -> None:
        """Raises an error if a picture of a finished run is missing or cut."""
        paths = [self.folder / "samples.npz"]
        if self.config.images == "png":
            paths = [self.folder / _sample_name(r["index"]) for r in Run.open(self.folder).records]
        for path in paths:
            if not _ends_whole(path):
                raise RunRefused(f"{path} is missing or cut; delete {self.folder} and rerun the command")

    def _pixels(self) -> Iterator[bytes]:
        for block in range(self.config.blocks):
            yield np.load(self._block(block, "npy"), allow_pickle=False).tobytes()

    def _shape(self, count: int) -> tuple[int, ...]:
        for block in range(self.config.blocks):
            head = np.load(self._block(block, "npy"), mmap_mode="r", allow_pickle=False)
            if len(head):
                return (count, *head.shape[1:])
        return (0, 1, 1, 1)

    def _block(self, block: int, suffix: str) -> Path:
        return self.folder / "blocks" / f"{block:06d}.{suffix}"

    def _write(self, name: str, content: bytes) -> None:
        write_whole(self.folder / name, content)

    def _tidy(self) -> None:
        """Removes what a finished run no longer needs, and what killed processes left behind."""
        shutil.rmtree(self.folder / "blocks", ignore_errors=True)
        for place in (self.folder, self.folder / "samples"):
            remove_leftovers(place)


def _sample_name(index: int) -> str:
    """The file of one sample inside a run."""
    return f"samples/{index:06d}.png"


def _ends_whole(path: Path) -> bool:
    """Whether a file ends as a PNG or a zip does."""
    try:
        with path.open("rb") as file:
            if path.suffix == ".npz":
                return is_zipfile(file)
            file.seek(-12, os.SEEK_END)
            return file.read() == b"\0\0\0\0IEND\xaeB`\x82"
    except OSError:
        return False


def _filled(write: Callable[[BytesIO], object]) -> bytes:
    buffer = BytesIO()
    write(buffer)
    return buffer.getvalue()


def read_npz(path: Path) -> dict[str, npt.NDArray[Any]]:
    """The arrays of an .npz file, without pickled objects."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            return dict(archive)
    except (ValueError, EOFError, KeyError, BadZipFile, zlib.error) as error:
        raise ValueError(f"{path} is damaged ({error}); delete its folder and rerun the command") from None


def png_bytes(image: Bytes) -> bytes:
    """One picture, (height, width, channels), as the content of a PNG file."""
    Image = need("PIL.Image", "images")

    picture = Image.fromarray(image[..., 0] if image.shape[-1] == 1 else image)
    return _filled(lambda buffer: picture.save(buffer, format="PNG"))


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
            raise ValueError(f"the run in {folder} is not finished; rerun its command to resume it")
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

    @cached_property
    def pictures(self) -> PictureSet:
        """The pictures in the order of the records, read a few at a time."""
        from ..metrics.images import PictureFolder, open_npz

        if self.config["images"] == "npz":
            return replace(open_npz(self.folder / "samples.npz"), name=self.folder.name)
        paths = tuple(self.folder / _sample_name(r["index"]) for r in self.records)
        return PictureFolder(paths, self.folder.name)

    def images(self, positions: Sequence[int] | None = None) -> Bytes:
        """Some pictures, or all, as (count, height, width, channels) uint8."""
        chosen, pictures = range(len(self)) if positions is None else positions, self.pictures
        read = [pictures.read(i, 1)[0].numpy() for i in chosen]
        for i, one in zip(chosen, read, strict=True):
            if one.shape != read[0].shape:
                shapes = f"{one.shape[1:]} for sample {i} and {read[0].shape[1:]} for sample {chosen[0]}"
                raise ValueError(f"{self.folder} needs pictures of one size and kind; got {shapes}")
        return np.concatenate(read)

    @cached_property
    def meter(self) -> dict[str, npt.NDArray[Any]]:
        """Each field of the guidance meter as (evaluations, samples)."""
        path = self.folder / "diagnostics.npz"
        if not path.is_file():
            raise ValueError(f"the run in {self.folder} has no diagnostics; generate it with --diagnostics")
        return read_npz(path)


def _read_records(path: Path, count: int) -> list[dict[str, Any]]:
    try:
        records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    except (FileNotFoundError, ValueError):
        records = []
    if len(records) != count:
        raise ValueError(f"{path} is missing or damaged: one line for each of {count} samples is needed")
    return records
