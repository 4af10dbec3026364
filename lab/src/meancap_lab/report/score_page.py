"""One page about all scored runs of a folder: `report.html`, `report.md`, `scores.csv` and the figures.

A front shows what a rule gives up in one number to win in another, as its scale grows: one curve per rule,
one point per scale (the size of the point grows with it), whiskers of 95 % if there are enough images. An
unguided run is the blue diamond where all curves begin. No table claims more than an interval supports.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from meancap import __version__
from meancap.files import csv_text, write_whole

from ..metrics.protocols import PROTOCOLS, direction
from ..metrics.score import Estimate
from ..runs.paper_protocols import paper_source, paper_table
from . import style
from .document import Block, FigureFile, Heading, Table, Text, html, markdown
from .scored_runs import (
    DISTANCES,
    FEWEST,
    ScoredRun,
    alignment_of,
    at_alignment,
    clear,
    collect,
    companions,
    contrast,
    interval_of,
    sweeps,
)

_ARROWS = {-1: "↓", 0: "", 1: "↑"}
# Which table of the paper a protocol belongs to, and what its columns are called there.
_PAPER = {
    "adm-imagenet256": (
        "imagenet",
        {"FID": "fid", "sFID": "sfid", "IS": "is", "precision": "precision", "recall": "recall"},
    ),
    "coco-torchmetrics": ("sd35", {"FID": "fid"}),
    "coco-cleanfid-recall": ("sd35", {"Recall@3": "recall_at_3"}),
    "clip-b32": ("sd35", {"CLIP": "clip"}),
    "imagereward-1.0": ("sd35", {"ImageReward": "image_reward"}),
    "hsv": ("sd35", {"saturation": "saturation"}),
}  # fmt: skip

# Which of our caps the paper's PMC-CFG is in each table; an anchored or a calibrated one is another method.
_CAPS = {"imagenet": "PMC-CFG", "sd35": "PMC-CFG, displacement"}
_PAPER_MODELS = {"imagenet": "sit:", "sd35": "diffusers:"}


def _numbers_of(entries: Sequence[ScoredRun], protocol: str) -> list[str]:
    """The numbers of a protocol, in its own order."""
    names = dict.fromkeys(name for e in entries for name in e.scores.get(protocol, {}))
    return [name for name in names if _measures(protocol, name)]


def _measures(protocol: str, number: str) -> bool:
    """Whether a number is the protocol's own, and not lent by another one for comparisons."""
    return protocol not in PROTOCOLS or number in PROTOCOLS[protocol].numbers


def _with_arrow(number: str) -> str:
    """A score with an arrow towards what is better."""
    return f"{number}{_ARROWS[direction(number)]}"


def cell(e: Estimate | None, *, sign: bool = False) -> str:
    """A value with half of its 95 % interval, to the digits that it leaves; few images have none."""
    if e is None:
        return "—"
    interval = interval_of(e)
    plus = "+" if sign else ""
    if interval is None:
        return f"{e.value:{plus}.4g}"
    half = (interval[1] - interval[0]) / 2
    places = 0 if half >= 10 else 1 if half >= 1 else 2 if half >= 0.1 else 3 if half >= 0.01 else 4
    return f"{e.value:{plus}.{places}f} ± {half:.{places}f}"


def results(entries: Sequence[ScoredRun], protocol: str) -> Table:
    """Every run with every number, by scale; the best of each column and evaluation count is strong."""
    columns = _numbers_of(entries, protocol)
    chosen = [e for e in entries if protocol in e.scores]
    best = {(n, c): _best(chosen, protocol, c, n) for n in {e.evaluations for e in chosen} for c in columns}
    groups: dict[tuple[int, float], list[tuple[str, ...]]] = {}
    for e in chosen:
        cells = []
        for c in columns:
            text = cell(e.scores[protocol].get(c))
            cells.append(f"**{text}**" if best[e.evaluations, c] is e else text)
        kept = "—" if e.kept is None else f"{e.kept:.2f}"
        line = (e.name.method, _number(e.name.scale), _gamma(e), str(e.evaluations), kept, *cells)
        groups.setdefault((e.evaluations, e.name.scale or 0.0), []).append(line)
    head = ("method", "λ", "Γ", "evaluations", "mean λ in effect")
    return Table((*head, *map(_with_arrow, columns)), tuple(tuple(g) for g in groups.values()), names=4)


def beside_paper(entries: Sequence[ScoredRun], protocol: str) -> Table | None:
    """Ours beside the paper's values, row by row; None if the paper has no row that one of our runs has."""
    if protocol not in _PAPER:
        return None
    table, columns = _PAPER[protocol]
    rows, found = [], False
    for row in paper_table(table):
        gamma, scale = row["gamma"], float(row["scale"])
        match = [
            e
            for e in entries
            if protocol in e.scores
            and e.model.startswith(_PAPER_MODELS[table])
            and e.name.method == (_CAPS[table] if row["method"] == "PMC-CFG" else row["method"])
            and e.name.scale == scale
            and (not gamma or e.name.gamma == float(gamma))
            and e.evaluations == int(row.get("evaluations") or 10)
        ]
        ours, found = match[0].scores[protocol] if match else {}, found or bool(match)
        cells = [text for name, key in columns.items() for text in (row[key], cell(ours.get(name)))]
        count = row.get("evaluations") or "10"
        rows.append((row["method"], _number(scale), gamma or "—", count, *cells))
    head = [text for name in columns for text in (f"{_with_arrow(name)} paper", "ours")]
    if not found:
        return None
    return Table(("method", "λ", "Γ", "evaluations", *head), (tuple(rows),), names=4)


def equal_scale(entries: Sequence[ScoredRun], protocol: str, columns: Sequence[str]) -> Table:
    """Each rule minus fixed CFG at the same nominal scale and evaluations, image by image."""
    chosen = [e for e in entries if protocol in e.scores]
    groups: dict[tuple[int, float], list[tuple[str, ...]]] = {}
    for e in (e for e in chosen if e.name.method != _BASE):
        at = [b for b in chosen if b.evaluations == e.evaluations and b.name.scale == e.name.scale]
        for b in companions([b for b in at if b.name.method == _BASE], e)[:1]:
            # A run without labels, or with one image per class, has fewer numbers than others.
            shared = e.scores[protocol].keys() & b.scores[protocol].keys()
            cells = [marked(contrast(e, b, protocol, c), c) if c in shared else "—" for c in columns]
            line = (e.name.method, _number(e.name.scale), _gamma(e), str(e.evaluations), *cells)
            groups.setdefault((b.evaluations, b.name.scale or 0.0), []).append(line)
    head = ("method − fixed CFG", "λ", "Γ", "evaluations")
    return Table((*head, *map(_with_arrow, columns)), tuple(tuple(g) for g in groups.values()), names=4)


def equal_alignment(entries: Sequence[ScoredRun], protocol: str, columns: Sequence[str]) -> Table | None:
    """Each rule where it aligns as well as fixed CFG at some scale, minus fixed CFG there."""
    curves = sweeps(entries, protocol)
    groups = []
    for (evaluations, label), runs in curves.items():
        if label != _BASE:
            continue
        for b in (e for e in runs if e.name.method == _BASE):
            alignment = alignment_of(b.scores[protocol])
            if alignment is None:
                return None
            level = b.scores[protocol][alignment]
            own = f"at fixed CFG's λ = {_number(b.name.scale)}: {level.value:.3f}"
            lines = []
            for (n, name), sweep in curves.items():
                if n == evaluations and name != _BASE:
                    found = {c: at_alignment(sweep, b, protocol, c) for c in columns}
                    cells = ("not reached" if d is None else marked(d, c) for c, d in found.items())
                    lines.append((own, name, str(evaluations), *cells))
            groups.append(tuple(lines))
    head = ("alignment", "method − fixed CFG", "evaluations")
    return Table((*head, *map(_with_arrow, columns)), tuple(groups), names=3) if groups else None


def _as_csv(entries: Sequence[ScoredRun]) -> str:
    """Everything as one plain table: a line per run and number."""
    columns = ("run", "rule", "method", "scale", "gamma", "evaluations", "n", "mean_effective_scale",
               "number", "value", "low", "high", "protocol")  # fmt: skip
    rows = [
        (e.folder.name, e.rule, e.name.method, e.name.scale, e.name.gamma, e.evaluations, s.n, e.kept,
         number, s.value, *(interval_of(s) or ("", "")), e.protocols[protocol])
        for e in entries
        for protocol, scores in e.scores.items()
        for number, s in scores.items()
        if _measures(protocol, number)
    ]  # fmt: skip
    return csv_text([dict(zip(columns, row, strict=True)) for row in rows])


def marked(e: Estimate, number: str) -> str:
    """A difference; strong where its interval leaves zero out and it is for the better."""
    text = cell(e, sign=True)
    return f"**{text}**" if clear(e) and clear(e) == direction(number) else text


def _best(entries: Sequence[ScoredRun], protocol: str, number: str, evaluations: int) -> ScoredRun | None:
    if not direction(number):
        return None
    having = [e for e in entries if e.evaluations == evaluations and number in e.scores[protocol]]
    return max(having, key=lambda e: direction(number) * e.scores[protocol][number].value, default=None)


def _gamma(e: ScoredRun) -> str:
    return "—" if e.name.gamma is None else f"{e.name.gamma:.2f}"


def _number(value: float | None) -> str:
    return "—" if value is None else f"{value:g}"


_BASE = "Fixed CFG"


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


def _shown(entries: Sequence[ScoredRun], protocol: str) -> list[tuple[str, str]]:
    """The pairs of numbers that these runs have fronts of; none without a sweep over scales."""
    have = {name for e in entries for name in e.scores.get(protocol, {})}
    pairs = [(x, y) for x, y in _panels(have) if x in have | {"scale"} and y in have]
    return pairs if sweeps(entries, protocol) else []


def fronts(entries: Sequence[ScoredRun], protocol: str) -> Figure:
    """One row per evaluation count: distance and recall, alignment and diversity, colour and scale."""
    curves, pairs = sweeps(entries, protocol), _shown(entries, protocol)
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
        row[0].set_title(f"{n} evaluations", loc="left")
    handles = [Line2D([], [], color=style.BLUE, marker="D", linestyle="", markersize=5, label="Conditional")]
    if not any(e.name.method == "Conditional" for sweep in curves.values() for e in sweep):
        handles.clear()
    handles += [
        Line2D([], [], **_look(label, k), markersize=4, label=label) for k, label in enumerate(labels)
    ]
    figure.legend(handles=handles, loc="outside upper center", ncols=4)
    return figure


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
    interval = interval_of(e)
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

    def draw(_: Path) -> Figure:
        return fronts(entries, protocol)

    for protocol in _protocols(entries):
        if _shown(entries, protocol):
            written += style.save_figure(draw, folder, f"fronts-{protocol}")
    page = blocks(entries, folder)
    for name, text in (
        ("scores.csv", _as_csv(entries)),
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
        if (folder / "figures" / f"fronts-{protocol}.png").is_file():
            few = all(e.n < FEWEST for e in entries if protocol in e.scores)
            caption = _FRONTS if few else f"{_FRONTS} Whiskers are 95 %."
            page.append(FigureFile(f"figures/fronts-{protocol}.png", caption))
        page += _tables(entries, protocol)
    page += [
        Heading("How to read this"),
        *map(Text, _NOTES),
        Text(f"Made with meancap {__version__}."),
    ]
    return page


def _tables(entries: Sequence[ScoredRun], protocol: str) -> list[Block]:
    have = _numbers_of(entries, protocol)
    page: list[Block] = []
    if beside := beside_paper(entries, protocol):
        source = paper_source(_PAPER[protocol][0])
        page += [Heading("Beside the paper", 3), Text(source), beside]
    compared = [c for c in _COMPARED.get(protocol, ()) if c in have]
    if compared and any(e.name.method == "Fixed CFG" for e in entries):
        page += [
            Heading("At equal nominal scale", 3),
            Text(_SCALE),
            equal_scale(entries, protocol, compared),
        ]
        aligned = equal_alignment(entries, protocol, compared)
        if aligned is not None:
            page += [Heading("At equal alignment", 3), Text(_ALIGNED), aligned]
    page += [Heading("All numbers", 3), results(entries, protocol)]
    return page


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
    lent = lent and not _measures(protocol, "alignment")
    lender = " Where alignment is spoken of, it is that of the protocol `fashion`." if lent else ""
    return Text(f"{about}. `{'`; `'.join(texts)}`.{mixed}{lender}")


_FRONTS = "**Fronts.** One curve per rule, from its weakest guidance outwards; points grow with λ."
_SCALE = """Differences to fixed CFG at the same nominal scale, image by image, ± half of the 95 % interval;
strong where the rule is better and the interval leaves zero out. Arrows point to the better side: ↓ less,
↑ more. A cap does less than the scale it is told, so this table favours it: read it with the next one."""
_ALIGNED = """Differences to fixed CFG where the rule aligns as well as fixed CFG does at the scale named on
the left, read off the rule's own sweep over scales by straight lines between neighbours."""
_NOTES = (
    """Intervals tell how a number would move with other seeds and the same model and reference. Those of
    recall and coverage are on the safe side, up to 1.5 times too wide.""",
    """A Frechet distance depends on the number of images; compare only equal counts, and only within one
    protocol.""",
    "One model and one seed of its training stand behind these numbers.",
)
