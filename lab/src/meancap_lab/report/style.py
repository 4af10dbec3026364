"""One look for every figure: sizes of a two-column page, a palette that colour-blind readers can tell apart.

    COLUMN, PAGE   widths in inches of one column and of the whole page; fonts are set for these
    Okabe and Ito's colours: blue for the conditional field, vermilion for fixed CFG, green for the cap

A figure is a function of a folder. It is drawn on a canvas of its own, so nothing here touches matplotlib's
global state or opens a window, and the same folder gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from meancap.files import writing

COLUMN, PAGE = 3.4, 7.0
BLUE, VERMILION, GREEN, AMBER = "#0072B2", "#D55E00", "#009E73", "#E69F00"
SKY, PURPLE, YELLOW = "#56B4E9", "#CC79A7", "#F0E442"
INK, GREY, PALE = "#222222", "#73777F", "#D9DADD"
GUIDANCE = {"Conditional": BLUE, "Fixed CFG": VERMILION, "PMC-CFG": GREEN}
FIELD = "viridis"  # the same to every reader, and in print

_LOOK: dict[str, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 7.5,
    "axes.titlesize": 8,
    "axes.labelsize": 7.5,
    "xtick.labelsize": 6.5,
    "ytick.labelsize": 6.5,
    "legend.fontsize": 7,
    "axes.edgecolor": GREY,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "text.color": INK,
    "xtick.color": GREY,
    "ytick.color": GREY,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "axes.linewidth": 0.6,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "lines.linewidth": 1.2,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "figure.dpi": 100,
    "savefig.dpi": 220,
    "mathtext.fontset": "dejavusans",
    "svg.hashsalt": "meancap",
    "svg.fonttype": "path",  # looks the same without our fonts
}


@contextmanager
def look() -> Iterator[None]:
    """The settings of every figure, within this block only."""
    with rc_context(_LOOK):  # type: ignore[arg-type,unused-ignore]
        yield


def panels(rows: int, columns: int, width: float, height: float, **options: Any) -> tuple[Figure, Any]:
    """A figure and its axes, always as a (rows, columns) array."""
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False, **options)


def square(axes: Axes, low: float, high: float) -> None:
    """Equal scales on both axes over [low, high], and few ticks."""
    axes.set_aspect("equal")
    axes.set_xlim(low, high)
    axes.set_ylim(low, high)
    axes.locator_params(nbins=4)


def save_figure(draw: Callable[[Path], Figure], folder: Path, name: str) -> list[Path]:
    """`draw(folder)` as figures/NAME.png and .svg; a file appears whole or not at all."""
    target = folder / "figures"
    target.mkdir(exist_ok=True)
    written = []
    with look():
        figure = draw(folder)
        for kind, metadata in (("png", {"Software": None}), ("svg", {"Date": None, "Creator": None})):
            path = target / f"{name}.{kind}"
            with writing(path) as temporary:
                figure.savefig(temporary, metadata=metadata)
            written.append(path)
    return written


def save_png(figure: Figure, path: Path, dots: int = 220, transparent: bool = False) -> Path:
    """The figure as a PNG that appears whole or not at all, the same bytes for the same data."""
    with writing(path) as temporary:
        figure.savefig(temporary, dpi=dots, transparent=transparent, metadata={"Software": None})
    return path
