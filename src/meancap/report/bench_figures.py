"""Figures of a benchmark folder, drawn from its readings.

ranking   error over that of a perfect model on problems that no setting was chosen on, with intervals
fronts    error against what alignment lacks, along each rule's own sweep
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, NullLocator

from ..runs.bench.config import role
from ..runs.bench.families import FIXED, PAPER, PERFECT, UNGUIDED
from ..runs.bench.readings import Readings, read_readings
from ..runs.bench.tables import summary
from . import style

SHOWN: dict[str, tuple[str, dict[str, Any]]] = {
    FIXED.name: ("fixed CFG", {"color": style.VERMILION}),
    PAPER.name: ("cap, Γ = 1.1 (the paper)", {"color": style.GREEN}),
    "calibrated cap, q90": ("calibrated cap, q90", {"color": style.PURPLE}),
    "ramp from 1": ("ramp from 1", {"color": style.SKY}),
    "autoguidance": ("autoguidance", {"color": style.AMBER}),
    "density feedback": ("density feedback", {"color": style.BLUE, "ls": "", "marker": "D", "ms": 3}),
}
_ALWAYS = (FIXED.name, PAPER.name, UNGUIDED.name, "known optimum")
_COLOURS = {"cap": style.GREEN, "reference": style.INK, "rival": style.GREY, "yours": style.BLUE}
_FIRST, _LEAST = 20, 1e-4


def ranking(folder: Path) -> Figure:
    """The first twenty rules by the headline, and the references, best at the top."""
    rows = summary(read_readings(folder))
    rows = [r for r in rows if r["problems"] == rows[0]["problems"] and r["family"] != PERFECT.name]
    shown = [row for i, row in enumerate(rows) if i < _FIRST or row["family"] in _ALWAYS][::-1]
    figure, axes = style.panels(1, 1, style.PAGE, 0.17 * len(shown) + 0.9)
    panel: Axes = axes[0, 0]
    for height, row in enumerate(shown):
        colour = style.VERMILION if row["family"] == FIXED.name else _COLOURS[row["group"]]
        own, tuned = row["carried euler"], row["tuned euler"]
        if own.n > 1:
            panel.plot([own.low, own.high], [height, height], color=colour, lw=1.2)
        panel.plot(own.value, height, "o", color=colour, ms=4)
        panel.plot(tuned.value, height, "o", mfc="white", color=colour, ms=3.5, mew=0.8)
        if row["carried midpoint"].n:
            panel.plot(row["carried midpoint"].value, height, "|", color=colour, ms=7)
    panel.set_yticks(range(len(shown)), [row["family"] for row in shown])
    panel.axvline(1, color=style.INK, lw=0.8, ls="--")
    panel.set_xscale("log")
    panel.xaxis.set_minor_locator(NullLocator())
    most = max(
        [min(row["carried euler"].high, 40.0) for row in shown if row["carried euler"].n > 1] or [10.0]
    )
    panel.set_xlim(0.85, 1.05 * most)
    panel.set_xticks([t for t in (1, 1.5, 2, 3, 5, 8, 12, 20, 40) if t < 1.05 * most])
    panel.xaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}"))
    panel.set_xlabel("SW2 over that of a perfect model, geometric mean over problems held out   (← better)")
    figure.legend(handles=_marks(), loc="outside lower center", ncols=4)
    return figure


def _marks() -> list[Line2D]:
    ink = style.GREY
    return [
        Line2D([], [], color=ink, marker="o", ms=4, lw=1.2, label="setting carried over, 95 %"),
        Line2D([], [], color=ink, marker="|", ms=7, ls="", label="the same, converged solver"),
        Line2D([], [], color=ink, marker="o", mfc="white", ms=3.5, ls="", label="tuned on each problem"),
        Line2D([], [], color=style.INK, ls="--", lw=0.8, label="perfect model"),
    ]


def fronts(folder: Path) -> Figure:
    """Error against 1 - alignment along each sweep; both axes logarithmic, better is down and to the left."""
    readings = read_readings(folder)
    measured = [n for n in readings.problems if readings.rows.get((n, FIXED.name))]
    names = [n for kind in ("named", "held out") for n in measured if role(n) == kind]
    names = names[:8] or list(readings.problems[:1])
    columns = min(4, len(names))
    lines = math.ceil(len(names) / columns)
    figure, axes = style.panels(lines, columns, style.PAGE, 1.75 * lines + 0.6)
    for place, panel in enumerate(axes.flat):
        if place < len(names):
            _front(panel, names[place], readings)
        else:
            panel.set_axis_off()
    handles = [Line2D([], [], label=label, **line) for label, line in SHOWN.values()]
    handles += [
        Line2D([], [], color=style.INK, marker="*", ls="", ms=6, label="perfect model"),
        Line2D([], [], color=style.INK, marker="s", ls="", ms=3, label="no guidance"),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=4)
    return figure


def _front(panel: Axes, problem: str, readings: Readings) -> None:
    def points(family: str) -> tuple[list[float], list[float]]:
        tried = [r for what in ("spread", "refined") for r in readings.of(problem, family, what)]
        if all("scale" in r.setting for r in tried):
            tried.sort(key=lambda r: r.setting["scale"])
        return [max(1 - r.alignment[0], _LEAST) for r in tried], [r.sw2[0] for r in tried]

    for family, (_, line) in SHOWN.items():
        x, y = points(family)
        panel.plot(x, y, **{"marker": "o", "ms": 2, "lw": 1.0, **line})
    for family, mark in ((PERFECT.name, "*"), (UNGUIDED.name, "s")):
        x, y = points(family)
        panel.plot(x, y, mark, color=style.INK, ms=6 if mark == "*" else 3, zorder=4)
    panel.set_xscale("log")
    panel.set_yscale("log")
    panel.set_title(problem)
    panel.set_xlabel("1 − alignment")
    panel.set_ylabel("SW2")
    panel.annotate(
        "better", xy=(0.03, 0.04), xytext=(0.2, 0.2), xycoords="axes fraction", fontsize=6, color=style.GREY,
        arrowprops={"arrowstyle": "->", "color": style.GREY, "lw": 0.7},
    )  # fmt: skip
