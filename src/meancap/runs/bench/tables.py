"""From readings to tables.

    excess    sw2 over that of the perfect model, same blocks, same solver: on each problem the mean of its
              logarithm over the blocks, then the geometric mean over problems
    versus    the same with fixed CFG, tuned or carried over in the same way, for the perfect model

summary    every family over problems that are held out: settings carried over, tuned, and at their worst
kinds      the same by the error of the model
named      every family on every named problem, with intervals over blocks
aligned    at equal alignment, against fixed CFG
effective  against fixed CFG at the effective scale that the rule itself had
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterable
from typing import Any

from ...lab.problems import KINDS
from ...lab.problems import problem as problem_named
from .config import role
from .families import FIXED, PERFECT
from .intervals import Ratio, geometric
from .measure import SOLVERS, Reading
from .readings import Readings, Table

Logs = dict[str, float]  # by problem
_SPLITS = 400
_CLOSE = 0.005


def tables(readings: Readings) -> dict[str, Table]:
    """All tables by name; ratios are `Ratio`."""
    return {
        "summary": summary(readings),
        "kinds": kinds(readings),
        "named": named(readings),
        "aligned": matched(readings, "aligned"),
        "effective": matched(readings, "effective"),
    }


def held_out(readings: Readings) -> list[str]:
    """The problems that the headline is over: held out, and scored for the perfect model."""
    return [
        name
        for name in readings.problems
        if role(name) == "held out" and readings.of(name, PERFECT.name, "tuned")
    ]


def common(readings: Readings) -> list[str]:
    """The problems held out that every family was scored on; more rules may be run on fewer problems."""
    return [
        name
        for name in held_out(readings)
        if all(readings.of(name, family.name, "tuned") for family in readings.families)
    ]


def log_error(one: Reading) -> float:
    """Mean over the blocks of log sw2."""
    return math.fsum(math.log(v) for v in one.sw2) / len(one.sw2)


def logs(
    readings: Readings, family: str, what: str, solver: str = "euler", problems: Iterable[str] | None = None
) -> Logs:
    """Log of the excess on each problem where there is one reading of this kind."""
    found = {}
    for name in held_out(readings) if problems is None else problems:
        truth = readings.of(name, PERFECT.name, "tuned", solver)
        own = readings.of(name, family, what, solver)
        if truth and own:
            found[name] = log_error(own[0]) - log_error(truth[0])
    return found


def worst_logs(readings: Readings, family: str, problems: Iterable[str]) -> Logs:
    """Log of the excess at the worst of the spread settings, on the tuning noise."""
    found = {}
    for name in problems:
        truth, tried = (readings.of(name, one, "spread") for one in (PERFECT.name, family))
        if truth and tried and readings.of(name, family, "tuned"):
            found[name] = max(map(log_error, tried)) - log_error(truth[0])
    return found


def ratio(own: Logs, other: Logs | None = None) -> Ratio:
    """Geometric mean of own, or of own over other on the problems that both have."""
    if other is None:
        return geometric(list(own.values()))
    return geometric([own[name] - other[name] for name in own if name in other])


def summary(readings: Readings, problems: list[str] | None = None) -> Table:
    """One row for each family, over the problems held out that it was scored on."""
    names = held_out(readings) if problems is None else problems
    table = []
    fixed = {
        (what, solver): logs(readings, FIXED.name, what, solver, names)
        for what in ("tuned", "carried")
        for solver in SOLVERS
    }
    for family in readings.families:
        row: dict[str, Any] = {"family": family.name, "group": family.group}
        for what in ("carried", "tuned"):
            for solver in SOLVERS:
                plain = what == "carried" and not family.knobs  # nothing to carry over
                own = logs(readings, family.name, "tuned" if plain else what, solver, names)
                row[f"{what} {solver}"] = ratio(own)
                row[f"{what} {solver} versus"] = ratio(own, fixed[what, solver])
        row["problems"] = row["tuned euler"].n
        row["worst"] = ratio(worst_logs(readings, family.name, names)) if family.knobs else row["tuned euler"]
        row["lost"] = sum(one.lost > 0 for name in names for one in readings.of(name, family.name, "carried"))
        row["by euler"] = any(
            row[f"{what} euler versus"].verdict == "better"
            and row[f"{what} midpoint versus"].verdict != "better"
            for what in ("carried", "tuned")
        )
        if row["problems"]:
            table.append(row)
    return sorted(table, key=lambda row: (-row["problems"], row["carried euler"].value))


def kinds(readings: Readings) -> Table:
    """Excess by the error of the model, carried over and tuned."""
    table = []
    problems = {kind: [n for n in held_out(readings) if problem_named(n).kind == kind] for kind in KINDS}
    for family in readings.families:
        row: dict[str, Any] = {"family": family.name, "group": family.group}
        for what in ("carried", "tuned"):
            own = logs(readings, family.name, what if family.knobs else "tuned")
            for kind, names in problems.items():
                row[f"{kind} {what}"] = ratio({name: own[name] for name in names if name in own})
        table.append(row)
    return table


def named(readings: Readings) -> Table:
    """Every family on the named problems: sw2 and excess with intervals over blocks, both solvers."""
    table = []
    for problem in (name for name in readings.problems if role(name) == "named"):
        for family in readings.families:
            row: dict[str, Any] = {"problem": problem, "family": family.name, "group": family.group}
            for solver in SOLVERS:
                own = readings.of(problem, family.name, "tuned", solver)
                truth = readings.of(problem, PERFECT.name, "tuned", solver)
                if own and truth:
                    row["setting"] = own[0].setting
                    row[f"sw2 {solver}"] = geometric([math.log(v) for v in own[0].sw2])
                    row[f"excess {solver}"] = _paired(own[0], truth[0])
            if "setting" in row:
                table.append(row)
    return sorted(table, key=lambda row: (row["problem"], row["excess euler"].value))


def _paired(own: Reading, other: Reading) -> Ratio:
    return geometric([math.log(a / b) for a, b in zip(own.sw2, other.sw2, strict=True)])


def matched(readings: Readings, what: str) -> Table:
    """Rules against fixed CFG at equal alignment, or at the effective scale that the rule had."""
    table = []
    for family in readings.families:
        pairs: Logs = {}
        reached = 0
        for name in held_out(readings):
            mine = readings.of(name, family.name, "aligned" if what == "aligned" else "tuned")
            other = readings.of(name, *((FIXED.name, what) if what == "aligned" else (family.name, what)))
            if mine:
                reached += 1
            if mine and other and (what != "aligned" or _close(mine[0], other[0])):
                pairs[name] = log_error(mine[0]) - log_error(other[0])
        if pairs and family.name != FIXED.name:
            table.append(
                {"family": family.name, "group": family.group, "reached": reached, "versus": ratio(pairs)}
            )
    return sorted(table, key=lambda row: row["versus"].value)


def _close(one: Reading, other: Reading) -> bool:
    """Whether both are equally aligned; alignment may jump over the target with a scale."""
    a, b = (math.fsum(r.alignment) / len(r.alignment) for r in (one, other))
    return abs(a - b) <= _CLOSE


def selected(readings: Readings, what: str) -> tuple[Ratio, list[tuple[str, float]]]:
    """What the best of all rules gives when it is chosen on one half of the problems and scored on the other.

    Returns its error over that of fixed CFG, with an interval over problems, and how often which rule was
    chosen, over random halves.
    """
    names = held_out(readings)
    known = {
        family.name: found
        for family in readings.families
        if family.group != "reference" and len(found := logs(readings, family.name, what)) == len(names)
    }
    fixed = logs(readings, FIXED.name, what)
    draw, wins, gained = random.Random(0), Counter[str](), {name: [0.0, 0] for name in names}
    for _ in range(_SPLITS):
        first = set(draw.sample(names, len(names) // 2))
        best = min(known, key=lambda family: sum(known[family][name] for name in first))
        wins[best] += 1
        for name in names:
            if name not in first:
                total, count = gained[name]
                gained[name] = [total + known[best][name] - fixed[name], count + 1]
    means = [total / count for total, count in gained.values() if count]
    return geometric(means), [(name, count / _SPLITS) for name, count in wins.most_common(3)]


def flat(table: Table) -> Table:
    """The table in plain numbers, for files: a ratio becomes its value and the ends of its interval."""
    return [{key: value for item in row.items() for key, value in _plain(*item)} for row in table]


def _plain(key: str, value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, Ratio):
        names = (key, f"{key}_low", f"{key}_high")
        return [(name, _short(v)) for name, v in zip(names, value[:3], strict=True)]
    return [(key, ", ".join(f"{k} {v:g}" for k, v in value.items()) if isinstance(value, dict) else value)]


def _short(value: float) -> float | None:
    """Four digits; None for what is not a number, so that tables have a gap and not a 'nan'."""
    return float(f"{value:.4g}") if math.isfinite(value) else None
