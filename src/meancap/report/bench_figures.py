"""Figures of a benchmark folder: error against scale, and error against alignment.

thick    fixed CFG, the paper's cap and its kin, with 95 % bands
thin     every other rule
dashed   a perfect model with the same steps: what a rule can reach
dotted   the model without guidance
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ..runs.bench.table_files import read_csv
from . import style

Row = dict[str, Any]
SHOWN: dict[str, tuple[str, dict[str, Any]]] = {
    "cfg": ("fixed CFG", {"color": style.VERMILION}),
    # Where the data mean is the origin the next two coincide: one wide, one dashed.
    "pmc": ("cap, Γ = 1.1 (the paper)", {"color": style.GREEN, "lw": 2.2}),
    "anchored 1.1": ("cap round E[x], Γ = 1.1", {"color": style.BLUE, "ls": (0, (3, 1.5)), "lw": 1.0}),
    "calibrated q90": ("calibrated cap, q90", {"color": style.PURPLE}),
    "apg radius 0.1": ("APG, r = 0.1", {"color": style.AMBER}),
    "interval 0.5 to 1": ("interval 0.5–1", {"color": style.SKY}),
}
_COLUMNS = 4


def scale_error(folder: Path) -> Figure:
    """Sliced Wasserstein error over the nominal scale, one panel per problem."""
    rows = _rows(folder)
    names = list(dict.fromkeys(row["problem"] for row in rows))
    marks = [
        Line2D([], [], color=style.INK, ls="--", lw=0.9, label="perfect model"),
        Line2D([], [], color=style.INK, ls=":", lw=0.9, label="no guidance"),
    ]
    return _grid(names, marks, lambda panel, name: _by_scale(panel, _of(rows, name)))


def fronts(folder: Path) -> Figure:
    """Error against alignment along each sweep, where alignment is not complete without guidance."""
    rows = _rows(folder)
    useful = {row["problem"] for row in read_csv(folder / "equal_alignment.csv")}
    names = [name for name in dict.fromkeys(row["problem"] for row in rows) if name in useful]
    marks = [
        Line2D([], [], color=style.INK, marker="*", ls="", ms=6, label="perfect model"),
        Line2D([], [], color=style.INK, marker="s", ls="", ms=3, label="no guidance"),
    ]
    return _grid(names, marks, lambda panel, name: _by_alignment(panel, _of(rows, name)))


def _rows(folder: Path) -> list[Row]:
    return [
        row
        for row in read_csv(folder / "results.csv")
        if row["variant"] == "rule" and row["sw2"] is not None and not row["failure"]
    ]


def _of(rows: list[Row], problem: str) -> list[Row]:
    return [row for row in rows if row["problem"] == problem]


def _grid(names: Sequence[str], marks: list[Line2D], draw: Callable[[Axes, str], None]) -> Figure:
    columns = max(1, min(_COLUMNS, len(names)))
    lines = max(1, math.ceil(len(names) / columns))
    figure, axes = style.panels(lines, columns, style.PAGE, 1.6 * lines + 0.6)
    for place, panel in enumerate(axes.flat):
        if place < len(names):
            panel.set_title(names[place])
            draw(panel, names[place])
        else:
            panel.set_axis_off()
    handles = [Line2D([], [], label=label, **line) for label, line in SHOWN.values()]
    handles += [*marks, Line2D([], [], color=style.PALE, lw=0.8, label="other rules")]
    figure.legend(handles=handles, loc="outside lower center", ncols=3)
    return figure


def _by_scale(panel: Axes, here: list[Row]) -> None:
    for name, look in (("perfect model", "--"), ("unguided", ":")):
        for row in here:
            if row["family"] == name:
                panel.axhline(row["sw2"], color=style.INK, ls=look, lw=0.9, zorder=2)
    for family, sweep in _sweeps(here):
        x, y = [row["scale"] for row in sweep], [row["sw2"] for row in sweep]
        if family not in SHOWN:
            if min(x) > 1 and len(x) > 1:
                panel.plot(x, y, color=style.PALE, lw=0.5, zorder=1)
            continue
        line = SHOWN[family][1]
        panel.plot(x, y, marker="o", ms=2, zorder=3, **line)
        low, high = ([max(row[f"sw2_{side}"], 1e-6) for row in sweep] for side in ("low", "high"))
        panel.fill_between(x, low, high, color=line["color"], alpha=0.18, lw=0, zorder=2)
    panel.set_xscale("log")
    panel.set_yscale("log")
    scales = [s for s in (1.5, 2, 3, 5, 9, 15) if any(row["scale"] == s for row in here)]
    panel.set_xticks(scales, [f"{s:g}" for s in scales])
    _logarithmic(panel, [row["sw2"] for row in here if row["family"] in (*SHOWN, "perfect model")])
    panel.minorticks_off()
    panel.set_xlabel("nominal scale λ")
    panel.set_ylabel("SW2")


def _by_alignment(panel: Axes, here: list[Row]) -> None:
    start, truth = (
        next(row for row in here if row["family"] == name) for name in ("unguided", "perfect model")
    )
    for family, sweep in _sweeps(here):
        points = [start, *sweep] if family in SHOWN else sweep
        x, y = [row["alignment"] for row in points], [row["sw2"] for row in points]
        if family not in SHOWN:
            panel.plot(x, y, color=style.PALE, lw=0.5, zorder=1)
            continue
        bars = [
            [[abs(row[key] - row[f"{key}_{side}"]) for row in points] for side in ("low", "high")]
            for key in ("sw2", "alignment")
        ]
        panel.errorbar(
            x, y, yerr=bars[0], xerr=bars[1], marker="o", ms=2, elinewidth=0.6, zorder=3, **SHOWN[family][1]
        )
    panel.plot(truth["alignment"], truth["sw2"], "*", color=style.INK, ms=6, zorder=4)
    panel.plot(start["alignment"], start["sw2"], "s", color=style.INK, ms=3, zorder=4)
    known = [row for row in here if row["family"] in (*SHOWN, "perfect model", "unguided")]
    least = min(row["alignment"] for row in known)
    panel.set_xlim(least - 0.05 * (1 - least), 1 + 0.03 * (1 - least))
    panel.set_ylim(0, 1.15 * max(row["sw2"] for row in known))
    panel.locator_params(axis="x", nbins=4)
    panel.set_xlabel("alignment E p(A | x)")
    panel.set_ylabel("SW2")


def _sweeps(here: list[Row]) -> list[tuple[str, list[Row]]]:
    names = dict.fromkeys(row["family"] for row in here if row["family"] not in ("perfect model", "unguided"))
    return [(name, sorted(_family(here, name), key=lambda r: float(r["scale"]))) for name in names]


def _family(here: list[Row], name: str) -> list[Row]:
    return [row for row in here if row["family"] == name]


def _logarithmic(panel: Axes, values: list[float]) -> None:
    low, high = min(values), max(values)
    panel.set_ylim(0.7 * low, 1.4 * high)
    steps = (1, 2, 5) if high / low < 60 else (1,)
    ticks = [m * 10.0**e for e in range(-5, 3) for m in steps]
    shown = [tick for tick in ticks if 0.7 * low <= tick <= 1.4 * high]
    panel.set_yticks(shown, [f"{tick:g}" for tick in shown])
