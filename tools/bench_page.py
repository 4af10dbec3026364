"""The parts of the documents that follow from a benchmark's result: the same sentences for every result.

    python tools/bench_page.py out/full docs    publish a run
    python tools/bench_page.py docs             again, from what the documents keep

keeps result.json, rules.csv, kinds.csv, leaderboard.html and two figures in docs/benchmark/, and fills the
marked parts of docs/benchmark.md and docs/choosing.md.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

from meancap.bench.cases import KINDS
from meancap.bench.families import FIXED, UNGUIDED
from meancap.bench.leaderboard import write_report
from meancap.bench.ratios import FEWEST, Ratio, Result
from meancap.files import write_whole
from meancap.report.document import with_parts

PAGES = ("benchmark.md", "choosing.md")
_PAPER = "Cap 1.1 (the paper)"
_LEARNED = "learned λ(t), 512 examples, shrunk"
# The one table of the page: recipes without a knob, then rules with knobs.
TABLE = (
    _LEARNED, "learned λ(t), 64 examples", "learned λ(t), 512, labels as in training",
    "CFG 2, calibrated cap rms", "CFG 5, anchored cap 1.1", UNGUIDED.name, "CFG 5, Cap 1.1", "CFG 5",
    FIXED.name, _PAPER, "anchored cap, Γ tuned", "calibrated cap, q90", "interval", "density feedback", "apg",
)  # fmt: skip
_CAPS = (
    _PAPER, "Cap, Γ tuned", "anchored cap, Γ tuned", "displacement cap, Γ tuned", "calibrated cap, rms",
    "calibrated cap, q90",
)  # fmt: skip
_TUNED = (*_CAPS, "interval", "apg", "autoguidance", "density feedback", "density feedback, twice the calls")
_RECIPES = (
    _LEARNED, "learned λ(t), 512 examples", "learned λ(t), 64 examples",
    "learned λ(t), 512, labels as in training", "learned λ(t), 512, a fifth mislabelled",
    "learned λ(t), 512, anchored cap 1.1", "CFG 2, calibrated cap rms", "CFG 5, anchored cap 1.1",
    "CFG 2, Cap 1.1", "CFG 5, Cap 1.1", "CFG 9, Cap 1.1", "CFG 1.5", "CFG 5", UNGUIDED.name,
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
            "where": where(result),
        },
        "choosing.md": {
            "kinds tuned": kinds(result, few, _TUNED, "sw2 sw2"),
            "kinds recipes": kinds(result, few, _RECIPES, "all sw2"),
            "reading": reading(result),
            "feedback": feedback(result),
            "gamma reading": gammas(result),
        },
    }
    return {name: with_parts((docs / name).read_text(encoding="utf-8"), some) for name, some in parts.items()}


def ran(result: Result) -> str:
    """Exactly what was run."""
    sentences = []
    for n in result.runs:
        names = result.problems(n)
        counts = Counter(result.cases[name].kind for name in names)
        least, most = min(counts.values()), max(counts.values())
        each = (
            f"{least}"
            if least == most
            else f"{least} or {most}"
            if most == least + 1
            else f"{least} to {most}"
        )
        sentences.append(
            f"**{len(names)} of {len(result.cases)} problems at {n} evaluations** ({each} of each kind)"
        )
    rows = result.rows(min(result.runs))
    fewer = [row for row in rows if 0 < row.regret.n < len(result.problems(min(result.runs)))]
    also = (
        f" {len(fewer)} further rules of the catalogue ran on {fewer[0].regret.n} of them." if fewer else ""
    )
    missing = [str(n) for n in (10, 28, 50) if n not in result.runs]
    lacks = f" Nothing was run at {' and '.join(missing)} evaluations." if missing else ""
    return f"This run: {'; '.join(sentences)}.{also}{lacks}"


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
            f"- **{n} evaluations.** One setting for all: learned λ(t) {learned.regret} "
            f"(worst {learned.regret_worst:.1f}), no guidance {none.regret}, "
            f"CFG 5 with the paper's cap {cap.regret}, without it {strong.regret}. "
            f"Both tuned, the paper's cap is {_said(tuned.tuned)}; "
            f"at equal alignment {_said(tuned.aligned)}."
        )
    return "\n".join(lines)


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
    """Equal alignment: who is better, and how many problems that is."""
    lines = []
    for n, run in result.runs.items():
        found = {name: result.row(n, name).aligned for name in run["aligned"] if name != FIXED.name}
        clear = {name: one for name, one in found.items() if one.verdict in ("better", "worse")}
        even = sum(one.verdict == "even" for one in found.values())
        rest = f"{even} even, {len(found) - len(clear) - even} undecided"
        lines.append(f"- {n} evaluations: {_sorted(clear) if clear else 'none better or worse'}; {rest}.")
    return "\n".join(lines)


def where(result: Result) -> str:
    """What the regression finds for some rules, at the smallest number of evaluations."""
    n, lines = min(result.runs), []
    for name, column in (
        (_PAPER, "sw2 sw2"),
        ("calibrated cap, q90", "sw2 sw2"),
        ("density feedback", "sw2 sw2"),
    ):
        found = result.regress(result.logs(n, name, column))
        terms = {term: ratio for term, ratio in found.items() if term not in KINDS and ratio.n}
        clear = [f"{term} × {ratio}" for term, ratio in terms.items() if ratio.verdict in ("better", "worse")]
        lines.append(f"- {name}, tuned: {'; '.join(clear) if clear else 'no clear dependence'}.")
    return "\n".join(lines)


def kinds(result: Result, n: int, names: tuple[str, ...], column: str) -> str:
    """Rules by the kind of error, with intervals where there are ten problems."""
    lines = [f"| rule, {n} evaluations | {' | '.join(KINDS)} | all |", "|---|" + "---|" * (len(KINDS) + 1)]
    for name in names:
        logs = result.logs(n, name, column)
        found = result.by("kind", logs)
        cells = [_cell(found[kind]) for kind in KINDS] + [_cell(result.mean(logs))]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def reading(result: Result) -> str:
    """For each kind of error who beats tuned CFG when tuned, who loses, and what is undecided."""
    n, lines = min(result.runs), []
    for kind in KINDS:
        found = {name: result.by("kind", result.logs(n, name, "sw2 sw2"))[kind] for name in _TUNED}
        clear = {name: one for name, one in found.items() if one.verdict in ("better", "worse", "too few")}
        open_ = [name for name, one in found.items() if one.verdict == "undecided"]
        said = _sorted(clear) if clear else "none better or worse"
        lines.append(f"- **{kind}**: {said}; undecided: {', '.join(open_) or 'none'}.")
    return "\n".join(lines)


def feedback(result: Result) -> str:
    """Density feedback with a leak and without, at each number of evaluations."""
    lines = []
    for n in result.runs:
        for name in ("density feedback", "density feedback, twice the calls"):
            logs = result.logs(n, name, "sw2 sw2")
            sides = [
                result.mean({one: v for one, v in logs.items() if bool(result.cases[one].leak) == leaky})
                for leaky in (True, False)
            ]
            with_, without = (f"{_said(side)}, {side.n} problems" for side in sides)
            lines.append(f"- {n} evaluations, {name}, tuned: where labels leak {with_}; elsewhere {without}.")
    return "\n".join(lines)


def gammas(result: Result) -> str:
    """The paper's cap at three scales as one setting for all, and every cap tuned."""
    lines = []
    for n in result.runs:
        rows = {s: result.row(n, f"CFG {s}, Cap 1.1") for s in (2, 5, 9)}
        costs = ", ".join(f"λ = {s}: {row.regret}, worst {row.regret_worst:.1f}" for s, row in rows.items())
        caps = _sorted({name: result.row(n, name).tuned for name in _CAPS})
        lines.append(
            f"- **{n} evaluations.** `Cap(1.1)` with one λ for all problems, over CFG tuned on each: "
            f"{costs}. Both tuned, over CFG: {caps}."
        )
    return "\n".join(lines)


def _sorted(found: dict[str, Ratio]) -> str:
    """Rules by their verdicts, each with its ratio."""
    words = []
    for verdict in ("better", "even", "undecided", "worse", "too few"):
        some = sorted(
            (ratio.value, f"{name} {ratio}")
            for name, ratio in found.items()
            if ratio.n and ratio.verdict == verdict
        )
        if some:
            label = "fewer than ten problems" if verdict == "too few" else verdict
            words.append(f"{label}: {', '.join(text for _, text in some)}")
    return "; ".join(words) or "not run"


def _cell(ratio: Ratio) -> str:
    return f"{ratio}{_MARKS[ratio.verdict]}" if ratio.n else "–"


def _said(ratio: Ratio) -> str:
    return f"{ratio.verdict} ({ratio})" if ratio.n else "not measured"


if __name__ == "__main__":
    publish(Path(sys.argv[1]), Path(sys.argv[-1]))
