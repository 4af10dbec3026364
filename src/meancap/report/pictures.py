"""All pictures of some matched runs, as files in one folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from ..files import whole
from ..runs.folder import Run
from .gallery import write_gallery
from .meter import mechanism, meters
from .sheets import class_rows, need_matched, panels, sheet
from .style import look


def draw_all(runs: Sequence[Run], out: Path, rows: int = 10, shown: int = 40) -> list[Path]:
    """sheet.png, gallery.html, and what else the runs have data for; returns what was written."""
    need_matched(runs)
    out.mkdir(parents=True, exist_ok=True)
    written = [write_gallery(runs, out / "gallery.html", shown)]
    with look():
        written.append(save(sheet(runs, range(min(rows, *map(len, runs)))), out / "sheet.png"))
        if runs[0].labels:
            most = min(8, min(map(runs[0].labels.count, set(runs[0].labels))))
            if class_rows(runs[0], most):
                written.append(save(panels(runs, most), out / "panels.png"))
        if all((run.folder / "diagnostics.npz").is_file() for run in runs):
            written.append(save(mechanism(runs), out / "mechanism.png"))
            written.append(save(meters(runs), out / "meter.png"))
    return written


def save(figure: Figure, path: Path, dots: int = 220) -> Path:
    """The figure as a PNG that appears whole or not at all, the same bytes for the same data."""
    with whole(path) as part:
        figure.savefig(part, dpi=dots, metadata={"Software": None})
    return path
