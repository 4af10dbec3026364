"""The tables of the report, every number read from the folder."""

from __future__ import annotations

from pathlib import Path

from ..document import Table
from . import read

_DIGITS = {"occupancy_percent": 2, "variance_ratio": 3, "tv": 5, "mean_error": 5}


def scores(folder: Path) -> list[float]:
    """Every z-score of the table."""
    rows = read.table(folder).values()
    return [z for row in rows for metric in read.METRICS for z in read.numbers(row[f"z_{metric}"])]


def comparison(folder: Path) -> Table:
    """Ours, the paper's and z, three lines for each setting."""
    groups = []
    for row in read.table(folder).values():
        head = (row["members"], row["guidance"], row["scale"], row["gamma"] or "—")
        ours = (_few(row[m], _DIGITS[m]) for m in read.METRICS)
        paper = (_few(row[f"paper_{m}"], _DIGITS[m]) for m in read.METRICS)
        z = (_few(row[f"z_{m}"], 1, sign="+") for m in read.METRICS)
        groups.append(((*head, "ours", *ours), ("", "", "", "", "paper", *paper), ("", "", "", "", "z", *z)))
    columns = ("A", "guidance", "λ", "Γ", "", "occupancy %", "variance ratio", "TV", "mean error")
    return Table(columns, tuple(groups), names=5)


def euler_loss(folder: Path) -> Table:
    """The variance ratio of every branch with Euler steps and in continuous time, and the rule of its row."""
    groups: dict[str, list[tuple[str, ...]]] = {}
    table = read.table(folder)
    for (members, guidance, metric), rows in read.limits(folder).items():
        if metric != "variance_ratio":
            continue
        for row in rows:
            steps, exact = float(row["euler"]), float(row["continuous"])
            head = (members, guidance, f"`{table[members, guidance]['rule']}`", row["position"])
            error = f"± {float(row['standard_error']):.3f}"
            lost = (f"{max(1 - exact, 0):.3f}", f"{exact - steps:.3f}", f"{min(share(steps, exact), 1):.0%}")
            line = (*head, f"{steps:.3f}", f"{exact:.3f}", error, *lost)
            groups.setdefault(members, []).append(line)
    columns = ("A", "guidance", "rule", "branch", "50 Euler steps", "continuous", "", "lost to guidance")
    return Table(
        (*columns, "lost to Euler", "Euler's part"), tuple(tuple(g) for g in groups.values()), names=4
    )


def shape(folder: Path) -> Table:
    """The variance along the ray of a branch and across it."""
    limits = read.limits(folder)
    groups = []
    for members in read.SCENES:
        lines = []
        for guidance in read.GUIDANCE:
            cells = [
                " / ".join(f"{float(r[column]):.3f}" for r in limits[members, guidance, metric])
                for column in ("euler", "continuous")
                for metric in ("radial_ratio", "tangential_ratio")
            ]
            lines.append((members, guidance, *cells))
        groups.append(tuple(lines))
    columns = ("A", "guidance", "along, Euler", "across, Euler", "along, continuous", "across, continuous")
    return Table(columns, tuple(groups), names=2)


def share(steps: float, exact: float) -> float:
    """The part of the contraction 1 - steps that is gone in continuous time."""
    return (exact - steps) / (1 - steps)


def _few(cell: str, digits: int, sign: str = "") -> str:
    # + 0.0 turns a rounded -0.0 into 0.0
    values = (f"{round(v, digits) + 0.0:{sign}.{digits}f}" for v in read.numbers(cell))
    return " / ".join(values).replace("-", "−")
