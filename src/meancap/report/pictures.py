"""All pictures of some matched runs, as files in one folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from ..files import writing
from ..runs.folder import Run
from .gallery import write_gallery
from .meter import mechanism, meters
from .sheets import class_panels, class_rows, need_matched, sheet
from .style import look


def draw_all(runs: Sequence[Run], out: Path, rows: int = 10, shown: int = 40) -> list[Path]:
    """sheet.png, gallery.html, and what else the runs have data for; returns what was written."""
    need_matched(runs)
    out.mkdir(parents=True, exist_ok=True)
    written = [write_gallery(runs, out / "gallery.html", shown)]
    with look():
        written.append(save_png(sheet(runs, range(min(rows, *map(len, runs)))), out / "sheet.png"))
        if runs[0].labels:
            most = min(8, min(map(runs[0].labels.count, set(runs[0].labels))))
            if class_rows(runs[0], most):
                written.append(save_png(class_panels(runs, most), out / "panels.png"))
        if all((run.folder / "diagnostics.npz").is_file() for run in runs):
            written.append(save_png(mechanism(runs), out / "mechanism.png"))
            written.append(save_png(meters(runs), out / "meter.png"))
    return written


def save_png(figure: Figure, path: Path, dots: int = 220) -> Path:
    """The figure as a PNG that appears whole or not at all, the same bytes for the same data."""
    with writing(path) as temporary:
        figure.savefig(temporary, dpi=dots, metadata={"Software": None})
    return path
