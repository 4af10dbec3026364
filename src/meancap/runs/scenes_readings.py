"""What was seen on every picture of the scenes study, small enough to ship: one line for each cell.

    right ..., drawn, violated   a 0 or 1 for each picture, in the order of the prompts
    saturation, clipped          a number for each picture, in thousandths

All shares, their intervals and every paired comparison are worked out from these lines. Rules share prompts
and noise, so that picture i of a seed is the same picture under each of them.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..scenes import Measured, violated
from .scenes_study import Cell

CLAUSES = ("shape 1", "colour 1", "shape 2", "colour 2", "place", "background")
NUMBERS = ("saturation", "clipped")


@dataclass(frozen=True, eq=False)
class SceneReading:
    """A rule at a scale, over all seeds."""

    part: str
    method: str
    gamma: str
    scale: float
    used: float  # the effective scale, mean over steps and pictures
    seeds: int
    right: dict[str, Tensor]  # (n,) bool, by clause, and "all"
    drawn: Tensor
    violated: Tensor | None
    numbers: dict[str, Tensor]

    @property
    def label(self) -> str:
        """The method with its gamma."""
        return f"{self.method} {self.gamma}".strip()


def reading_line(cell: Cell, made: Measured, used: float, negatives: Tensor | None) -> dict[str, Any]:
    """A cell as a line of readings.csv."""
    s = cell.setting
    line: dict[str, Any] = {"part": cell.part, "method": s.method, "gamma": s.gamma or "", "scale": s.scale}
    line |= {"seed": cell.seed, "rule": str(s.rule), "scale used": round(used, 4)}
    line |= {f"right {name}": _bits(made.right[name]) for name in ("all", *CLAUSES)}
    line["drawn"] = _bits(made.drawn)
    line["violated"] = "" if negatives is None else _bits(violated(made, negatives))
    for name in NUMBERS:
        line[name] = " ".join(str(round(v * 1000)) for v in getattr(made, name).tolist())
    return line


def read_readings(path: Path) -> list[SceneReading]:
    """Every rule and scale of readings.csv, its seeds joined."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    groups: dict[tuple[str, ...], list[dict[str, str]]] = {}
    for row in rows:
        groups.setdefault((row["part"], row["method"], row["gamma"], row["scale"]), []).append(row)
    return [_joined(lines) for lines in groups.values()]


def chosen(
    readings: Iterable[SceneReading], part: str, method: str, scale: float, gamma: str = ""
) -> SceneReading:
    """The one reading of a rule at a scale."""
    for r in readings:
        if (r.part, r.method, r.scale, r.gamma) == (part, method, scale, gamma):
            return r
    raise ValueError(f"there is no {method} {gamma} at scale {scale:g} in the part {part!r}")


def _joined(lines: Sequence[dict[str, str]]) -> SceneReading:
    first = lines[0]

    def bits(name: str) -> Tensor:
        return torch.tensor([c == "1" for line in lines for c in line[name]])

    return SceneReading(
        part=first["part"],
        method=first["method"],
        gamma=first["gamma"],
        scale=float(first["scale"]),
        used=sum(float(line["scale used"]) for line in lines) / len(lines),
        seeds=len(lines),
        right={name: bits(f"right {name}") for name in ("all", *CLAUSES)},
        drawn=bits("drawn"),
        violated=bits("violated") if first["violated"] else None,
        numbers={
            name: torch.tensor([int(v) / 1000 for line in lines for v in line[name].split()])
            for name in NUMBERS
        },
    )


def _bits(values: Tensor) -> str:
    return "".join("1" if v else "0" for v in values.tolist())
