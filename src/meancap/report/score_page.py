"""One page about all scored runs of a folder: `report.html`, `report.md`, `scores.csv` and the figures.

A front shows what a rule gives up in one number to win in another, as its scale grows: one curve per rule,
one point per scale (the size of the point grows with it), whiskers of 95 %. The unguided run is the blue
diamond where all curves begin.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from .. import __version__
from ..files import write_whole
from ..metrics.protocols import PROTOCOLS
from ..metrics.score import Estimate
from ..runs.paper_protocols import paper_source
from . import score_tables as tables
from . import style
from .document import Block, FigureFile, Heading, Items, Text, html, markdown
from .score_tables import reading, tally
from .scored_runs import DISTANCES, FEWEST, ScoredRun, alignment_of, collect, sweeps
from .style import save_figure

_COLOURS = {
    "Fixed CFG": style.VERMILION,
    "APG": style.AMBER,
    "C2FG": style.PURPLE,
    "PMC-CFG": style.GREEN,
    "PMC-CFG, anchored": style.SKY,
    "PMC-CFG, calibrated": style.INK,
    "PMC-CFG, displacement": style.GREEN,
}
_MARKERS = ("o", "s", "^", "v", "D", "P", "X", "*")


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
        "color": _COLOURS.get(base, style.GREY),
        "marker": _MARKERS[k % len(_MARKERS)],
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


_COMPARED = {
    "fashion": ("FD-fashion", "recall", "precision", "diversity", "brightness"),
    "efficientnet-lite0": ("FD-EffLite0", "KD-EffLite0", "recall", "precision", "diversity"),
    "adm-imagenet256": ("FID", "sFID", "precision", "recall"),
}


def write_report(folder: Path) -> list[Path]:
    """Writes the page and its figures into the folder that holds the runs; returns what was written."""
    entries = _with_alignment(collect(folder))
    written = []
    for protocol in _protocols(entries):
        if shown(entries, protocol):
            written += save_figure(partial(_fronts, entries, protocol), folder, f"fronts-{protocol}")
    page = blocks(entries, folder)
    for name, text in (
        ("scores.csv", tables.as_csv(entries)),
        ("report.md", markdown(page)),
        ("report.html", html(page, folder)),
    ):
        written.append(write_whole(folder / name, text))
    return written


def blocks(entries: Sequence[ScoredRun], folder: Path) -> list[Block]:
    """The page."""
    page: list[Block] = [Heading(f"Scores of {len(entries)} runs", 1), _what(entries)]
    for protocol in _protocols(entries):
        page += [Heading(f"Protocol {protocol}"), _how(entries, protocol)]
        said = reading(entries, protocol)
        if said:
            page += [Heading("What the numbers say", 3), Items(tuple(said))]
        if counted := tally(entries, protocol):
            page += [Text(_line(_TALLY)), counted]
        if (folder / "figures" / f"fronts-{protocol}.png").is_file():
            page.append(FigureFile(f"figures/fronts-{protocol}.png", _FRONTS))
        page += _tables(entries, protocol)
    page += [
        Heading("How to read this"),
        *(Text(_line(note)) for note in _NOTES),
        Text(f"Made with meancap {__version__}."),
    ]
    return page


def _tables(entries: Sequence[ScoredRun], protocol: str) -> list[Block]:
    have = tables.numbers_of(entries, protocol)
    page: list[Block] = []
    if beside := tables.beside_paper(entries, protocol):
        source = paper_source(tables.PAPER[protocol][0])
        page += [Heading("Beside the paper", 3), Text(source), beside]
    compared = [c for c in _COMPARED.get(protocol, ()) if c in have]
    if compared and any(e.name.method == "Fixed CFG" for e in entries):
        page += [
            Heading("At equal nominal scale", 3),
            Text(_line(_SCALE)),
            tables.equal_scale(entries, protocol, compared),
        ]
        aligned = tables.equal_alignment(entries, protocol, compared)
        if aligned is not None:
            page += [Heading("At equal alignment", 3), Text(_line(_ALIGNED)), aligned]
    page += [Heading("All numbers", 3), tables.results(entries, protocol)]
    return page


def _fronts(entries: Sequence[ScoredRun], protocol: str, folder: Path) -> Figure:
    return fronts(entries, protocol)


def _line(text: str) -> str:
    return " ".join(text.split())


def _with_alignment(entries: list[ScoredRun]) -> list[ScoredRun]:
    """Protocols without a number for alignment use the one of another protocol on the same images."""
    for e in entries:
        lender = next((s["alignment"] for s in e.scores.values() if "alignment" in s), None)
        if lender is not None:
            for scores in e.scores.values():
                scores.setdefault("alignment", lender)
    return entries


def _protocols(entries: Sequence[ScoredRun]) -> list[str]:
    names = {p for e in entries for p in e.scores}
    return [p for p in PROTOCOLS if p in names] + sorted(names - set(PROTOCOLS))


def _what(entries: Sequence[ScoredRun]) -> Text:
    counts = sorted({e.n for e in entries})
    paired = len({e.pairing for e in entries}) == 1
    noise = (
        "all of them from the same noise and conditions, image by image"
        if paired
        else "not all of them from the same noise: only runs that share it are compared image by image"
    )
    images = " or ".join(f"{n:,}" for n in counts)
    few = (
        f" **Fewer than {FEWEST} images show that everything works, not which rule is better**: their "
        "numbers stand without an interval and without a verdict. Make more, such as `--per-class 100`."
        if counts[0] < FEWEST
        else ""
    )
    return Text(f"{len(entries)} runs of {images} images each, {noise}.{few}")


def _how(entries: Sequence[ScoredRun], protocol: str) -> Text:
    texts = sorted({e.protocols[protocol] for e in entries if protocol in e.protocols})
    about = PROTOCOLS[protocol].about if protocol in PROTOCOLS else ""
    mixed = "" if len(texts) == 1 else " **These runs were scored in different ways and do not compare.**"
    lent = any("alignment" in e.scores.get(protocol, {}) for e in entries)
    lent = lent and not tables.measures(protocol, "alignment")
    lender = " Where alignment is spoken of, it is that of the protocol `fashion`." if lent else ""
    return Text(f"{about}. `{'`; `'.join(texts)}`.{mixed}{lender}")


_FRONTS = (
    "**Fronts.** One curve per rule from the unguided run outwards; points grow with λ; whiskers are 95 %."
)
_TALLY = """The same over all scales and evaluation counts: in how many comparisons the 95 % interval of the
difference to fixed CFG leaves zero out, and on which side."""
_SCALE = """Differences to fixed CFG at the same nominal scale, image by image, ± half of the 95 % interval;
strong where the rule is better and the interval leaves zero out. Arrows point to the better side: ↓ less,
↑ more. A cap does less than the scale it is told,
so this table
favours it: read it with the next one."""
_ALIGNED = """Differences to fixed CFG where the rule aligns as well as fixed CFG does at the scale named on
the left,
read off the rule's own sweep over scales by straight lines between neighbours."""
_NOTES = (
    """Intervals tell how a number would move with other seeds and the same model and reference. Those of
    recall
and coverage are on the safe side, up to 1.5 times too wide.""",
    """A Frechet distance depends on the number of images; compare only equal counts, and only within one
protocol.""",
    "One model and one seed of its training stand behind these numbers.",
)
