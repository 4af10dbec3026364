"""The readings of the scenes study, and its rules against fixed guidance where the two do equally much.

    equal scale        fixed guidance at the same λ
    equal use          fixed guidance at the rule's effective scale (mean over steps and pictures)
    equal adherence    fixed guidance at the smallest scale that has as many prompts wholly right

Fixed guidance between its scales is taken on a straight line over log λ; where it never gets that far, the
line says "not reached". Intervals are 95 %: pictures are drawn again with replacement, the same ones for all
rules, and the whole comparison is made again, the matching scale included.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from studies.common import read_csv

CLAUSES = ("shape 1", "colour 1", "shape 2", "colour 2", "place", "background")
NUMBERS = ("saturation", "clipped")
COLUMNS = ("right", "drawn", "saturation", "clipped")
KINDS = ("equal scale", "equal use", "equal adherence")
DRAWS = 1000


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


def read_readings(path: Path) -> list[SceneReading]:
    """Every rule and scale of readings.csv, its seeds joined."""
    groups: dict[tuple[str, ...], list[dict[str, str]]] = {}
    for row in read_csv(path):
        groups.setdefault((row["part"], row["method"], row["gamma"], row["scale"]), []).append(row)
    return [_joined(lines) for lines in groups.values()]


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


@dataclass(frozen=True)
class SceneContrast:
    """A rule less fixed guidance: for each column the difference, and the ends of its interval."""

    rule: SceneReading
    kind: str
    scale: float  # of fixed guidance; nan where it is not reached
    columns: dict[str, tuple[float, float, float]]


def compared(readings: Sequence[SceneReading], part: str = "scenes") -> list[SceneContrast]:
    """Every rule and scale of a part but fixed guidance, in the three ways."""
    own = [r for r in readings if r.part == part]
    fixed = sorted((r for r in own if r.method in ("CFG", "Conditional")), key=lambda r: r.scale)
    if len(fixed) < 2:
        raise ValueError("a comparison needs fixed guidance at two scales or more")
    weights = drawn_again(len(fixed[0].drawn))
    log_scales = torch.tensor([math.log(r.scale) for r in fixed], dtype=torch.float64)
    curve = {name: torch.stack([weights @ values_of(r, name) for r in fixed]) for name in COLUMNS}
    rules = [r for r in own if r.method not in ("CFG", "Conditional")]
    return [_contrast(r, kind, weights, log_scales, curve) for r in rules for kind in KINDS]


def drawn_again(n: int, draws: int = DRAWS) -> Tensor:
    """(1 + draws, n) weights of pictures: the pictures themselves, then random draws of them."""
    g = torch.Generator().manual_seed(0)
    picks = torch.randint(n, (draws, n), generator=g)
    counts = torch.zeros(draws, n, dtype=torch.float64).scatter_add_(1, picks, torch.ones(draws, n).double())
    return torch.cat([torch.ones(1, n, dtype=torch.float64), counts]) / n


def values_of(r: SceneReading, name: str) -> Tensor:
    """One number for each picture."""
    return (r.right["all"] if name == "right" else r.drawn if name == "drawn" else r.numbers[name]).double()


def interpolated(log_scales: Tensor, curve: Tensor, at: Tensor) -> Tensor:
    """Each column of curve (scales, draws) at its own log scale (draws,); nan outside the scales."""
    last = len(log_scales) - 2
    left = (torch.searchsorted(log_scales, at.nan_to_num(0.0)) - 1).clamp(0, last)
    low, high = log_scales[left], log_scales[left + 1]
    below, above = (curve.gather(0, (left + k)[None])[0] for k in (0, 1))
    value = below + (at - low) / (high - low) * (above - below)
    inside = (at >= log_scales[0] - 1e-9) & (at <= log_scales[-1] + 1e-9)
    return torch.where(inside, value, torch.nan)


def reaching(log_scales: Tensor, curve: Tensor, level: Tensor) -> Tensor:
    """The smallest log scale at which each column of the curve reaches its level; nan where it never does."""
    found = torch.full_like(level, torch.nan)
    for i in reversed(range(len(log_scales) - 1)):
        a, b = curve[i], curve[i + 1]
        share = (level - a) / (b - a).clamp(min=1e-12)
        at = log_scales[i] + share * (log_scales[i + 1] - log_scales[i])
        found = torch.where((a < level) & (level <= b), at, found)
    return torch.where(curve[0] >= level, log_scales[0], found)


def _contrast(
    r: SceneReading, kind: str, weights: Tensor, log_scales: Tensor, curve: dict[str, Tensor]
) -> SceneContrast:
    own = {name: weights @ values_of(r, name) for name in COLUMNS}
    nominal = r.scale if kind == "equal scale" else r.used
    at = torch.full((len(weights),), math.log(nominal), dtype=torch.float64)
    if kind == "equal adherence":
        at = reaching(log_scales, curve["right"], own["right"])
    found = {}
    for name in COLUMNS:
        less = own[name] - interpolated(log_scales, curve[name], at)
        drawn = less[1:][~less[1:].isnan()]
        # Where the match fails in more than a tenth of the draws, the rest would be a selection of them.
        ends = torch.tensor([math.nan, math.nan])
        if len(drawn) >= 0.9 * DRAWS:
            ends = torch.quantile(drawn, torch.tensor([0.025, 0.975], dtype=torch.float64))
        found[name] = (float(less[0]), float(ends[0]), float(ends[1]))
    return SceneContrast(r, kind, math.exp(float(at[0])), found)


def contrast_rows(lines: Sequence[SceneContrast]) -> list[dict[str, str]]:
    """The comparisons as lines of a table: difference and interval."""
    return [
        {
            "part": c.rule.part,
            "rule": c.rule.label,
            "scale": f"{c.rule.scale:g}",
            "against": c.kind,
            "fixed scale": "not reached" if math.isnan(c.columns["drawn"][0]) else f"{c.scale:.3g}",
        }
        | {name: with_interval(*c.columns[name]) for name in COLUMNS}
        for c in lines
    ]


def with_interval(value: float, low: float, high: float) -> str:
    """A difference with its interval; a dash where there is none."""
    if math.isnan(value):
        return "–"
    return f"{value:+.3f}" + ("" if math.isnan(low) else f" [{low:+.3f}, {high:+.3f}]")
