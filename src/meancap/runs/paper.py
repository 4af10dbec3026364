"""The paper's tables, and the spreads measured for them, as data that comes with the package.

Lines that begin with # say where a table comes from; the first other line names its columns.
"""

from __future__ import annotations

import csv
import json
from importlib.resources import files
from typing import Any


def paper_table(name: str) -> list[dict[str, str]]:
    """The rows of `paper_tables/NAME.csv`, as text."""
    lines = _text(f"{name}.csv").splitlines()
    return list(csv.DictReader(line for line in lines if not line.startswith("#")))


def paper_source(name: str) -> str:
    """Where the table comes from, as one line."""
    lines = _text(f"{name}.csv").splitlines()
    return " ".join(line.lstrip("# ") for line in lines if line.startswith("#"))


def paper_run(name: str) -> dict[str, Any]:
    """The run.json of a table that one of our own commands made."""
    content: dict[str, Any] = json.loads(_text(f"{name}.json"))
    return content


def _text(name: str) -> str:
    return (files("meancap") / "paper_tables" / name).read_text(encoding="utf-8")
