"""The study of the scenes: which rule draws what a sentence asks for, and what it does to all the rest.

    OUT/study.json               what was asked, and what pilots chose (APG's radius, the calibrated radii)
    OUT/seed-0/scenes/CELL/      a run folder for each rule and scale; seeds share nothing, rules share noise
    OUT/seed-0/negative/CELL/    the same for prompts with a negative prompt
    OUT/seed-0/wrong/CELL/       the same for the model that was taught wrong captions

Half of the prompts fix all six words, half leave each open with probability 1/2. `scenes_table` makes the
table from these folders and needs no model.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from ..drawing import codes as codes_of
from ..drawing import draw, prompt_of
from ..files import write_whole
from ..metrics.scenes import SceneDetector, detector, measure_pictures
from ..models.scenes import WRONG, SceneModel, scenes
from ..rules import CFG, Cap, CapDisplacement, Rule, apg, parse
from ..sampling import noise, sample, shifted
from ..schedules import Exponential
from .calibrate import calibrate
from .config import sample_seed, versions
from .generate import make_run
from .protocols import ImageSetting
from .scene_runs import SHIFT, scene_blocks, scene_run
from .store import Store

PILOT_SEED = 1000
RADII = (2.5, 5.0, 10.0, 20.0)


@dataclass(frozen=True)
class SceneStudy:
    """How much of the study to run."""

    prompts: int = 96
    seeds: int = 3
    steps: int = 16
    scales: tuple[float, ...] = (2.0, 4.0, 8.0, 15.0)
    beyond: tuple[float, ...] = (50.0,)  # for caps only
    negative_scales: tuple[float, ...] = (4.0, 8.0)
    wrong_scales: tuple[float, ...] = (4.0, 15.0)
    batch: int = 48

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


@dataclass(frozen=True)
class Pilots:
    """What is found before the study, with noise that it does not use."""

    radius: float  # of APG
    calibrated: str  # the rule, as text

    @property
    def cap(self) -> Rule:
        return parse(self.calibrated)


def complete_and_partial(count: int, seed: int) -> list[str]:
    """Prompts of the law: the first half complete, each word of the others open with probability 1/2."""
    g = torch.Generator().manual_seed(sample_seed(seed, 0))
    codes = draw(count, g).codes()
    unsaid = torch.rand(codes.shape, generator=g) < 0.5
    unsaid[: count // 2] = False
    return [str(prompt_of(row)) for row in torch.where(unsaid, -1, codes).tolist()]


def with_negatives(count: int, seed: int) -> tuple[list[str], list[str]]:
    """Prompts that leave both colours open, and a colour that must not be there."""
    g = torch.Generator().manual_seed(sample_seed(seed, 1))
    codes = draw(count, g).codes()
    colours = codes[:, 1].clone()
    codes[:, 1] = codes[:, 3] = -1
    nothing = torch.full_like(codes, -1)
    nothing[:, 1] = colours
    return tuple([str(prompt_of(row)) for row in table.tolist()] for table in (codes, nothing))  # type: ignore[return-value]


def settings(
    study: SceneStudy, pilots: Pilots, scales: Sequence[float], *, rivals: bool = True
) -> list[ImageSetting]:
    """The rules at each scale; without `rivals` only fixed guidance and the caps."""
    n = study.steps
    rows = [ImageSetting("Conditional", 1.0, CFG(1.0), n)]
    for scale in scales:
        fixed = [ImageSetting("CFG", scale, CFG(scale), n)]
        if rivals:
            fixed.append(ImageSetting("APG", scale, apg(scale, radius=pilots.radius), n))
            fixed.append(ImageSetting("C2FG", scale, CFG(Exponential(scale, 0.2)), n))
        rows += [*fixed, *_caps(scale, n, pilots)]
    return rows


def _caps(scale: float, n: int, pilots: Pilots) -> list[ImageSetting]:
    return [
        ImageSetting("Cap", scale, CFG(scale) | Cap(1.05), n, gamma=1.05),
        ImageSetting("Cap", scale, CFG(scale) | Cap(1.10), n, gamma=1.10),
        ImageSetting("Displacement", scale, CFG(scale) | CapDisplacement(1.15), n, gamma=1.15),
        ImageSetting("Anchored", scale, CFG(scale) | Cap(1.10, anchor="first"), n, gamma=1.10),
        ImageSetting("Calibrated", scale, CFG(scale) | pilots.cap, n),
    ]


def cells(study: SceneStudy, pilots: Pilots, parts: Sequence[str]) -> list[Cell]:
    """Every run, seed by seed, so that what a stopped study has is whole."""
    planned = []
    for seed in range(study.seeds):
        everything = settings(study, pilots, study.scales)
        for scale in study.beyond:
            everything += _caps(scale, study.steps, pilots)
        chosen = {
            "scenes": everything,
            "negative": settings(study, pilots, study.negative_scales, rivals=False),
            "wrong": settings(study, pilots, study.wrong_scales, rivals=False),
        }
        planned += [Cell(seed, part, s) for part in parts for s in chosen[part]]
    return planned


def cells_of(study: SceneStudy, out: Path) -> list[Cell]:
    """The cells of a study, whose pilots run first where they have not."""
    pilots = open_pilots(study, out, scenes())
    return cells(study, pilots, available_parts())


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


def open_pilots(study: SceneStudy, out: Path, model: SceneModel) -> Pilots:
    """What the pilots found, from study.json or by running them; a study with other options is refused."""
    path = out / "study.json"
    asked = json.loads(json.dumps(asdict(study) | {"model": model.sha256}))
    if path.is_file():
        known = json.loads(path.read_text(encoding="utf-8"))
        if known["asked"] != asked:
            raise ValueError(f"{out} holds a study with other options or another model; give another folder")
        return Pilots(**known["pilots"])
    out.mkdir(parents=True, exist_ok=True)
    pilots = find_pilots(study, model, detector())
    write_whole(path, json.dumps({"asked": asked, "pilots": asdict(pilots)}, indent=1) + "\n")
    return pilots


def find_pilots(study: SceneStudy, model: SceneModel, network: SceneDetector) -> Pilots:
    """APG's radius: the one with most pictures right and drawn at the middle scale; the calibrated radii."""
    prompts = complete_and_partial(study.prompts, PILOT_SEED)
    codes = codes_of(prompts)
    x = noise([sample_seed(PILOT_SEED, i) for i in range(len(prompts))], model.shape)
    times = shifted(study.steps, SHIFT)
    scale = study.scales[len(study.scales) // 2]

    def hits(rule: Rule) -> float:
        made = measure_pictures(network, model.decode(sample(model.predict(codes), rule, x, times)), codes)
        return float((made.right["all"] & made.drawn).double().mean())

    radius = best_of(RADII, lambda r: hits(apg(scale, radius=r)))
    calibration = calibrate([(model.predict(codes), x)], times, model=model.name)
    return Pilots(radius, str(calibration.cap()))


def best_of(values: Sequence[float], score: Callable[[float], float]) -> float:
    """The value with the highest score; ties go to the first."""
    return max(values, key=score)
