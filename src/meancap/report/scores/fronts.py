"""Fronts: what a rule gives up in one number to win in another, as its scale grows.

One curve per rule, one point per scale (the size of the point grows with it), whiskers of 95 %. The
unguided run is the blue diamond where all curves begin.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ...metrics.score import Estimate
from .. import style
from .collect import ScoredRun
from .compare import alignment_of, sweeps

COLOURS = {
    "Fixed CFG": style.VERMILION,
    "APG": style.AMBER,
    "C2FG": style.PURPLE,
    "PMC-CFG": style.GREEN,
    "PMC-CFG, anchored": style.SKY,
    "PMC-CFG, calibrated": style.INK,
    "PMC-CFG, displacement": style.GREEN,
}
MARKERS = ("o", "s", "^", "v", "D", "P", "X", "*")
DISTANCES = ("FID", "FD-fashion", "FD-EffLite0")


def shown(entries: Sequence[ScoredRun], protocol: str) -> list[tuple[str, str]]:
    """The pairs of numbers that these runs have fronts of; none without a sweep over scales."""
    have = {name for e in entries for name in e.scores.get(protocol, {})}
    pairs = [(x, y) for x, y in _panels(have) if x in have | {"scale"} and y in have]
    return pairs if sweeps(entries, protocol) else []


def fronts(entries: Sequence[ScoredRun], protocol: str, real: Mapping[str, float] | None = None) -> Figure:
    """One row per evaluation count: distance and recall, alignment and diversity, colour and scale.

    `real` are the numbers of real pictures, a star in every panel.
    """
    curves, pairs = sweeps(entries, protocol), shown(entries, protocol)
    counts = sorted({n for n, _ in curves})
    labels = list(dict.fromkeys(label for _, label in curves))
    height = 0.75 + 1.9 * len(counts)
    figure, axes = style.panels(len(counts), len(pairs), style.PAGE, height, sharex="col", sharey="col")
    for row, n in zip(axes, counts, strict=True):
        for axis, (x, y) in zip(row, pairs, strict=True):
            for k, label in enumerate(labels):
                if (n, label) in curves:
                    _curve(axis, curves[n, label], protocol, x, y, _look(label, k))
            if n == counts[-1]:
                axis.set_xlabel("scale λ" if x == "scale" else x)
            axis.set_ylabel(y)
            axis.margins(0.08)
            if real:
                _mark(axis, real, x, y)
        row[0].set_title(f"{n} evaluations", loc="left")
    handles = [Line2D([], [], color=style.BLUE, marker="D", linestyle="", markersize=5, label="Conditional")]
    handles += [
        Line2D([], [], **_look(label, k), markersize=4, label=label) for k, label in enumerate(labels)
    ]
    if real:
        handles.append(Line2D([], [], **_STAR, label="test pictures"))
    figure.legend(handles=handles, loc="outside upper center", ncols=4)
    return figure


_STAR: dict[str, Any] = {
    "color": style.YELLOW, "markeredgecolor": style.INK, "marker": "*", "linestyle": "", "markersize": 9,
}  # fmt: skip


def _mark(axis: Axes, real: Mapping[str, float], x: str, y: str) -> None:
    """Where real pictures lie; they have no scale, so that there they are a line."""
    if x == "scale":
        axis.axhline(real[y], color=style.INK, linewidth=0.8, linestyle=":")
        axis.set_xscale("log")
    elif x in real and y in real:
        axis.plot(real[x], real[y], **_STAR, zorder=4)


def _panels(have: set[str]) -> list[tuple[str, str]]:
    distance = next((d for d in DISTANCES if d in have), "")
    alignment = alignment_of(dict.fromkeys(have, Estimate("", 0.0, 0))) or ""
    colour = "saturation" if "saturation" in have else "brightness"
    recall = "Recall@3" if "Recall@3" in have else "recall"
    return [(recall, distance), (alignment, "diversity"), (alignment, distance), ("scale", colour)]


def _look(label: str, k: int) -> dict[str, Any]:
    base = label.rstrip("0123456789.").strip()
    return {
        "color": COLOURS.get(base, style.GREY),
        "marker": MARKERS[k % len(MARKERS)],
        "linestyle": "--" if label.endswith("1.05") else "-",
    }


def _curve(
    axis: Axes, sweep: Sequence[ScoredRun], protocol: str, x: str, y: str, look: dict[str, Any]
) -> None:
    points = [e for e in sweep if y in e.scores[protocol] and (x == "scale" or x in e.scores[protocol])]
    if not points:
        return
    xs = [e.name.scale or 0.0 if x == "scale" else e.scores[protocol][x].value for e in points]
    ys = [e.scores[protocol][y].value for e in points]
    for seeds in dict.fromkeys(e.pairing for e in points):  # one line for each noise
        own = [i for i, e in enumerate(points) if e.pairing == seeds]
        axis.plot(
            [xs[i] for i in own], [ys[i] for i in own],
            color=look["color"], linestyle=look["linestyle"], linewidth=1.0, alpha=0.85,
        )  # fmt: skip
    for e, px, py in zip(points, xs, ys, strict=True):
        plain = e.name.method == "Conditional"
        colour = style.BLUE if plain else look["color"]
        wide = None if x == "scale" else _whisker(e.scores[protocol][x])
        axis.errorbar(
            px, py, xerr=wide, yerr=_whisker(e.scores[protocol][y]),
            fmt="D" if plain else look["marker"], color=colour,
            ecolor=to_rgba(colour, 0.45),
            markersize=4.5 if plain else 2.2 + 1.5 * math.log(max(1.0, e.name.scale or 1.0)), elinewidth=0.5,
            zorder=3 if plain else 2,
        )  # fmt: skip


def _whisker(e: Estimate) -> list[list[float]] | None:
    interval = e.interval()
    return None if interval is None else [[e.value - interval[0]], [interval[1] - e.value]]
