"""The marked parts of docs/fashion.md, from a folder of `meancap reproduce fashion`.

    python tools/fashion_page.py FOLDER docs      from a study
    python tools/fashion_page.py docs             again, from what the documents keep

keeps readings.csv in docs/fashion/ and draws docs/figures/fashion-seeds.png.
"""

from __future__ import annotations

import sys
from pathlib import Path

from meancap.files import write_whole
from meancap.report import score_tables as tables
from meancap.report.document import Table, markdown, with_parts
from meancap.report.score_page import fronts
from meancap.report.scores.seeds import PROTOCOL, all_numbers, at_use, real_values, runs_of
from meancap.report.style import look, save_png
from meancap.runs.pooled import Pooled, read_pooled

COLUMNS = ("FD-fashion", "recall", "precision", "alignment", "diversity", "brightness")
COMPARED = ("FD-fashion", "recall", "diversity")


def publish(folder: Path, docs: Path) -> None:
    """The page and what it is made from, into a folder of documents."""
    kept = docs / "fashion" / "readings.csv"
    if folder != docs:
        write_whole(kept, (folder / "readings.csv").read_bytes())
    settings = read_pooled(kept)
    with look():
        save_png(
            fronts(runs_of(settings), PROTOCOL, real_values(settings)), docs / "figures" / "fashion-seeds.png"
        )
    write_whole(docs / "fashion.md", page(docs).encode())


def page(docs: Path) -> str:
    """The text of docs/fashion.md, its marked parts worked out again."""
    text = (docs / "fashion.md").read_text(encoding="utf-8")
    return with_parts(text, parts(read_pooled(docs / "fashion" / "readings.csv")))


def parts(settings: list[Pooled]) -> dict[str, str]:
    """The content of every marked part."""
    runs = runs_of(settings)
    found: dict[str, Table | None] = {
        "numbers": all_numbers(settings, COLUMNS),
        "equal scale": tables.equal_scale(runs, PROTOCOL, COMPARED),
        "equal alignment": tables.equal_alignment(runs, PROTOCOL, COMPARED),
        "equal use": at_use(settings, COMPARED),
    }
    return {name: markdown([table]) for name, table in found.items() if table is not None}


if __name__ == "__main__":
    *folder, target = map(Path, sys.argv[1:])
    publish(folder[0] if folder else target, target)
