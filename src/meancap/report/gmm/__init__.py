"""The report of a `reproduce gmm` folder: figures, report.md and report.html, from its files alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from matplotlib.figure import Figure

from ...files import write_whole
from .. import style
from ..document import html, markdown
from .curves import agreement, contraction, meter
from .fields import landscape, overview, trajectories
from .samples import endpoints, marginals
from .tables import scores
from .text import blocks

__all__ = ["FIGURES", "scores", "write_report"]

FIGURES: tuple[Callable[[Path], Figure], ...] = (
    landscape,
    endpoints,
    marginals,
    overview,
    meter,
    trajectories,
    contraction,
    agreement,
)


def write_report(folder: str | Path) -> Iterator[Path]:
    """Draws every figure and then writes both reports, yielding each file as it appears."""
    folder = Path(folder)
    for draw in FIGURES:
        yield from style.save_figure(draw, folder, draw.__name__)
    content = blocks(folder)
    for name, text in (("report.md", markdown(content)), ("report.html", html(content, folder))):
        yield write_whole(folder / name, text)
