"""Writes the parts of the documents that are computed from a benchmark's result.

    python -m docs.bench_page out/full docs    publish a run
    python -m docs.bench_page docs             again, from what the documents keep

keeps result.json, rules.csv, kinds.csv, leaderboard.html and two figures in docs/benchmark/, and fills the
marked parts of docs/benchmark.md and docs/choosing.md.
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from docs.bench_apart import APART, RULES, read_apart
from meancap.files import write_whole
from meancap_lab.bench.cases import KINDS, OVERLAPS, Case
from meancap_lab.bench.families import FIXED, UNGUIDED
from meancap_lab.bench.leaderboard import write_report
from meancap_lab.bench.ratios import FEWEST, NOTHING, Logs, Ratio, Result, stratified_mean, student
from meancap_lab.bench.result import EVALUATIONS
from studies.common import with_parts

PAGES = ("benchmark.md", "choosing.md")
_PAPER = "Cap 1.1 (the paper)"
_LEARNED = "learned λ(t), 512 examples"
# The one table of the page: recipes without a knob, then rules with knobs.
TABLE = (
    _LEARNED, "learned λ(t), 64 examples", "learned λ(t), 512, labels as in training",
    "CFG 2, calibrated cap rms", "CFG 5, anchored cap 1.1", UNGUIDED.name, "CFG 5, Cap 1.1", "CFG 5",
    FIXED.name, _PAPER, "anchored cap, Γ tuned", "calibrated cap, q90", "interval", "density feedback", "apg",
)  # fmt: skip
_TUNED = (
    _PAPER, "anchored cap, Γ tuned", "displacement cap, Γ tuned", "calibrated cap, q90", "interval", "apg",
    "autoguidance", "density feedback",
)  # fmt: skip
_ALIGNED = (
    _PAPER,
    "anchored cap, Γ tuned",
    "displacement cap, Γ tuned",
    "calibrated cap, q90",
    "interval",
    "apg",
)
_RECIPES = (
    _LEARNED, "learned λ(t), 512, a fifth mislabelled", "CFG 2, calibrated cap rms", "CFG 2, Cap 1.1",
    "CFG 5, anchored cap 1.1", "CFG 5, Cap 1.1", "CFG 1.5", "CFG 5", UNGUIDED.name,
)  # fmt: skip
_SHORT = (
    _LEARNED, "learned λ(t), 512, a fifth mislabelled", "CFG 2, Cap 1.1", "CFG 5, Cap 1.1", "CFG 9, Cap 1.1",
    "CFG 5, anchored cap 1.1", "CFG 1.5", "CFG 5", UNGUIDED.name,
)  # fmt: skip
_MARKS = {"better": " ▼", "worse": " ▲", "even": " =", "undecided": " ?", "too few": ""}


def publish(folder: Path, docs: Path) -> None:
    """A run's result, with what is drawn from it, into the documents."""
    kept = docs / "benchmark"
    kept.mkdir(exist_ok=True)
    if folder != docs:
        write_whole(kept / "result.json", (folder / "result.json").read_bytes())
    write_report(kept)
    for path in (kept / "figures").glob("*.svg"):
        path.unlink()
    for name, text in pages(docs).items():
        write_whole(docs / name, text)


def pages(docs: Path) -> dict[str, str]:
    """The text of each page, its marked parts worked out from docs/benchmark/result.json."""
    result = Result(docs / "benchmark")
    few = min(result.runs)
    parts = {
        "benchmark.md": {
            "ran": ran(result),
            "headline": headline(result),
            "table": table(result, few),
            "aligned": aligned(result),
            "apart": apart(result, docs / "benchmark" / "apart.csv"),
            "where": where(result),
            "kinds tuned": kinds(result, few, _TUNED, "sw2 sw2"),
            "kinds recipes": kinds(result, few, _RECIPES, "all sw2"),
            "kinds aligned": kinds(result, few, _ALIGNED, None),
            "feedback": feedback(result),
        },
        "choosing.md": {"recipes": recipes(result, few)},
    }
    return {name: with_parts((docs / name).read_text(encoding="utf-8"), some) for name, some in parts.items()}


def ran(result: Result) -> str:
    """Exactly what was run, and the CPU time that it took, if the result has it."""
    sentences = [
        f"**{len(result.problems(n))} of {len(result.cases)} problems at {n} evaluations**"
        for n in result.runs
    ]
    few = min(result.runs)
    fewer = [row.regret.n for row in result.rows(few) if 0 < row.regret.n < len(result.problems(few))]
    also = f" {len(fewer)} further rules ran on {fewer[0]} of them at {few} evaluations." if fewer else ""
    missing = [str(n) for n in EVALUATIONS if n not in result.runs]
    lacks = f" Nothing was run at {' and '.join(missing)} evaluations." if missing else ""
    spent = sum(result.cpu_minutes.values())
    cost = f" It took {spent:.0f} CPU minutes." if spent else ""
    return f"This run: {'; '.join(sentences)}.{also}{lacks}{cost}"


def headline(result: Result) -> str:
    """What matters most, at each number of evaluations, whoever it favours."""
    lines = []
    for n in result.runs:
        if len(result.problems(n)) < FEWEST:
            lines.append(f"- **{n} evaluations.** Too few problems for an interval.")
            continue
        learned, none, cap, strong, tuned = (
            result.row(n, name) for name in (_LEARNED, UNGUIDED.name, "CFG 5, Cap 1.1", "CFG 5", _PAPER)
        )
        lines.append(
            f"- **{n} evaluations.** One setting for all: learned λ(t) {learned.regret}, no guidance "
            f"{none.regret}, CFG 5 {strong.regret}, with Cap 1.1 {cap.regret}. "
            f"Both tuned, Cap 1.1 is {_said(tuned.tuned)}; at equal alignment {_said(tuned.aligned)}."
        )
    return "\n".join(lines)


def apart(result: Result, path: Path) -> str:
    """Where rules differ at equal alignment, and why another draw of problems found more."""
    n = min(result.runs)
    found = {name: result.aligned_logs(n, name) for name in RULES}

    def means(inside: Callable[[Case], bool]) -> str:
        """Problems count alike."""
        some = [[v for one, v in logs.items() if inside(result.cases[one])] for logs in found.values()]
        return _listed(str(stratified_mean([one])) for one in some)

    separate, others = (
        means(lambda case, one=one: (case.overlap == "separate") == one) for one in (True, False)
    )
    first = {case.name for case in list(result.cases.values())[:APART]}
    return (
        f"The caps win if components are separate: {_listed(RULES)} have {separate} there, and {others} on "
        f"the other problems. Independent problems gave 0.87, 0.79 and 0.86 over all, probably because their "
        f"components are farther apart in more dimensions: with that one change our first {APART} problems "
        f"give [{_listed(str(read_apart(path, name)) for name in RULES)}](benchmark/apart.csv) instead of "
        f"{means(lambda case: case.name in first)}."
    )


def _listed(words: Iterable[str]) -> str:
    *first, last = words
    return f"{', '.join(first)} and {last}"


def table(result: Result, n: int) -> str:
    """At most 15 rows."""
    heads = ("one setting for all", "nine tenths", "worst", "tuned on each", "equal alignment", "reach it")
    lines = [f"| rule, {n} evaluations | {' | '.join(heads)} |", "|---|" + "---|" * len(heads)]
    for name in TABLE:
        row = result.row(n, name)
        spread = f"{row.regret_q90:.2f} | {row.regret_worst:.2f}" if row.regret.n else "– | –"
        reach = f"{row.reached} of {row.wanted}" if row.wanted else "–"
        cells = (_cell(row.regret), spread, _cell(row.tuned), _cell(row.aligned), reach)
        lines.append(f"| {'CFG' if name == FIXED.name else name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def aligned(result: Result) -> str:
    """Equal alignment: how many rules are better or worse, and the ends of the list."""
    verdicts = [verdict for verdict in _MARKS if verdict != "too few"]
    heads = ("evaluations", *verdicts, "lowest", "highest")
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for n, run in result.runs.items():
        found = {name: result.row(n, name).aligned for name in run["aligned"] if name != FIXED.name}
        counts = Counter(one.verdict for one in found.values())
        ends = (of(found, key=lambda name: found[name].value) for of in (min, max))
        cells = (n, *(counts[verdict] for verdict in verdicts), *(f"{name} {found[name]}" for name in ends))
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def where(result: Result) -> str:
    """What the regression finds for some rules, at the smallest number of evaluations."""
    n, lines = min(result.runs), []
    names = (*RULES, "density feedback, twice the calls")
    logs = {f"{name}, tuned": result.logs(n, name, "sw2 sw2") for name in names}
    logs |= {f"{name}, at equal alignment": result.aligned_logs(n, name) for name in RULES}
    terms = dict.fromkeys(term for one in logs.values() for term in regress(result, one) if term not in KINDS)
    for name, one in logs.items():
        found = regress(result, one)
        clear = [term in found and found[term].verdict in ("better", "worse") for term in terms]
        cells = [f"× {found[term]}" if yes else "" for term, yes in zip(terms, clear, strict=True)]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join([f"| rule | {' | '.join(terms)} |", "|---|" + "---|" * len(terms), *lines])


def regress(result: Result, logs: Logs) -> dict[str, Ratio]:
    """Plain regression of the log ratio: each kind at 8-D without a leak, then other factors."""
    cases = [result.cases[name] for name in logs]
    terms: dict[str, Callable[[Case], float]] = {
        kind: (lambda case, kind=kind: float(case.kind == kind))  # type: ignore[misc]
        for kind in KINDS
        if any(case.kind == kind for case in cases)
    }
    terms["twice the dimension"] = lambda case: math.log2(case.dimension / 8)
    terms["a tenth more leak"] = lambda case: case.leak / 0.1
    terms["twice the separation"] = lambda case: math.log2(OVERLAPS[case.overlap])
    terms["off the origin"] = lambda case: float(case.offset > 0)
    table = torch.tensor([[of(case) for of in terms.values()] for case in cases], dtype=torch.float64)
    return dict(zip(terms, least_squares(table, list(logs.values())), strict=True))


def least_squares(table: Tensor, values: Sequence[float]) -> list[Ratio]:
    """Coefficients as ratios; errors by White's formula with each residual's leverage (HC3)."""
    n, p = table.shape
    y = torch.tensor(values, dtype=torch.float64)
    if n < FEWEST + p:
        return [NOTHING] * p
    inverse = torch.linalg.pinv(table.T @ table)
    found = inverse @ table.T @ y
    leverage = ((table @ inverse) * table).sum(1)
    weights = ((y - table @ found) / (1 - leverage).clamp_min(1e-9)).square()
    half = student(n - p) * (inverse @ (table.T * weights) @ table @ inverse).diagonal().sqrt()
    rows = torch.stack([found, found - half, found + half], 1).exp()
    return [Ratio(value, low, high, n) for value, low, high in rows.tolist()]


def kinds(result: Result, n: int, names: tuple[str, ...], column: str | None) -> str:
    """Rules by the kind of error, and over all with an interval; by None at equal alignment."""
    return _by_kind(result, n, names, column, KINDS, {})


def recipes(result: Result, n: int) -> str:
    """The recipes of a user, on three kinds of error and over all, with the worst problem."""
    worst = {name: f"{result.row(n, name).regret_worst:.1f}" for name in _SHORT}
    return _by_kind(result, n, _SHORT, "all sw2", ("exact", "leak", "smeared"), worst)


def _by_kind(
    result: Result,
    n: int,
    names: Iterable[str],
    column: str | None,
    some: Iterable[str],
    last: dict[str, str],
) -> str:
    heads = [f"rule, {n} evaluations", *some, "all", *(["worst problem"] if last else [])]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for name in names:
        logs = result.aligned_logs(n, name) if column is None else result.logs(n, name, column)
        found = result.by_kind(logs)
        cells = [f"{found[kind].value:.2f}{_MARKS[found[kind].verdict]}" for kind in some]
        lines.append(
            f"| {' | '.join([name, *cells, _cell(result.mean(logs)), *last.get(name, '').split()])} |"
        )
    return "\n".join(lines)


def feedback(result: Result) -> str:
    """Density feedback with and without a leak of labels, at few and many evaluations."""
    lines = ["| rule | evaluations | labels leak | otherwise |", "|---|---|---|---|"]
    for n in dict.fromkeys((min(result.runs), max(result.runs))):
        for name in ("density feedback", "density feedback, twice the calls"):
            logs = result.logs(n, name, "sw2 sw2")
            sides = [
                result.mean({one: v for one, v in logs.items() if bool(result.cases[one].leak) == leaky})
                for leaky in (True, False)
            ]
            lines.append(f"| {name} | {n} | {' | '.join(_cell(side) for side in sides)} |")
    return "\n".join(lines)


def _cell(ratio: Ratio) -> str:
    return f"{ratio}{_MARKS[ratio.verdict]}" if ratio.n else "–"


def _said(ratio: Ratio) -> str:
    return f"{ratio.verdict} ({ratio})" if ratio.n else "not measured"


if __name__ == "__main__":
    publish(Path(sys.argv[1]), Path(sys.argv[-1]))
