"""The folder of a run. Every file appears whole or not at all; rows are kept one by one, so a stopped run
goes on.

run.json       configuration, protocol, rules, seeds, versions, engine; `finished` is null until all is there
rows.jsonl     one line per measured row: repeat, setting, all metrics
table.csv      the paper's table, ours and the paper's and the z-scores;  spread.csv with two repeats or more
limits.csv     expectations of every metric with Euler steps and in continuous time
data/          what the figures are drawn from
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from io import BytesIO, StringIO
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ...files import remove_leftovers, write_whole
from ..folder import Ledger, write_npz
from .config import GMMConfig
from .measure import Values


class GMMFolder:
    """A folder that belongs to one configuration."""

    def __init__(self, path: str | Path, config: GMMConfig, made_with: Mapping[str, str]) -> None:
        self.path = Path(path)
        self.ledger = Ledger(self.path, "gmm")
        with self.ledger.opened():
            identity = {"config": asdict(config), "made_with": made_with}
            self.begun = self.ledger.begin(identity, finished=None)

    def finish(self, account: Mapping[str, Any], **counts: float) -> None:
        """Writes what the run was and that it is complete, and removes what killed processes left behind."""
        self.ledger.write({**self.begun, **account, "finished": counts})
        for place in (self.path, self.path / "data"):
            remove_leftovers(place)

    def rows(self) -> dict[tuple[int, str], Values]:
        """Every row measured so far, by repeat and setting; a line torn by a kill is dropped."""
        path, rows = self.path / "rows.jsonl", {}
        if path.is_file():
            for line in path.read_text(encoding="utf-8").splitlines():
                try:
                    row = json.loads(line)
                except ValueError:
                    break
                rows[row.pop("repeat"), row.pop("setting")] = row
        return rows

    def keep(self, rows: Mapping[tuple[int, str], Values]) -> None:
        """All rows so far; rewritten whole, which takes less time than making one row."""
        lines = (
            json.dumps({"repeat": repeat, "setting": name, **row}) for (repeat, name), row in rows.items()
        )
        self.write("rows.jsonl", "".join(f"{line}\n" for line in lines).encode())

    def table(self, name: str, rows: Iterable[Mapping[str, object]]) -> None:
        rows = list(rows)
        text = StringIO()
        writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        self.write(name, text.getvalue().encode())

    def arrays(self, name: str, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        buffer = BytesIO()
        write_npz(buffer, {}, {key: np.asarray(value) for key, value in arrays.items()})
        self.write(name, buffer.getvalue())

    def write(self, name: str, content: bytes) -> None:
        path = self.path / name
        path.parent.mkdir(exist_ok=True)
        write_whole(path, content)
