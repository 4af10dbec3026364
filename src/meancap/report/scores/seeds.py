"""A study of several seeds as scored runs, so that the tables and fronts of a report can be made of it.

Each setting is one run of all its pictures; the test pictures are a mark on every axis, not a run.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from ...metrics.score import Estimate, difference
from ...runs.pooled import REAL, Pooled
from ..document import Table
from ..score_tables import cell, marked, titled
from ..scored_runs import ScoredRun, in_order, method_name

PROTOCOL = "fashion"


def runs_of(settings: Sequence[Pooled]) -> list[ScoredRun]:
    """The settings as runs that share their noise, in the order of the paper's tables."""
    return in_order(
        ScoredRun(
            Path(s.label), s.rule, method_name(s.rule), s.evaluations, next(iter(s.numbers.values())).n,
            "all seeds", s.used, {PROTOCOL: dict(s.numbers)}, {PROTOCOL: PROTOCOL},
        )
        for s in settings
        if s.method != REAL
    )  # fmt: skip


def real_values(settings: Sequence[Pooled]) -> dict[str, float]:
    """The numbers of the test pictures; none where they were not measured."""
    real = [s for s in settings if s.method == REAL]
    return {name: e.value for s in real for name, e in s.numbers.items()}


def all_numbers(settings: Sequence[Pooled], columns: Sequence[str]) -> Table:
    """Every setting over all seeds, the test pictures first, with the distance of each seed at the end."""
    by_run = {s.rule: s for s in settings}
    rows = [
        ("test pictures", "—", "—", "—", *(cell(s.numbers.get(c)) for c in columns), "—")
        for s in settings
        if s.method == REAL
    ]
    for e in runs_of(settings):
        s, gamma = by_run[e.rule], "—" if e.name.gamma is None else f"{e.name.gamma:.2f}"
        each = ", ".join(f"{v:.2f}" for v in s.seeds[columns[0]])
        numbers = [cell(s.numbers.get(c)) for c in columns]
        rows.append((e.name.method, f"{s.scale:g}", gamma, f"{s.used:.2f}", *numbers, each))
    head = ("method", "λ", "Γ", "scale used", *map(titled, columns), f"{columns[0]} of each seed")
    return Table(head, (tuple(rows),), names=3)


def at_use(settings: Sequence[Pooled], columns: Sequence[str]) -> Table:
    """Each rule less fixed CFG at the rule's effective scale, on straight lines over log λ."""
    runs = runs_of(settings)
    fixed = {e.name.scale or 1.0: e.scores[PROTOCOL] for e in runs if e.name.method in _FIXED}
    rows = []
    for e in (e for e in runs if e.name.method not in _FIXED and e.name.scale is not None):
        used = e.kept or 1.0
        other = between(fixed, used)
        differences = ["not reached"] * len(columns)
        if other is not None:
            differences = [marked(difference(e.scores[PROTOCOL][c], other[c]), c) for c in columns]
        rows.append((e.name.label, f"{e.name.scale:g}", f"{used:.2f}", *differences))
    head = ("method − fixed CFG", "λ", "scale used", *map(titled, columns))
    return Table(head, (tuple(rows),), names=1)


_FIXED = ("Fixed CFG", "Conditional")


def between(fixed: Mapping[float, Mapping[str, Estimate]], scale: float) -> dict[str, Estimate] | None:
    """The numbers of fixed CFG at a scale between two that were run; None outside them."""
    scales = sorted(fixed)
    for low, high in pairwise(scales):
        if low <= scale <= high:
            share = math.log(scale / low) / math.log(high / low)
            return {name: _mixed(e, fixed[high][name], share) for name, e in fixed[low].items()}
    return None


def _mixed(a: Estimate, b: Estimate, share: float) -> Estimate:
    value = (1 - share) * a.value + share * b.value
    parts = None if a.parts is None or b.parts is None else (1 - share) * a.parts + share * b.parts
    return Estimate(a.name, value, a.n, parts)
