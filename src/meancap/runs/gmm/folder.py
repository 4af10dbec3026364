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
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from io import BytesIO, StringIO
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ...files import is_temporary, write_whole
from ..config import differences
from ..npz import write_npz
from ..store import FORMAT, RunRefused, read_run_json
from .config import Config
from .measure import Values

EXPERIMENT = "gmm"


class Folder:
    """A folder that belongs to one configuration."""

    def __init__(self, path: str | Path, config: Config, made_with: Mapping[str, str]) -> None:
        self.path = Path(path)
        self.begun: dict[str, Any] = {
            "format": FORMAT,
            "experiment": EXPERIMENT,
            "config": asdict(config),
            "made_with": dict(made_with),
            "finished": None,
        }
        if self.path.exists() and not self.path.is_dir():
            raise RunRefused(f"{self.path} is a file; a run needs a folder")
        self.path.mkdir(parents=True, exist_ok=True)
        if not os.access(self.path, os.W_OK | os.X_OK):
            raise RunRefused(f"{self.path} cannot be written to; give another folder")
        old = read_run_json(self.path)
        if old is None:
            if any(not is_temporary(p) for p in self.path.iterdir()):
                raise RunRefused(f"{self.path} holds files but no run.json; give an empty or a new folder")
            self.json("run.json", self.begun)
        else:
            self._need_same(old)

    def _need_same(self, old: Mapping[str, Any]) -> None:
        kind = differences({"experiment": old.get("experiment")}, {"experiment": EXPERIMENT})
        found = kind or differences(old["config"], self.begun["config"]) + differences(
            old["made_with"], self.begun["made_with"]
        )
        if found:
            raise RunRefused(f"{self.path} belongs to another run: {'; '.join(found)}; give another folder")

    def rows(self) -> dict[tuple[int, str], Values]:
        """Every row measured so far, by repeat and setting; a line torn by a kill is dropped."""
        path, found = self.path / "rows.jsonl", {}
        if path.is_file():
            for line in path.read_text(encoding="utf-8").splitlines():
                try:
                    row = json.loads(line)
                except ValueError:
                    break
                found[row.pop("repeat"), row.pop("setting")] = row
        return found

    def keep(self, rows: Mapping[tuple[int, str], Values]) -> None:
        """All rows so far; rewritten whole, which is short beside making one."""
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

    def json(self, name: str, value: Any) -> None:
        self.write(name, (json.dumps(value, indent=1, ensure_ascii=False) + "\n").encode())

    def write(self, name: str, content: bytes) -> None:
        path = self.path / name
        path.parent.mkdir(exist_ok=True)
        write_whole(path, content)
