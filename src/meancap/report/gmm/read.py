"""The folder of a `reproduce gmm` run, read back: plain rows and arrays."""

from __future__ import annotations

import csv
import json
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Row = dict[str, str]
Array = npt.NDArray[Any]

METRICS = ("occupancy_percent", "variance_ratio", "tv", "mean_error")
GUIDANCE = ("Conditional", "Fixed CFG", "PMC-CFG")
SCENES = ("{0}", "{0,1}", "{0,1,2}")


def rows(folder: Path, name: str) -> list[Row]:
    """A CSV file of the folder."""
    path = folder / name
    if not path.is_file():
        raise FileNotFoundError(f"{folder} holds no {name}; run `meancap reproduce gmm --out {folder}` first")
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def arrays(folder: Path, name: str) -> dict[str, Array]:
    """A file of arrays in data/."""
    return _arrays(folder / "data" / f"{name}.npz")


@lru_cache(maxsize=4)
def _arrays(path: Path) -> dict[str, Array]:
    with np.load(path, allow_pickle=False) as archive:
        return dict(archive)


def table(folder: Path) -> dict[tuple[str, str], Row]:
    """table.csv by members and guidance."""
    return {(row["members"], row["guidance"]): row for row in rows(folder, "table.csv")}


def numbers(cell: str) -> list[float]:
    """The values of one cell."""
    return [float(value) for value in cell.split("/")]


def run(folder: Path) -> dict[str, Any]:
    """run.json of a finished run."""
    path = folder / "run.json"
    if not path.is_file():
        raise FileNotFoundError(f"{folder} is no run folder: it has no run.json")
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    if content.get("experiment") != "gmm" or content.get("finished") is None:
        raise ValueError(f"{folder} holds no finished `reproduce gmm` run; give its command again to go on")
    return content


def limits(folder: Path) -> dict[tuple[str, str, str], list[Row]]:
    """limits.csv by members, guidance and metric; one entry per position."""
    by_row: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows(folder, "limits.csv"):
        by_row.setdefault((row["members"], row["guidance"], row["metric"]), []).append(row)
    return by_row
