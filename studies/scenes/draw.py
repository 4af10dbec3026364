"""The scenes study in pictures: curves over the scale, and matched pictures under the rules.

Both are functions of the study's folder: `table.csv`, and the run folders of its first seed.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from ..runs.folder import Run
from .style import AMBER, BLUE, GREEN, GREY, INK, PAGE, PURPLE, SKY, VERMILION, YELLOW, panels
from .sweep import read_table

_COLOURS = {
    "CFG": VERMILION, "APG": AMBER, "C2FG": PURPLE, "Cap 1.05": SKY, "Cap 1.1": GREEN,
    "Displacement 1.15": BLUE, "Anchored 1.1": INK, "Calibrated": YELLOW,
}  # fmt: skip
# Column of the table, title, and whether the row of renders says what is best.
_PANELS = (
    ("right all", "whole prompt right", False),
    ("drawn", "both objects drawn", False),
    ("saturation", "saturation", True),
    ("clipped", "clipped values", True),
    ("tv", "distance of open attributes from the law", True),
    ("FD", "FD to renders", False),
)


def curves(out: str | Path, part: str = "scenes") -> Figure:
    """Six columns of the table over the scale; dotted the unguided run, dashed the renders."""
    rows = [r for r in read_table(out) if r["part"] == part]
    if not rows:
        raise ValueError(f"{out}/table.csv has no part {part!r}")
    figure, axes = panels(2, 3, PAGE, 3.9)
    for place, (column, title, truth) in zip(axes.flat, _PANELS, strict=True):
        _panel(place, rows, column, truth)
        place.set_title(title)
        place.set_xscale("log")
        ticks = sorted({float(r["scale"]) for r in rows if r["method"] not in ("Truth", "Conditional")})
        place.set_xticks(ticks, [f"{t:g}" for t in ticks])
        place.xaxis.set_minor_locator(NullLocator())
        place.set_xlabel("scale λ")
    handles, labels = axes[0, 2].get_legend_handles_labels()  # a panel that has the renders' line as well
    figure.legend(handles, labels, loc="outside lower center", ncols=5)
    return figure


def _panel(place: Any, rows: Sequence[dict[str, str]], column: str, truth: bool) -> None:
    lines: dict[str, list[tuple[float, float]]] = {}
    for r in rows:
        if r.get(column, "") == "":
            continue
        value = float(r[column])
        if r["method"] == "Truth":
            if truth:
                place.axhline(value, color=GREY, linestyle="--", linewidth=1, label="renders")
        elif r["method"] == "Conditional":
            place.axhline(value, color=GREY, linestyle=":", linewidth=1, label="λ = 1")
        else:
            lines.setdefault(f"{r['method']} {r['gamma']}".strip(), []).append((float(r["scale"]), value))
    for label, points in lines.items():
        colour = _COLOURS.get(label, GREY)
        place.plot(*zip(*sorted(points), strict=True), "o-", markersize=2.5, color=colour, label=label)


def prompt_sheet(out: str | Path, count: int = 8, scale: float | None = None) -> Figure:
    """The first prompts of the first seed: one column each, one row per rule, at one scale."""
    folder = Path(out) / "seed-0" / "scenes"
    runs = [Run.open(path) for path in sorted(folder.iterdir()) if (path / "run.json").is_file()]
    names = [run.folder.name.rpartition("-n")[0].partition("-scale-") for run in runs]
    scales = sorted({float(name[2]) for name in names} - {1.0})
    chosen = scale if scale is not None else min(scales, key=lambda s: abs(s - 8))
    rows = [(n[0], r) for n, r in zip(names, runs, strict=True) if float(n[2]) in (1.0, chosen)]
    rows.sort(key=lambda one: (one[0] != "conditional", one[0] != "cfg", one[0]))
    figure, axes = panels(len(rows), count, PAGE, 0.75 * len(rows) + 0.6)
    for number, (line, (name, run)) in enumerate(zip(axes, rows, strict=True)):
        for k, (place, image) in enumerate(zip(line, run.images(range(count)), strict=True)):
            place.imshow(np.asarray(image), interpolation="nearest")
            place.set_xticks([])
            place.set_yticks([])
            if number == 0:
                place.set_title(_broken(run.prompts[k]), fontsize=5)
        line[0].set_ylabel(name, fontsize=5)
    figure.suptitle(f"λ = {chosen:g}; the first row is λ = 1", fontsize=7)
    return figure


def _broken(prompt: str) -> str:
    words = prompt.split()
    return "\n".join(" ".join(words[i : i + 3]) for i in range(0, len(words), 3))
