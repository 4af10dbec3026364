"""All readings of a benchmark in one table, readings.csv: what every number on a page is worked out from.

One row is one setting of a rule on one problem; sw2 and alignment hold one number for each block of noise.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...files import write_whole
from ..folder import Ledger
from .config import BenchConfig
from .families import Family
from .measure import Reading
from .run import collected

Table = list[dict[str, Any]]
_COLUMNS = ("problem", "family", "what", "solver", "setting", "sw2", "alignment", "lost")


@dataclass(frozen=True, eq=False)
class Readings:
    """A finished benchmark: its configuration, families and readings."""

    config: BenchConfig
    problems: tuple[str, ...]
    families: tuple[Family, ...]
    rows: dict[tuple[str, str], list[Reading]] = field(repr=False)

    def of(self, problem: str, family: str, what: str, solver: str = "euler") -> list[Reading]:
        """The readings of one kind; none where a cell is not finished."""
        return [r for r in self.rows.get((problem, family), ()) if r.what == what and r.solver == solver]


def write_readings(folder: str | Path) -> Path:
    """readings.csv of a folder of cells; it appears whole or not at all."""
    root = Path(folder)
    return write_whole(root / "readings.csv", csv_text(map(_row, collected(root)), _COLUMNS).encode())


def read_readings(folder: str | Path) -> Readings:
    """The readings of a folder that holds run.json and readings.csv."""
    root = Path(folder)
    run, path = Ledger(root, "bench").read(), root / "readings.csv"
    if run is None or not path.is_file():
        raise ValueError(f"{root} holds no readings; run `meancap bench lab --out {root}` first")
    rows: dict[tuple[str, str], list[Reading]] = {}
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            rows.setdefault((row["problem"], row["family"]), []).append(_reading(row))
    families = tuple(Family.from_json(one) for one in run["families"])
    return Readings(BenchConfig.from_json(run["config"]), tuple(run["problems"]), families, rows)


def _row(cell: tuple[str, str, Reading]) -> dict[str, Any]:
    problem, family, one = cell
    setting = json.dumps(one.setting, ensure_ascii=False) if one.setting else ""
    sw2, alignment = (" ".join(f"{v:.4g}" for v in values) for values in (one.sw2, one.alignment))
    row = (problem, family, one.what, one.solver, setting, sw2, alignment, one.lost or "")
    return dict(zip(_COLUMNS, row, strict=True))


def _reading(row: dict[str, str]) -> Reading:
    sw2, alignment = (tuple(float(v) for v in row[name].split()) for name in ("sw2", "alignment"))
    setting = json.loads(row["setting"]) if row["setting"] else {}
    return Reading(row["what"], row["solver"], setting, sw2, alignment, float(row["lost"] or 0))


def csv_text(table: Iterable[dict[str, Any]], columns: Iterable[str]) -> str:
    """Comma-separated, one header line; what is missing is empty."""
    file = io.StringIO()
    writer = csv.DictWriter(file, list(columns), lineterminator="\n")
    writer.writeheader()
    writer.writerows(table)
    return file.getvalue()
