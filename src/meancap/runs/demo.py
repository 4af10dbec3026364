"""The runs of `meancap demo`: the shipped model under three rules, from the same noise."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ..models.classes import fashion
from ..sampling import uniform
from .folder import Run
from .generate import class_run, run
from .score_runs import score_runs

SCALE, GAMMA = 8, 1.1
RULES = {
    "no guidance": "CFG(1)",
    f"CFG {SCALE}": f"CFG({SCALE})",
    f"CFG {SCALE}, capped at {GAMMA}": f"CFG({SCALE}) | Cap({GAMMA})",
}
BLOCKS = 3 * len(RULES)  # 120 samples under each rule, 40 at a time


def make_demo(out: Path) -> Iterator[str]:
    """Makes the missing parts of the three runs, yielding a title after each block, and scores them."""
    model = fashion()
    for title, rule in RULES.items():
        config = class_run(model, rule, per_class=12, times=uniform(32), batch=40, diagnostics=True)
        for _ in run(folder_of(out, title), model, config):
            yield title
    for _ in score_runs([folder_of(out, title) for title in RULES], ["fashion"]):
        pass


def open_demo(out: Path) -> dict[str, Run]:
    """The finished runs by title."""
    return {title: Run.open(folder_of(out, title)) for title in RULES}


def folder_of(out: Path, title: str) -> Path:
    """The folder of one of the runs."""
    return out / title.replace(" ", "-").replace(",", "")
