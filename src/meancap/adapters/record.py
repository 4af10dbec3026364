"""The record of a host's run: the guidance meter, what run it belongs to, its plot and its file."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..files import write_whole, writing
from ..record import Record

if TYPE_CHECKING:
    from matplotlib.figure import Figure


_NO_STEP = "no step was made yet"


class RunRecord(Record):
    """What guidance did in the latest call of a pipeline: per sample and evaluation, and in one line."""

    def __init__(self) -> None:
        super().__init__()
        self.about: dict[str, Any] = {}  # pipeline, rule, scheduler, grid: what the numbers belong to
        self.idle = _NO_STEP  # why the record is empty, where it is
        self.beside: list[RunRecord] = []  # of the other states of the run, where it has any: its audio

    def restart(self) -> None:
        """Clears the previous run; every call of a pipeline is a separate run."""
        self._seen.clear()
        self.about = {}
        self.idle = _NO_STEP

    def summary(self) -> str:
        """One line: what was asked for and what was granted, or why nothing was guided."""
        return super().summary() if len(self) else f"nothing was guided: {self.idle}"

    def rows(self) -> list[dict[str, float | int | bool]]:
        """One flat row per evaluation and sample; none where nothing was guided."""
        return super().rows() if len(self) else []

    def save(self, path: str | Path) -> Path:
        """Writes rows, summary and `about`, as JSON or as Parquet by the suffix; whole or not at all."""
        path = Path(path)
        if path.suffix not in (".json", ".parquet", ""):
            raise ValueError(f"a record is saved as .json or .parquet; got {path.name!r}")
        if path.suffix != ".parquet":
            return write_whole(path, json.dumps(self.contents(), indent=1))
        with writing(path) as temporary:
            self._write_parquet(temporary)
        return path

    def contents(self) -> dict[str, Any]:
        """What a JSON file of the record holds."""
        beside = {"beside": [one.contents() for one in self.beside]} if self.beside else {}
        return {"about": self.about, **super().contents(), **beside}

    def _write_parquet(self, path: Path) -> None:
        try:
            arrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
        except ImportError:
            raise ImportError("a Parquet file needs `pip install pyarrow`; .json needs nothing") from None
        about = {"summary": self.summary(), "about": json.dumps(self.about)}
        table = arrow.Table.from_pylist(self.rows()).replace_schema_metadata(about)
        parquet.write_table(table, path)

    def plot(self) -> Figure:
        """Effective scale, cap ratio, gap and cosine against time, a line per sample: a matplotlib figure."""
        try:
            from matplotlib.figure import Figure
        except ImportError:
            raise ImportError('record.plot() needs `pip install "meancap[report]"`') from None
        figure = Figure(figsize=(8.0, 5.0), layout="constrained" if len(self) else None)
        figure.suptitle(str(self.about.get("rule", "")) + "\n" + self.summary(), fontsize=9)
        if len(self):
            self._draw(figure)
        return figure

    def _draw(self, figure: Figure) -> None:
        s = self.stacked()
        panels = (
            ("scale", "effective scale"),
            ("ratio", "ratio |m| / |m_c|"),
            ("gap", "gap |m_c − m_u|"),
            ("cosine", "cosine of m_c and the gap"),
        )
        for axes, (name, label) in zip(figure.subplots(2, 2, sharex=True).flat, panels, strict=True):
            for j in range(s["t"].shape[1]):
                axes.plot(s["t"][:, j], s[name][:, j], color=f"C{j % 10}", linewidth=1.2)
                acted = s["active"][:, j]
                axes.plot(s["t"][acted, j], s[name][acted, j], "o", color=f"C{j % 10}", markersize=4)
            if name == "scale":
                axes.plot(
                    s["t"].mean(1), s["asked"].mean(1), "--", color="0.6", linewidth=1, label="asked for"
                )
                axes.plot([], [], "o", color="0.6", markersize=4, label="capped")
                axes.legend(frameon=False, fontsize=8)
            axes.set_ylabel(label)
            axes.spines[["top", "right"]].set_visible(False)
        for axes in figure.axes[2:]:
            axes.set_xlabel("t (noise at 0, data at 1)")
