"""Rules of the scenes study against fixed guidance where the two do equally much.

    equal scale        fixed guidance at the same λ
    equal use          fixed guidance at the rule's effective scale (mean over steps and pictures)
    equal adherence    fixed guidance at the smallest scale that has as many prompts wholly right

Fixed guidance between its scales is taken on a straight line over log λ; where it never gets that far, the
cell says "not reached".
"""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from io import StringIO
from itertools import pairwise
from pathlib import Path

from ..files import write_whole
from .sweep import read_table

COLUMNS = ("right all", "drawn", "saturation", "clipped", "tv", "FD", "recall")
Point = tuple[float, dict[str, float]]


def compared(out: str | Path, part: str = "scenes") -> list[dict[str, str]]:
    """One line for each rule, scale and kind of comparison: its value, and fixed guidance's in brackets."""
    rows = [r for r in read_table(out) if r["part"] == part and r["method"] != "Truth"]
    fixed = fixed_curve(rows)
    lines = []
    for r in rows:
        if r["method"] in ("CFG", "Conditional"):
            continue
        own = _values(r)
        places = {
            "equal scale": float(r["scale"]),
            "equal use": float(r["scale used"]),
            "equal adherence": scale_reaching(fixed, "right all", own["right all"]),
        }
        for kind, scale in places.items():
            lines.append(_line(r, kind, own, scale, interpolated(fixed, scale)))
    return lines


def fixed_curve(rows: Sequence[dict[str, str]]) -> list[Point]:
    """Fixed guidance by rising scale, the unguided run at 1."""
    points = [(float(r["scale"]), _values(r)) for r in rows if r["method"] in ("CFG", "Conditional")]
    if len(points) < 2:
        raise ValueError("a comparison needs fixed guidance at two scales or more")
    return sorted(points, key=lambda one: one[0])


def interpolated(curve: Sequence[Point], scale: float) -> dict[str, float] | None:
    """The curve's values at a scale; None outside it."""
    for (low, a), (high, b) in pairwise(curve):
        if low <= scale <= high:
            share = math.log(scale / low) / math.log(high / low)
            return {k: a[k] + share * (b[k] - a[k]) for k in a}
    return None


def scale_reaching(curve: Sequence[Point], column: str, value: float) -> float:
    """The smallest scale at which the curve reaches a value; nan where it never does."""
    if curve[0][1][column] >= value:
        return curve[0][0]
    for (low, a), (high, b) in pairwise(curve):
        if a[column] < value <= b[column]:
            share = (value - a[column]) / (b[column] - a[column])
            scale: float = low * (high / low) ** share
            return scale
    return math.nan


def write_compared(lines: Sequence[dict[str, str]], path: Path) -> Path:
    """The lines as CSV; the file appears whole or not at all."""
    text = StringIO()
    writer = csv.DictWriter(text, list(lines[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return write_whole(path, text.getvalue())


def _line(
    row: dict[str, str], kind: str, own: dict[str, float], scale: float, other: dict[str, float] | None
) -> dict[str, str]:
    line = {"rule": f"{row['method']} {row['gamma']}".strip(), "scale": row["scale"], "against": kind}
    line["fixed scale"] = "" if math.isnan(scale) else f"{scale:.3g}"
    for name in COLUMNS:
        line[name] = f"{own[name]:.3f} ({other[name]:.3f})" if other else f"{own[name]:.3f} (not reached)"
    return line


def _values(row: dict[str, str]) -> dict[str, float]:
    return {name: float(row[name]) for name in COLUMNS}
