"""The tables of a benchmark as files: CSV for people, Parquet for data frames."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

from ...files import write_whole
from .cells import read_cells
from .tables import Table, all_tables, columns


def write_tables(folder: str | Path) -> dict[str, Table]:
    """NAME.csv and NAME.parquet in the folder for every table; returns them."""
    root = Path(folder)
    tables = all_tables(read_cells(root))
    for name, table in tables.items():
        write_whole(root / f"{name}.csv", csv_text(table).encode())
        if table:
            write_whole(root / f"{name}.parquet", _parquet(table))
    return tables


def csv_text(table: Table) -> str:
    """Comma-separated, one header line; what is missing is empty."""
    file = io.StringIO()
    writer = csv.DictWriter(file, columns(table), lineterminator="\n")
    writer.writeheader()
    writer.writerows(table)
    return file.getvalue()


def read_csv(path: Path) -> Table:
    """A table back from its CSV: numbers, True and False as such, None for what is empty."""
    with path.open(encoding="utf-8", newline="") as file:
        return [{key: _value(text) for key, text in row.items()} for row in csv.DictReader(file)]


def _value(text: str) -> Any:
    if text in ("True", "False", ""):
        return {"True": True, "False": False, "": None}[text]
    try:
        return float(text)
    except ValueError:
        return text


def _parquet(table: Table) -> bytes:
    try:
        import pyarrow as pa  # type: ignore[import-untyped]
        import pyarrow.parquet as pq  # type: ignore[import-untyped]
    except ImportError:
        raise ImportError('Parquet files need pyarrow: pip install "meancap[report]"') from None
    names = columns(table)
    buffer = io.BytesIO()
    pq.write_table(pa.table({name: [row.get(name) for row in table] for name in names}), buffer)
    return buffer.getvalue()
