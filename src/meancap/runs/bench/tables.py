"""From cells to tables, each a list of flat rows.

results         every reading, with intervals
equal_scale     rules at the same nominal scale, and the paired difference from fixed CFG there
equal_alignment each rule where its own sweep reaches the same alignment, and the difference from fixed CFG
tuned           each rule at the best scale of its sweep, and the difference from fixed CFG at its best
open_loop       adaptive rules against their own average, and against fixed CFG of the same mean scale
calibration     calibrated caps against gamma = 1.1
summary         error over that of a perfect model, as a geometric mean over the problems of a kind
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from ...lab.measures import MEASURES
from ...lab.problems import problem as problem_named
from .cells import NOTHING, Array, BootstrapEstimate, Cells, Row, estimate
from .families import FIXED, PAPER, TRUTH, UNGUIDED

Table = list[dict[str, Any]]
ERRORS = ("sw2", "kl")
_REST = tuple(name for name in MEASURES if name not in ERRORS)
_HALF_WAY, _NEARLY = 0.5, 0.9
_CLOSE = 0.1
_SATURATED = 0.002  # an unguided model that is so close to its target alignment leaves nothing to match


def all_tables(cells: Cells) -> dict[str, Table]:
    """The tables by name."""
    return {
        "results": results(cells),
        "equal_scale": equal_scale(cells),
        "equal_alignment": equal_alignment(cells),
        "tuned": tuned(cells),
        "open_loop": open_loop(cells),
        "calibration": calibration(cells),
        "summary": summary(cells),
    }


def results(cells: Cells) -> Table:
    """Every measurement, with its interval."""
    return [
        {
            **_head(row),
            "variant": row.variant,
            **{k: v for name in MEASURES for k, v in _stated(name, row.of(name)).items()},
            "nfe": row.nfe,
            "lost": row.lost,
            "slice_error": _short(row.slice_error),
            "failure": row.failure,
        }
        for rows in cells.rows.values()
        for row in rows
    ]


def equal_scale(cells: Cells) -> Table:
    """Each rule beside fixed CFG of the same nominal scale."""
    table = []
    for (problem, name), rows in cells.rows.items():
        for row in rows:
            fixed = cells.at(problem, FIXED.name, row.scale)
            if (
                row.variant != "rule"
                or row.failure
                or not row.family.nominal
                or name in _REFERENCES
                or not fixed
            ):
                continue
            table.append({**_head(row), **_errors(row, fixed, "cfg", cells), **_rest(row)})
    return table


_REFERENCES = (UNGUIDED.name, TRUTH.name)


def equal_alignment(cells: Cells) -> Table:
    """Each rule beside fixed CFG where both are equally aligned with the condition."""
    table = []
    for problem in cells.problems:
        target = alignment_target(cells, problem)
        if target is None:
            continue
        fixed = {name: matched(cells, problem, FIXED.name, name, target) for name in ERRORS}
        for family in cells.families:
            sweep = _from_unguided(cells, problem, family.name)
            if family.name in _REFERENCES or len(sweep) < 2:
                continue
            kind = problem_named(problem).kind
            row: dict[str, Any] = {
                "problem": problem,
                "kind": kind,
                "family": family.name,
                "group": family.group,
            }
            reach = matched(cells, problem, family.name, "scale", target)
            best = max(float(one.values[MEASURES.index("alignment")]) for one in sweep)
            row |= {
                "alignment": _short(target),
                "reached": math.isfinite(reach.value),
                "highest": _short(best),
            }
            row |= {"scale": _short(reach.value), "resolved": _resolved(sweep, target)}
            for name in ERRORS:
                one = matched(cells, problem, family.name, name, target)
                row |= _stated(name, one) | _against(name, "cfg", one.minus(fixed[name], cells.config.blocks))
            row["tangential"] = _short(matched(cells, problem, family.name, "tangential", target).value)
            row["coverage"] = _short(matched(cells, problem, family.name, "coverage", target).value)
            table.append(row)
    return table


def alignment_target(cells: Cells, problem: str) -> float | None:
    """Half of the way from no guidance to certainty for an exact model, else nine tenths to the truth."""
    start, truth = (cells.at(problem, name, 1.0) for name in _REFERENCES)
    if start is None or truth is None:
        return None
    exact = problem_named(problem).kind == "exact"
    a, b = start.of("alignment").value, 1.0 if exact else truth.of("alignment").value
    if b - a < _SATURATED:
        return None
    return a + (_HALF_WAY if exact else _NEARLY) * (b - a)


def matched(cells: Cells, problem: str, family: str, measure: str, target: float) -> BootstrapEstimate:
    """A measure, or the scale, where the sweep first reaches the alignment: straight lines between scales."""
    sweep = _from_unguided(cells, problem, family)
    if len(sweep) < 2:
        return NOTHING
    i = MEASURES.index("alignment")
    alignment = np.stack([np.concatenate([row.values[i : i + 1], row.replicates[:, i]]) for row in sweep])
    if measure == "scale":
        curve = np.repeat(np.array([[row.scale] for row in sweep]), alignment.shape[1], 1)
    else:
        j = MEASURES.index(measure)
        curve = np.stack([np.concatenate([row.values[j : j + 1], row.replicates[:, j]]) for row in sweep])
    crossed = np.array([_crossing(a, c, target) for a, c in zip(alignment.T, curve.T, strict=True)])
    return estimate(float(crossed[0]), crossed[1:], cells.config.blocks)


def _resolved(sweep: list[Row], target: float) -> bool:
    """Whether the two scales that the target lies between are close enough to draw a line."""
    alignment = [row.of("alignment").value for row in sweep]
    above = next((i for i, a in enumerate(alignment) if a >= target), None)
    return above == 0 or (above is not None and alignment[above] - alignment[above - 1] <= _CLOSE)


def _crossing(alignment: Array, curve: Array, target: float) -> float:
    above = np.flatnonzero(alignment >= target)
    if not len(above):
        return math.nan
    i = int(above[0])
    if i == 0:
        return float(curve[0])
    if not np.isfinite(curve[i - 1 : i + 1]).all():  # a collapsed law has no density, and an infinite kl
        return math.nan
    share = (target - alignment[i - 1]) / (alignment[i] - alignment[i - 1])
    return float(curve[i - 1] + share * (curve[i] - curve[i - 1]))


def tuned(cells: Cells) -> Table:
    """Each rule at its own best scale, beside fixed CFG at its own."""
    table = []
    for problem in cells.problems:
        fixed = _best(cells, problem, FIXED.name)
        for family in cells.families:
            best = _best(cells, problem, family.name)
            if fixed is not None and best is not None:
                table.append({**_head(best), **_errors(best, fixed, "cfg", cells), **_rest(best)})
    return table


def _best(cells: Cells, problem: str, family: str) -> Row | None:
    rows = [row for row in cells.sweep(problem, family) if np.isfinite(row.values[0])]
    return min(rows, key=lambda row: row.of("sw2").value) if rows else None


def open_loop(cells: Cells) -> Table:
    """Each rule beside fixed schedules that spend as much guidance as it did."""
    table = []
    for (problem, name), rows in cells.rows.items():
        for scale in cells.config.matched:
            own = cells.at(problem, name, scale)
            rivals = {row.variant: row for row in rows if row.scale == scale and row.variant != "rule"}
            if own is None or not rivals:
                continue
            line = _head(own)
            for measure in ERRORS:
                line |= _stated(measure, own.of(measure))
                for variant, row in rivals.items():
                    key = variant.replace(" ", "_")
                    line[f"{measure}_{key}"] = _short(row.of(measure).value)
                    line |= _against(
                        measure, key, own.of(measure).minus(row.of(measure), cells.config.blocks)
                    )
            for variant, row in rivals.items():
                if variant.startswith("fixed"):
                    line[f"scale_{variant.replace(' ', '_')}"] = _short(float(row.rule[4:-1]))
            table.append(line)
    return table


def calibration(cells: Cells) -> Table:
    """Calibrated and anchored caps beside the paper's, at the same scale."""
    table = []
    for (problem, _), rows in cells.rows.items():
        for row in rows:
            paper = cells.at(problem, PAPER.name, row.scale)
            ours = row.family.name.startswith(("calibrated", "anchored"))
            if not ours or row.variant != "rule" or row.failure or paper is None:
                continue
            ratio = row.of("sw2").value / paper.of("sw2").value
            table.append({**_head(row), "sw2_ratio_pmc": _short(ratio), **_errors(row, paper, "pmc", cells)})
    return table


def summary(cells: Cells) -> Table:
    """sw2 over that of a perfect model with the same steps: at the best, worst and largest scale."""
    kinds = {name: problem_named(name).kind for name in cells.problems}
    table = []
    for family in cells.families:
        for kind in ("all", *dict.fromkeys(kinds.values())):
            of_kind = [name for name in cells.problems if kind in ("all", kinds[name])]
            ratios = [_ratios(cells, name, family.name) for name in of_kind]
            if not ratios or any(one is None for one in ratios):
                continue
            line: dict[str, Any] = {
                "family": family.name,
                "group": family.group,
                "kind": kind,
                "problems": len(ratios),
            }
            for name in ("best", "worst", "last"):
                both = np.stack([one[name] for one in ratios if one is not None])
                mean = np.exp(np.log(both).mean(0))
                line |= _stated(name, estimate(float(mean[0]), mean[1:], cells.config.blocks))
            table.append(line)
    return table


def _ratios(cells: Cells, problem: str, family: str) -> dict[str, Array] | None:
    i, truth = MEASURES.index("sw2"), cells.at(problem, TRUTH.name, 1.0)
    sweep = cells.sweep(problem, family)
    if sweep and sweep[0].family.nominal and sweep[0].family.swept:  # the same scales for all
        sweep = [row for row in sweep if row.scale in cells.config.scales]
    if not sweep or truth is None or not all(np.isfinite(row.values[i]) for row in sweep):
        return None
    best_of = [row.values[i] for row in sweep]
    picks = {"best": int(np.argmin(best_of)), "worst": int(np.argmax(best_of)), "last": len(sweep) - 1}

    def both(row: Row) -> Array:
        return np.concatenate([row.values[i : i + 1], row.replicates[:, i]])

    return {name: both(sweep[at]) / both(truth) for name, at in picks.items()}


def _from_unguided(cells: Cells, problem: str, family: str) -> list[Row]:
    sweep = [row for row in cells.sweep(problem, family) if np.isfinite(row.values[0])]
    start = cells.at(problem, UNGUIDED.name, 1.0)
    return [start, *sweep] if sweep and start is not None and sweep[0].family.unit else sweep


def _head(row: Row) -> dict[str, Any]:
    return {
        "problem": row.problem,
        "kind": problem_named(row.problem).kind,
        "family": row.family.name,
        "group": row.family.group,
        "scale": _short(row.scale),
        "rule": row.rule if len(row.rule) <= 200 else row.rule[:199] + "…",
    }


def _errors(row: Row, other: Row, against: str, cells: Cells) -> dict[str, Any]:
    return {
        k: v
        for name in ERRORS
        for k, v in (
            _stated(name, row.of(name))
            | _against(name, against, row.of(name).minus(other.of(name), cells.config.blocks))
        ).items()
    }


def _rest(row: Row) -> dict[str, Any]:
    return {name: _short(row.of(name).value) for name in _REST} | {"nfe": row.nfe}


def _stated(name: str, one: BootstrapEstimate) -> dict[str, Any]:
    return {name: _short(one.value), f"{name}_low": _short(one.low), f"{name}_high": _short(one.high)}


def _against(name: str, other: str, one: BootstrapEstimate) -> dict[str, Any]:
    key = f"{name}_vs_{other}"
    return {**_stated(key, one), f"{key}_verdict": one.verdict}


def _short(value: float) -> float | None:
    """Four digits; None for what is not a number, so that tables have a gap and not a 'nan'."""
    return float(f"{value:.4g}") if math.isfinite(value) else None


def columns(table: Iterable[dict[str, Any]]) -> list[str]:
    """All keys, in the order in which they first appear."""
    return list(dict.fromkeys(key for row in table for key in row))
