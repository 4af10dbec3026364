"""From a run folder to its scores: features are kept beside the images, numbers in scores.jsonl.

    scores.jsonl                                  one line per number: a Score, and the images it was taken of
    scores/<protocol>.safetensors                 what each image contributed, for paired comparisons
    features/<protocol>-<key>/00000.safetensors   features of 1,000 images each, written whole or not at all

A target is a run folder, a folder of pictures, or an .npz with arr_0 (its results go to NAME.scores/). A
reference is a target too, or fashion-mnist[:test|:train], found by $MEANCAP_FASHION_MNIST or where Debian
installs it, or cifar-10[:test|:train], found by $MEANCAP_CIFAR10 or in the folder `package`; for
adm-imagenet256 an .npz brings its statistics. Features of references are kept in the user's cache folder.

    rank, world   this process and the number of processes (`meancap_lab.runs.processes`). Block b of run r
                  belongs to process (b + r) mod world; whoever finds a run's blocks complete measures it
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Generator, Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from meancap.files import write_whole

from ..metrics.classifiers import WEIGHTS
from ..metrics.distances import Gaussian
from ..metrics.extractor import Extractor, Features
from ..metrics.images import (
    Images,
    PicturesInMemory,
    Unreadable,
    npz_array,
    open_images,
    open_npz,
)
from ..metrics.protocols import Generated, Protocol, Reference, adm_reference, protocol
from ..metrics.score import Estimate, Score
from ..models.data import read_cifar10, read_fashion
from .folder import Run, folder_lock

_FIELDS = {field.name for field in fields(Score)}


def read_scores(folder: str | Path) -> list[Score]:
    """The scores of a run, in the order they were written; none if there are none."""
    return [
        Score(r["name"], r["value"], tuple(r["interval"]) if r["interval"] else None, r["n"], r["protocol"])
        for r in _rows(Path(folder))
    ]


def scored_by(path: Path) -> set[str]:
    """The protocols under which the images at a path have scores."""
    return {score.protocol.partition(":")[0] for score in read_scores(results_folder(path))}


def read_estimates(folder: str | Path, protocol: str) -> dict[str, Estimate]:
    """The scores of one protocol with what each image contributed, by name."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    path = Path(folder) / "scores" / f"{protocol}.safetensors"
    try:
        parts = load_file(path) if path.is_file() else {}
    except SafetensorError:
        raise ValueError(f"{path} is damaged; score again with --force") from None
    scores = [s for s in read_scores(folder) if s.protocol.startswith(f"{protocol}:")]
    return {s.name: Estimate(s.name, s.value, s.n, parts.get(s.name)) for s in scores}


def write_scores(folder: Path, protocol: str, text: str, estimates: Sequence[Estimate], mark: str) -> None:
    """Replaces the lines of this protocol and keeps all others; `mark` stands for the images."""
    from safetensors.torch import save

    parts = {e.name: e.parts.double().contiguous() for e in estimates if e.parts is not None}
    new = [{**asdict(e.score(text)), "images": mark} for e in estimates]
    (folder / "scores").mkdir(parents=True, exist_ok=True)
    with folder_lock(folder):  # another process may be scoring the same run by another protocol
        write_whole(folder / "scores" / f"{protocol}.safetensors", save(parts))
        rows = [r for r in _rows(folder) if not r["protocol"].startswith(f"{protocol}:")] + new
        write_whole(folder / "scores.jsonl", "".join(json.dumps(row) + "\n" for row in rows))


def _rows(folder: Path) -> list[dict[str, Any]]:
    path = folder / "scores.jsonl"
    if not path.is_file():
        return []
    try:
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    except ValueError:
        rows = [None]
    if not all(isinstance(r, dict) and r.keys() >= _FIELDS for r in rows):
        raise ValueError(f"{path} is damaged; delete it and score again")
    return rows


BLOCK = 1000


@dataclass(frozen=True)
class FeatureCache:
    """Where the features of one set of images under one extractor are kept."""

    folder: Path
    count: int

    @classmethod
    def of(cls, root: Path, protocol: str, extractor: Extractor, images: Images) -> FeatureCache:
        text = f"{extractor.identity}\n{images.identity}\n{len(images)}"
        key = hashlib.sha256(text.encode()).hexdigest()[:12]
        return cls(root / f"{protocol}-{key}", len(images))

    def missing(self) -> list[int]:
        """Blocks that are still to be made."""
        blocks = range(-(-self.count // BLOCK))
        return [b for b in blocks if not self._path(b).is_file()]

    def fill(
        self, images: Images, extractor: Extractor, prompts: Sequence[str] = (),
        blocks: Sequence[int] | None = None,
    ) -> Iterator[int]:  # fmt: skip
        """Makes the missing ones of some blocks (default all); yields how many images it has read since.

        A block that another process has made meanwhile is skipped.
        """
        from safetensors.torch import save

        for block in self.missing() if blocks is None else blocks:
            if self._path(block).is_file():
                continue
            start, stop = block * BLOCK, min((block + 1) * BLOCK, self.count)
            parts = []
            for first in range(start, stop, extractor.batch):
                size = min(extractor.batch, stop - first)
                for stack in images.read(first, size):
                    parts.append(extractor(stack, prompts[first : first + len(stack)]))
                    first += len(stack)
                yield size
            whole = {name: torch.cat([p[name] for p in parts]).contiguous() for name in parts[0]}
            self.folder.mkdir(parents=True, exist_ok=True)
            write_whole(self._path(block), save(whole, {"sha256": _hash_of(whole)}))

    def load(self) -> Features:
        """All features; every block must be there, with the bytes that were written."""
        from safetensors import SafetensorError, safe_open
        from safetensors.torch import load_file

        blocks = []
        for path in map(self._path, range(-(-self.count // BLOCK))):
            try:
                blocks.append(load_file(path))
                with safe_open(path, "pt") as file:
                    written = (file.metadata() or {}).get("sha256")
            except SafetensorError:
                written = None
            if written is None or written != _hash_of(blocks[-1]):
                raise ValueError(f"{path} is damaged; score again with --force")
        return {name: torch.cat([block[name] for block in blocks]) for name in blocks[0]}

    def drop(self, protocol: str, *, own: bool) -> None:
        """Removes what the protocol kept for other images or weights; with `own`, all of it."""
        for other in self.folder.parent.glob(f"{protocol}-????????????"):
            if own or other != self.folder:
                shutil.rmtree(other, ignore_errors=True)

    def _path(self, block: int) -> Path:
        return self.folder / f"{block:05d}.safetensors"


def _hash_of(features: Features) -> str:
    combined = hashlib.sha256()
    for name in sorted(features):
        combined.update(name.encode() + features[name].contiguous().numpy().tobytes())
    return combined.hexdigest()


def _cache_root() -> Path:
    """Where features of reference images are kept: $MEANCAP_CACHE, else the user's cache folder."""
    if own := os.environ.get("MEANCAP_CACHE"):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "meancap"


@dataclass(frozen=True, eq=False)
class Target:
    """Images to score, the condition of each, and the folder that keeps the results."""

    folder: Path
    images: Images
    labels: Tensor | None
    prompts: tuple[str, ...]
    seeds: tuple[int, ...]  # empty where unknown: then the set pairs with no other


@dataclass(frozen=True)
class ScoreProgress:
    """`done` more images of `total`, while doing `what`."""

    what: str
    done: int
    total: int


def open_target(path: str | Path) -> Target:
    """A run folder, a folder of pictures or an .npz file."""
    path = Path(path)
    if (path / "run.json").is_file():
        run = Run.open(path)
        labels = torch.tensor(run.labels) if run.labels else None
        return Target(path, run.pictures, labels, tuple(run.prompts), tuple(run.seeds))
    if path.suffix == ".npz" and path.is_file():
        images = open_npz(path)
        return Target(results_folder(path), images, _npz_labels(path, len(images)), (), ())
    if not path.exists():
        raise Unreadable(f"there is no {path} to score")
    if runs := runs_in(path):
        raise Unreadable(f"{path} is a folder of runs; give one of them: {', '.join(r.name for r in runs)}")
    return Target(path, open_images(path), None, (), ())


def runs_in(path: Path) -> list[Path]:
    """The run folders directly in a folder that is no run itself."""
    return [] if (path / "run.json").is_file() else sorted(run.parent for run in path.glob("*/run.json"))


def _npz_labels(path: Path, count: int) -> Tensor | None:
    """arr_1 of an .npz file; None if it is absent, or negative as in runs with prompts."""
    labels = npz_array(path, "arr_1")
    if labels is None:
        return None
    if labels.shape != (count,) or labels.is_floating_point() or labels.is_complex():
        raise Unreadable(
            f"{path}: arr_1 must hold one whole number per image, its class; got {labels.dtype} "
            f"{tuple(labels.shape)} for {count} images"
        )
    return labels.long() if int(labels.min()) >= 0 else None


def results_folder(path: Path) -> Path:
    """The folder that keeps the results for the images at a path."""
    return path.with_name(f"{path.name}.scores") if path.suffix == ".npz" and path.is_file() else path


def score_target(
    target: Target,
    protocol: Protocol,
    extractor: Extractor,
    reference: Reference | None,
    *,
    force: bool = False,
    rank: int = 0,
    world: int = 1,
) -> Iterator[ScoreProgress]:
    """Extracts what is missing of this process's share, then measures a complete run and writes.

    Nothing is done twice without `force`.
    """
    if extractor.needs_prompts and not target.prompts:
        raise Unreadable(f"{target.folder} has no prompts, and {protocol.name} compares images with prompts")
    mark = f"{target.images.identity}-{len(target.images)}"
    if reference is not None and reference.identity:  # two folders may share a name
        mark += f"-{reference.identity}"
    against = f"; against {reference.name}" if reference is not None else ""
    text = f"{protocol.name}: {extractor.identity}{against}"

    def is_scored() -> bool:
        return any(r["protocol"] == text and r.get("images") == mark for r in _rows(target.folder))

    if is_scored() and not force:
        return
    kept = FeatureCache.of(target.folder / "features", protocol.name, extractor, target.images)
    kept.drop(protocol.name, own=force)
    own = [block for block in kept.missing() if block % world == rank]
    total = sum(min(BLOCK, kept.count - block * BLOCK) for block in own)
    for done in kept.fill(target.images, extractor, target.prompts, own):
        yield ScoreProgress("features", done, total)
    if kept.missing():
        return
    yield ScoreProgress("numbers", 0, total)
    with folder_lock(kept.folder):  # another process may have made the last block at the same moment
        if force or not is_scored():
            estimates = protocol.measure(Generated(kept.load(), target.labels), reference)
            write_scores(target.folder, protocol.name, text, estimates, mark)


def find_reference(
    protocol: Protocol, extractor: Extractor, source: str | None, rank: int = 0, world: int = 1
) -> Generator[ScoreProgress, None, Reference | None]:
    """Extracts the features of a reference, yielding after each batch; None if the protocol needs none.

    Each process begins at another block and goes on until none is missing.
    """
    if not protocol.reference:
        return None
    if source is None:
        if protocol.name == "fashion":
            return shipped_fashion()
        raise ValueError(f"{protocol.name} needs --reference: {protocol.reference}")
    images = reference_images(source)
    kept = FeatureCache.of(_cache_root() / "features", protocol.name, extractor, images)
    blocks = kept.missing()
    first = rank * len(blocks) // world
    for done in kept.fill(images, extractor, (), blocks[first:] + blocks[:first]):
        yield ScoreProgress("reference", done, len(images))
    features = kept.load()
    if protocol.name == "adm-imagenet256" and source.endswith(".npz"):
        return adm_reference(Path(source), features, images.identity)
    identity = "" if isinstance(images, PicturesInMemory) else images.identity  # a data set has a name
    return Reference(f"{images.name} ({len(images):,} images)", features, identity=identity)


def reference_images(source: str) -> Images:
    """The images that a name or a path refers to."""
    name, _, part = source.partition(":")
    if name == "fashion-mnist" and part in ("", "test", "train"):
        pictures = read_fashion(fashion_folder(), train=part == "train")
        images = pictures.images.permute(0, 2, 3, 1).contiguous()
        return PicturesInMemory(images, f"Fashion-MNIST {part or 'test'}")
    if name == "cifar-10" and part in ("", "test", "train"):
        pictures = read_cifar10(os.environ.get("MEANCAP_CIFAR10") or "package", train=part == "train")
        return PicturesInMemory(
            pictures.images.permute(0, 2, 3, 1).contiguous(), f"CIFAR-10 {part or 'test'}"
        )
    if not Path(source).exists():
        raise Unreadable(
            f"there is no {source}; a reference is a folder of pictures, an .npz, fashion-mnist or cifar-10"
        )
    return open_target(source).images


def fashion_folder() -> Path:
    """Where the Fashion-MNIST files are looked for."""
    return Path(os.environ.get("MEANCAP_FASHION_MNIST") or "/usr/share/datasets/fashion-mnist")


@cache
def shipped_fashion() -> Reference:
    """Features of the 10,000 held-out test images, which the classifier never saw, in half precision."""
    from safetensors.torch import load_file

    tensors = load_file(WEIGHTS / "fashion_reference.safetensors")
    pool = tensors["pool"].float()
    spatial = Gaussian(tensors["spatial_mean"], tensors["spatial_covariance"], len(pool))
    name = f"Fashion-MNIST test ({len(pool):,} images, shipped features)"
    return Reference(name, {"pool": pool}, {"spatial": spatial})


def score_runs(
    runs: Sequence[Path],
    protocols: Sequence[str],
    reference: str | None = None,
    weights: str | None = None,
    *,
    force: bool = False,
    device: str = "cpu",
    batch: int | None = None,
    compiled: bool = False,
    rank: int = 0,
    world: int = 1,
) -> Iterator[ScoreProgress]:
    """Scores every run under every protocol, yielding after each batch of images."""
    if force and world > 1:
        raise ValueError("--force deletes features that other processes may need; give it to one process")
    chosen = [protocol(name) for name in protocols]
    targets = [open_target(path) for path in runs]  # before any work: a wrong name should cost nothing
    for p in chosen:
        extractor = p.load(weights).on(device, batch, compiled=compiled)
        against = yield from find_reference(p, extractor, reference, rank, world)
        for step in range(len(runs)):
            r = (rank + step) % len(runs)  # processes begin at different runs
            share = {"rank": (rank + r) % world, "world": world}
            for done in score_target(targets[r], p, extractor, against, force=force, **share):
                yield replace(done, what=f"{runs[r].resolve().name}, {p.name}")
