"""The study of the scenes: which rule draws what a sentence asks for, and what it does to all the rest.

    OUT/study.json               what was asked, and what pilots chose, see `scenes_pilots`
    OUT/seed-0/scenes/CELL/      a run folder for each rule and scale; seeds share nothing, rules share noise
    OUT/seed-0/negative/CELL/    the same for prompts with a negative prompt
    OUT/seed-0/wrong/CELL/       the same for the model that was taught wrong captions

Half of the prompts fix all six words, half leave each open with probability 1/2. `scenes_table` makes the
table from these folders and needs no model.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..rules import CFG, Cap, CapDisplacement, density_feedback
from ..scenes.model import WRONG, SceneModel, scenes
from ..schedules import Exponential
from .config import versions
from .folder import Store
from .generate import make_run, scene_blocks
from .protocols import ImageSetting
from .scene_runs import complete_and_partial, scene_run, with_negatives
from .scenes_pilots import ScenePilots, open_pilots

WRONG_SHARE = 0.2  # of the captions of the second model; they are drawn at random, as feedback supposes


@dataclass(frozen=True)
class SceneStudy:
    """How much of the study to run."""

    prompts: int = 32
    seeds: int = 3
    steps: int = 16
    scales: tuple[float, ...] = (2.0, 4.0, 7.0, 15.0)
    beyond: tuple[float, ...] = (50.0,)  # for caps only
    negative_scales: tuple[float, ...] = (4.0, 15.0)
    wrong_scales: tuple[float, ...] = (2.0, 4.0, 15.0)
    batch: int = 32

    def __post_init__(self) -> None:
        for name in ("prompts", "seeds", "steps", "batch"):
            if getattr(self, name) < 1:
                raise ValueError(f"the study needs at least 1 for {name}; got {getattr(self, name)}")
        everywhere = (*self.scales, *self.beyond, *self.negative_scales, *self.wrong_scales)
        if not self.scales or min(everywhere) <= 1:
            raise ValueError("the study needs scales above 1; the unguided run is always part of it")


QUICK = SceneStudy(
    prompts=16,
    seeds=1,
    steps=8,
    scales=(4.0,),
    beyond=(),
    negative_scales=(4.0,),
    wrong_scales=(4.0,),
    batch=16,
)


@dataclass(frozen=True)
class Cell:
    """One run of the study."""

    seed: int
    part: str  # scenes, negative or wrong
    setting: ImageSetting

    @property
    def folder(self) -> str:
        return f"seed-{self.seed}/{self.part}/{self.setting.name}"


def settings(study: SceneStudy, pilots: ScenePilots, part: str) -> list[ImageSetting]:
    """The rules of a part at each of its scales; APG, C2FG and a scale between are for the first part."""
    n = study.steps
    scales = {"scenes": study.scales, "negative": study.negative_scales, "wrong": study.wrong_scales}[part]
    rows = [ImageSetting("Conditional", 1.0, CFG(1.0), n)]
    for scale in scales:
        rows.append(ImageSetting("CFG", scale, CFG(scale), n))
        if part == "scenes":
            rows.append(ImageSetting("APG", scale, pilots.apg(scale), n))
            rows.append(ImageSetting("C2FG", scale, CFG(Exponential(scale, 0.2)), n))
        rows += _caps(scale, n, pilots, part)
    for scale in () if part == "negative" else study.beyond:
        rows += _caps(scale, n, pilots, part)
    if part == "wrong":
        known = 1 - WRONG_SHARE
        rows.append(ImageSetting("Feedback known", round(1 / known, 4), density_feedback(known), n))
    if part != "negative":
        rows += [ImageSetting("Feedback", scale, pilots.feedback(scale), n) for scale in scales]
    return rows


def _caps(scale: float, n: int, pilots: ScenePilots, part: str) -> list[ImageSetting]:
    return [
        ImageSetting("Cap", scale, CFG(scale) | Cap(1.05), n, gamma=1.05),
        ImageSetting("Cap", scale, CFG(scale) | Cap(1.10), n, gamma=1.10),
        ImageSetting("Displacement", scale, CFG(scale) | CapDisplacement(1.15), n, gamma=1.15),
        ImageSetting("Anchored", scale, CFG(scale) | Cap(1.10, anchor="first"), n, gamma=1.10),
        ImageSetting("Calibrated", scale, CFG(scale) | pilots.cap(part), n),
    ]


def cells(study: SceneStudy, pilots: ScenePilots, parts: Sequence[str]) -> list[Cell]:
    """Every run, seed by seed, so that what a stopped study has is whole."""
    return [
        Cell(seed, part, one)
        for seed in range(study.seeds)
        for part in parts
        for one in settings(study, pilots, part)
    ]


def cells_of(study: SceneStudy, out: Path) -> list[Cell]:
    """The cells of a study, whose pilots run first where they have not."""
    return cells(study, open_pilots(study, out), available_parts())


def available_parts() -> list[str]:
    """The parts whose model is shipped."""
    return ["scenes", "negative", *(["wrong"] if WRONG.is_file() else [])]


def run_study(
    study: SceneStudy, out: Path, *, threads: int = 1, seeds: Sequence[int] | None = None
) -> Iterator[tuple[Cell, int, int]]:
    """Makes what is missing, yielding each finished cell with its number and the number of all cells.

    `seeds` makes only those; two processes with different seeds share the work.
    """
    todo = [cell for cell in cells_of(study, out) if seeds is None or cell.seed in seeds]
    models = {part: scenes(wrong_captions=part == "wrong") for part in available_parts()}
    for number, cell in enumerate(todo, start=1):
        make_scene_cell(study, cell, models[cell.part], out, threads)
        yield cell, number, len(todo)


def make_scene_cell(study: SceneStudy, cell: Cell, model: SceneModel, out: Path, threads: int = 1) -> None:
    """One run folder: begun, taken up, or found finished."""
    if cell.part == "negative":
        prompts, negatives = with_negatives(study.prompts, cell.seed)
    else:
        prompts = complete_and_partial(study.prompts, cell.seed)
        negatives = [""] * len(prompts)
    config = scene_run(
        model, cell.setting.rule, prompts, negatives, steps=study.steps, seed=cell.seed, batch=study.batch,
        images="npz", diagnostics=True, threads=threads,
    )  # fmt: skip
    store = Store(out / cell.folder, config, versions())
    for _ in make_run(store, scene_blocks(model, config, prompts, negatives)):
        pass
