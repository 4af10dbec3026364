"""The runs of `meancap demo`: both shipped models under three rules, from the same noise."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ..models.classes import fashion
from ..models.scenes import scenes
from ..sampling import uniform
from .config import versions
from .folder import Run
from .generate import class_run, make_run, run
from .scene_runs import scene_blocks, scene_run
from .score_runs import score_runs
from .store import Store

SCALE, GAMMA = 8, 1.1
RULES = {
    "no guidance": "CFG(1)",
    f"CFG {SCALE}": f"CFG({SCALE})",
    f"CFG {SCALE}, capped at {GAMMA}": f"CFG({SCALE}) | Cap({GAMMA})",
}
PROMPTS = (
    "a red disc left of a blue square",
    "a yellow triangle above a magenta disc",
    "a green square right of a cyan triangle",
    "a magenta square below a yellow disc",
)
BLOCKS = 4 * len(RULES)  # of each rule 120 garments, 40 at a time, and a scene for every prompt


def make_demo(out: Path) -> Iterator[str]:
    """Makes the missing parts of the three runs, yielding a title after each block, and scores them."""
    model = fashion()
    for title, rule in RULES.items():
        config = class_run(model, rule, per_class=12, times=uniform(32), batch=40, diagnostics=True)
        for _ in run(folder_of(out, title), model, config):
            yield title
    drawing, none = scenes(), [""] * len(PROMPTS)
    for title, rule in RULES.items():
        config = scene_run(drawing, rule, PROMPTS, none, steps=32, batch=len(PROMPTS))
        store = Store(scene_folder_of(out, title), config, versions())
        for _ in make_run(store, scene_blocks(drawing, config, PROMPTS, none)):
            yield title
    for _ in score_runs([folder_of(out, title) for title in RULES], ["fashion"]):
        pass


def open_demo(out: Path) -> dict[str, Run]:
    """The finished runs of the garments by title."""
    return {title: Run.open(folder_of(out, title)) for title in RULES}


def open_scenes(out: Path) -> dict[str, Run]:
    """The finished runs of the scenes by title."""
    return {title: Run.open(scene_folder_of(out, title)) for title in RULES}


def folder_of(out: Path, title: str) -> Path:
    """The folder of one of the garments' runs."""
    return out / title.replace(" ", "-").replace(",", "")


def scene_folder_of(out: Path, title: str) -> Path:
    """The folder of one of the scenes' runs."""
    return out / "scenes" / folder_of(out, title).name
