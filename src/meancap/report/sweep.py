"""A protocol's table against the guidance scale: one line per method, one panel per column."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from .style import AMBER, BLUE, GREEN, GREY, PURPLE, SKY, VERMILION

_COLOURS = (VERMILION, AMBER, PURPLE, GREEN, SKY, BLUE)
_FACTS = ("effective_scale_first", "share_capped", "largest_ratio")
_INPUTS = ("method", "scale", "gamma", "evaluations", "samples")


def read_table(folder: str | Path) -> list[dict[str, str]]:
    """The rows of OUT/table.csv as `meancap reproduce` wrote them."""
    path = Path(folder) / "table.csv"
    if not path.is_file():
        raise FileNotFoundError(f"{folder} has no table.csv; it is written when every run is finished")
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def sweep(folder: str | Path, columns: Sequence[str] = (), evaluations: int | None = None) -> Figure:
    """Columns of the table over the scale; the unguided run is the dotted line.

    Without `columns`, the scores if there are any, else what guidance did.
    """
    rows = read_table(folder)
    counts = sorted({int(r["evaluations"]) for r in rows})
    chosen = counts[-1] if evaluations is None else evaluations
    rows = [r for r in rows if int(r["evaluations"]) == chosen]
    if not rows:
        raise ValueError(f"{folder} has runs of {counts} evaluations; got {evaluations}")
    names = list(columns) or _scores(rows) or [name for name in _FACTS if name in rows[0]]
    for name in names:
        if name not in rows[0]:
            raise ValueError(f"{folder}/table.csv has the columns {', '.join(rows[0])}; got {name!r}")
    wide = min(3, len(names))
    tall = -(-len(names) // wide)
    figure = Figure(figsize=(0.3 + 2.3 * wide, 0.5 + 1.8 * tall), layout="constrained")
    axes: Any = figure.subplots(tall, wide, squeeze=False)
    for place, name in zip(axes.flat, names, strict=False):
        _panel(place, rows, name)
    for place in list(axes.flat)[len(names) :]:
        place.set_visible(False)
    handles, labels = axes.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(6, len(labels)))
    figure.suptitle(f"{chosen} evaluations", fontsize=8)
    return figure


def _panel(place: Any, rows: Sequence[dict[str, str]], name: str) -> None:
    lines: dict[str, list[tuple[float, float]]] = {}
    for r in rows:
        if r[name] == "":
            continue
        point = (float(r["scale"]), float(r[name]))
        if r["method"] == "Conditional":
            place.axhline(point[1], color=GREY, linestyle=":", linewidth=1, label="Conditional")
        else:
            lines.setdefault(f"{r['method']} {r['gamma']}".strip(), []).append(point)
    for colour, (label, points) in zip(_COLOURS * 3, lines.items(), strict=False):
        place.plot(*zip(*sorted(points), strict=True), "o-", markersize=3, color=colour, label=label)
    place.set_title(name.replace("_", " "))
    place.set_xlabel("scale λ")


def _scores(rows: Sequence[dict[str, str]]) -> list[str]:
    facts = {*_INPUTS, *_FACTS, "effective_scale_last"}
    return [name for name in rows[0] if name not in facts][:6]
