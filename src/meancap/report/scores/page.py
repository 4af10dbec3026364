"""One page about all scored runs of a folder: `report.html`, `report.md`, `scores.csv` and the figures."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from matplotlib.figure import Figure

from ... import __version__
from ...files import write_whole
from ...metrics.protocols import PROTOCOLS
from ...runs.protocols import paper_source
from ..document import Block, FigureFile, Heading, Items, Text, html, markdown
from ..style import save_figure
from . import tables
from .collect import ScoredRun, collect
from .compare import FEWEST
from .fronts import fronts, shown
from .reading import reading, tally

PAPER_COLUMNS = {
    "fashion": ("FD-fashion", "sFD-fashion", "IS", "precision", "recall"),
    "efficientnet-lite0": ("FD-EffLite0", "KD-EffLite0", "precision", "recall"),
    "adm-imagenet256": ("FID", "sFID", "IS", "precision", "recall"),
}
COMPARED = {
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
    columns = [c for c in PAPER_COLUMNS.get(protocol, ()) if c in have]
    if columns:
        page += [
            Heading("In the layout of the paper's table", 3),
            tables.paper_layout(entries, protocol, columns),
        ]
    compared = [c for c in COMPARED.get(protocol, ()) if c in have]
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
