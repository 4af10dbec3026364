"""Reading the cells of a benchmark back, and the intervals of what they hold.

replicate  the same measure on a bootstrap resample of the blocks; resample i is the same for all rules, so
           that differences of replicates are replicates of the paired difference
interval   95 %: the value plus the replicates' deviations from their own mean, widened by sqrt(b / (b - 1))
           for b blocks. It states the Monte-Carlo error; the floor of finitely many samples is another thing
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ...lab.measures import MEASURES
from ..ledger import Ledger
from .config import BenchConfig
from .families import Family

Array = npt.NDArray[np.float64]
_SAME, _LEAST = 1e-6, 0.01


class BootstrapEstimate(NamedTuple):
    """A number, its interval, and the replicates behind it."""

    value: float
    low: float
    high: float
    replicates: Array
    least: float = 0.0  # of a difference: smaller ones are no difference in practice

    def minus(self, other: BootstrapEstimate, blocks: int) -> BootstrapEstimate:
        """The paired difference; 0 where the two agree to the six digits that replicates are kept with."""
        if not (math.isfinite(self.value) and math.isfinite(other.value)):
            return NOTHING
        gap = self.value - other.value
        if abs(gap) <= _SAME * abs(other.value):
            return BootstrapEstimate(0.0, 0.0, 0.0, np.zeros_like(self.replicates))
        known = np.isfinite(self.replicates) & np.isfinite(other.replicates)
        pairs = np.where(known, self.replicates, math.nan) - np.where(known, other.replicates, math.nan)
        return estimate(gap, pairs, blocks)._replace(least=_LEAST * abs(other.value))

    @property
    def verdict(self) -> str:
        """Of a difference: 'better' (less error), 'worse', or 'even' (the interval holds 0, or below 1 %)."""
        if not math.isfinite(self.value):
            return ""
        if abs(self.value) < self.least:
            return "even"
        return "better" if self.high < 0 else "worse" if self.low > 0 else "even"


NOTHING = BootstrapEstimate(math.nan, math.nan, math.nan, np.full(1, math.nan))


def estimate(value: float, replicates: Array, blocks: int) -> BootstrapEstimate:
    """A value with the interval that its replicates give it; nan where a tenth of them or more is missing."""
    finite = replicates[np.isfinite(replicates)]
    if not math.isfinite(value) or len(finite) < 0.9 * len(replicates):
        return BootstrapEstimate(value, math.nan, math.nan, replicates)
    away = (finite - finite.mean()) * math.sqrt(blocks / (blocks - 1))
    low, high = np.quantile(away, [0.025, 0.975])
    return BootstrapEstimate(value, value + float(low), value + float(high), replicates)


@dataclass(frozen=True, eq=False)
class Row:
    """One reading: a rule at one scale on one problem."""

    problem: str
    family: Family
    variant: str
    scale: float
    rule: str
    values: Array
    replicates: Array
    nfe: int
    lost: float
    slice_error: float
    failure: str
    blocks: int

    def of(self, measure: str) -> BootstrapEstimate:
        i = MEASURES.index(measure)
        return estimate(float(self.values[i]), self.replicates[:, i], self.blocks)


@dataclass(frozen=True, eq=False)
class Cells:
    """All readings of a folder."""

    config: BenchConfig
    problems: tuple[str, ...]
    families: tuple[Family, ...]
    rows: dict[tuple[str, str], list[Row]]

    def sweep(self, problem: str, family: str) -> list[Row]:
        """The family itself over its scales, in increasing order."""
        rows = [
            row for row in self.rows.get((problem, family), []) if row.variant == "rule" and not row.failure
        ]
        return sorted(rows, key=lambda row: row.scale)

    def at(self, problem: str, family: str, scale: float, variant: str = "rule") -> Row | None:
        """One reading; scale 1 of any rule, and every scale of the references, is the one there is."""
        rows = [
            row for row in self.rows.get((problem, family), []) if row.variant == variant and not row.failure
        ]
        if variant == "rule" and len(rows) == 1 and not rows[0].family.swept:
            return rows[0]
        return next((row for row in rows if row.scale == scale), None)


def read_cells(folder: str | Path) -> Cells:
    """Every finished cell of a benchmark folder."""
    root = Path(folder)
    run = Ledger(root, "bench").read()
    if run is None:
        raise ValueError(f"{root} holds no benchmark (run.json); run `meancap bench lab --out {root}` first")
    config = BenchConfig.from_json(run["config"])
    families = tuple(Family(**one) for one in run["families"])
    rows = {}
    for problem in run["problems"]:
        for family in families:
            path = root / "cells" / problem / f"{family.slug}.npz"
            if path.is_file():
                rows[problem, family.name] = _read(path, problem, family, config)
    return Cells(config, tuple(run["problems"]), families, rows)


def _read(path: Path, problem: str, family: Family, config: BenchConfig) -> list[Row]:
    with np.load(path, allow_pickle=False) as archive:
        cell = {name: archive[name] for name in archive.files}
    if json.loads(str(cell["family"])) != family.__dict__:
        return []
    return [
        Row(
            problem,
            family,
            str(cell["variant"][i]),
            float(cell["scale"][i]),
            str(cell["rule"][i]),
            cell["values"][i].astype(np.float64),
            cell["replicates"][i].astype(np.float64),
            int(cell["nfe"][i]),
            float(cell["lost"][i]),
            float(cell["slice_error"][i]),
            str(cell["failure"][i]),
            config.blocks,
        )
        for i in range(len(cell["scale"]))
    ]
