"""From a run folder to its scores: features are kept beside the images, numbers in scores.jsonl.

What can be scored: a run folder, a folder of pictures, or an .npz with arr_0 (results go to NAME.scores/).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from ..metrics.extractors import Extractor
from ..metrics.images import Images, PictureFolder, Unreadable, npz_array, open_images, open_npz
from ..metrics.protocols import Generated, Protocol, Reference
from .features import FeatureCache
from .folder import Run
from .scores import scored, write_scores
from .store import sample_name


@dataclass(frozen=True, eq=False)
class Target:
    """Images to score, what each was asked to be, and the folder that keeps the results."""

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
        return Target(path, run_images(run), labels, tuple(run.prompts), tuple(run.seeds))
    if path.suffix == ".npz" and path.is_file():
        images = open_npz(path)
        return Target(results_of(path), images, npz_labels(path, len(images)), (), ())
    if not path.exists():
        raise Unreadable(f"there is no {path} to score")
    return Target(path, open_images(path), None, (), ())


def npz_labels(path: Path, count: int) -> Tensor | None:
    """arr_1 of an .npz file; None where it is absent, or negative as in runs with prompts."""
    labels = npz_array(path, "arr_1")
    if labels is None:
        return None
    if labels.shape != (count,) or labels.is_floating_point() or labels.is_complex():
        raise Unreadable(
            f"{path}: arr_1 must hold one whole number per image, its class; got {labels.dtype} "
            f"{tuple(labels.shape)} for {count} images"
        )
    return labels.long() if int(labels.min()) >= 0 else None


def results_of(path: Path) -> Path:
    """The folder that keeps the results for what stands at a path."""
    return path.with_name(f"{path.name}.scores") if path.suffix == ".npz" and path.is_file() else path


def run_images(run: Run) -> Images:
    """The pictures of a run, in the order of its records."""
    if run.config["images"] == "npz":
        return replace(open_npz(run.folder / "samples.npz"), name=run.folder.name)
    return PictureFolder(tuple(run.folder / sample_name(r["index"]) for r in run.records), run.folder.name)


def scoring(
    target: Target,
    protocol: Protocol,
    extractor: Extractor,
    reference: Reference | None,
    *,
    force: bool = False,
) -> Iterator[ScoreProgress]:
    """Extracts what is missing, then measures and writes; nothing is done twice unless `force` says so."""
    if extractor.needs_prompts and not target.prompts:
        raise Unreadable(f"{target.folder} has no prompts, and {protocol.name} compares images with prompts")
    mark = f"{target.images.identity()}-{len(target.images)}"
    if reference is not None and reference.identity:  # two folders may share a name
        mark += f"-{reference.identity}"
    text = describe(protocol, extractor, reference)
    if not force and scored(target.folder, text, mark):
        return
    kept = FeatureCache.of(target.folder / "features", protocol.name, extractor, target.images)
    kept.drop_older(protocol.name)
    total = len(target.images)
    for done in kept.fill(target.images, extractor, target.prompts):
        yield ScoreProgress("features", done, total)
    yield ScoreProgress("numbers", 0, total)
    estimates = protocol.measure(Generated(kept.load(), target.labels), reference)
    write_scores(target.folder, protocol.name, text, estimates, mark)


def describe(protocol: Protocol, extractor: Extractor, reference: Reference | None) -> str:
    """The protocol of a score in full: name, network and resize, reference."""
    against = f"; against {reference.name}" if reference is not None else ""
    return f"{protocol.name}: {extractor.identity}{against}"


def paired(a: str | Path, b: str | Path) -> bool:
    """Whether two runs share noise and conditions image by image."""
    one, two = open_target(a), open_target(b)
    if not one.seeds or one.seeds != two.seeds or one.prompts != two.prompts:
        return False
    if one.labels is None or two.labels is None:
        return one.labels is two.labels
    return bool(torch.equal(one.labels, two.labels))
