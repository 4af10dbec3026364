"""What a benchmark found, in sentences: every number and every verdict is read off the tables.

A finding is for the paper's rule (the cap at gamma 1.1), against it, or neither; the page prints all three at
one size. "even" is where the 95 % interval of the paired difference holds 0, or the difference is below 1 %.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..lab.problems import problem as problem_named
from ..runs.bench.table_files import read_csv

Row = dict[str, Any]
PAPER, FIXED, ANCHORED = "pmc", "cfg", "anchored 1.1"
CALIBRATED = ("calibrated rms", "calibrated q90", "calibrated q97")
KINDS = {
    "exact": "exact models",
    "under-conditioned": "under-conditioned models",
    "leak": "models with a label leak",
    "both": "models with both errors",
}
_RIVALS = {
    "open_loop": "its own mean schedule, run open-loop",
    "open_loop_push": "the same schedule weighted by the gap",
    "fixed_mean": "fixed CFG at its mean effective scale",
    "fixed_push": "fixed CFG at the scale of the same total push",
}


@dataclass(frozen=True)
class Finding:
    """One sentence or two, and the result for the rule it is about: 'wins', 'loses' or 'even'."""

    verdict: str
    text: str
    about: str = "the paper's rule"


def findings(folder: Path) -> list[Finding]:
    """Everything the tables say about the paper's rule and its kin."""
    tables = {path.stem: read_csv(path) for path in sorted(folder.glob("*.csv"))}
    return [
        *_equal_scale(tables["equal_scale"]),
        *_unguided(tables["equal_scale"], tables["results"]),
        *_robust(tables["summary"]),
        *_tuned(tables["tuned"]),
        *_equal_alignment(tables["equal_alignment"]),
        *_averages(tables["open_loop"]),
        *_spread(tables["equal_scale"], tables["results"]),
        *_anchor(tables["calibration"]),
        *_calibrated(tables["calibration"]),
    ]


def _equal_scale(rows: list[Row]) -> list[Finding]:
    sentences = []
    # Where samples ran away there is no error to compare.
    fixed = {(r["problem"], r["scale"]): r["sw2"] for r in rows if r["family"] == FIXED and r["sw2"]}
    rows = [r for r in rows if r["sw2"] and (r["problem"], r["scale"]) in fixed]
    for kind, name in KINDS.items():
        own = [r for r in rows if r["family"] == PAPER and r["kind"] == kind]
        if not own:
            continue
        ratio = _geometric(r["sw2"] / fixed[r["problem"], r["scale"]] for r in own)
        worst = max(own, key=lambda r: r["sw2"] / fixed[r["problem"], r["scale"]])
        best = min(own, key=lambda r: r["sw2"] / fixed[r["problem"], r["scale"]])
        text = (
            f"**Equal nominal scale, {name}.** Against fixed CFG of the same λ the cap is "
            f"{_tally(own, 'sw2_vs_cfg')}; its SW2 is {_number(ratio)} times that of fixed CFG on geometric "
            f"average, between {_number(best['sw2'] / fixed[best['problem'], best['scale']])} "
            f"({best['problem']}, λ = {best['scale']:g}) and "
            f"{_number(worst['sw2'] / fixed[worst['problem'], worst['scale']])} ({worst['problem']}, λ = "
            f"{worst['scale']:g})."
        )
        sentences.append(Finding(_side(ratio, own, "sw2_vs_cfg"), text))
    return sentences


def _unguided(rows: list[Row], results: list[Row]) -> list[Finding]:
    """With an exact model there is nothing to correct, and the question is what guidance costs."""
    none = {r["problem"]: r for r in results if r["family"] == "unguided"}
    own = [r for r in rows if r["family"] == PAPER and r["kind"] == "exact" and r["scale"] == 3]
    if not own:
        return []
    worse = [r for r in own if r["sw2_low"] > none[r["problem"]]["sw2_high"]]
    each = _names(
        f"{r['problem']} {_number(r['sw2'])} against {_number(none[r['problem']]['sw2'])}" for r in own
    )
    text = (
        "**Exact models need no guidance.** At λ = 3 the cap has a larger SW2 than no guidance at all, with "
        f"intervals apart, in {len(worse)} of {len(own)} problems ({each}): here every rule is measured by "
        "how little it does."
    )
    return [Finding("loses" if worse else "even", text)]


def _robust(rows: list[Row]) -> list[Finding]:
    every = {r["family"]: r for r in rows if r["kind"] == "all"}
    if PAPER not in every or FIXED not in every:
        return []
    ranked = sorted((r for r in every.values() if r["group"] != "reference"), key=lambda r: r["worst"])
    place = [r["family"] for r in ranked].index(PAPER) + 1
    ratio = every[PAPER]["worst"] / every[FIXED]["worst"]
    text = (
        "**A scale chosen badly.** At the worst scale of the sweep, over all problems, SW2 is "
        f"{_stated(every[PAPER], 'worst')} times that of a perfect model for the cap and "
        f"{_stated(every[FIXED], 'worst')} times for fixed CFG. The cap is number {place} of {len(ranked)} "
        "rules by this; first are "
        f"{_names(r['family'] + ' (' + _number(r['worst']) + ')' for r in ranked[:3])}."
    )
    return [Finding("wins" if ratio < 1 else "loses", text)]


def _tuned(rows: list[Row]) -> list[Finding]:
    sentences = []
    for name in dict.fromkeys(r["problem"] for r in rows):
        here = {r["family"]: r for r in rows if r["problem"] == name}
        if problem_named(name).kind == "exact" or PAPER not in here:
            continue
        own, fixed = here[PAPER], here[FIXED]
        rivals = [r for r in here.values() if r["family"] not in ("unguided", "perfect model")]
        first = min(rivals, key=lambda r: r["sw2"])
        known = problem_named(name).best_scale
        optimum = f", the exact optimum being λ = {known:g}," if known else ""
        text = (
            f"**Every rule at its own best scale, {name}.** Fixed CFG{optimum} reaches SW2 "
            f"{_stated(fixed, 'sw2')} at λ = {fixed['scale']:g}; the cap {_stated(own, 'sw2')} at λ = "
            f"{own['scale']:g}, {_number(own['sw2'] / fixed['sw2'])} times as much "
            f"({own['sw2_vs_cfg_verdict']}). The best of all rules is {first['family']} with "
            f"{_stated(first, 'sw2')}."
        )
        sentences.append(Finding(_verdict(own["sw2_vs_cfg_verdict"]), text))
    return sentences


def _equal_alignment(rows: list[Row]) -> list[Finding]:
    sentences = []
    for name in dict.fromkeys(r["problem"] for r in rows):
        here = {r["family"]: r for r in rows if r["problem"] == name}
        own, fixed = here.get(PAPER), here.get(FIXED)
        if own is None or fixed is None:
            continue
        ranked = sorted((r for r in here.values() if r["reached"] and r["resolved"]), key=lambda r: r["sw2"])
        first = _names(f"{r['family']} ({_number(r['sw2'])})" for r in ranked[:3])
        head = f"**Equal alignment {_number(own['alignment'])}, {name}.** "
        if own["reached"] and not (own["resolved"] and (fixed["resolved"] or not fixed["reached"])):
            sentences.append(Finding("even", f"{head}This sweep is too coarse there to tell. Best: {first}."))
            continue
        if not own["reached"]:
            highest = _number(own["highest"])
            text = f"{head}The cap never gets there: {highest} at most on this sweep. Best: {first}."
            sentences.append(Finding("loses" if fixed["reached"] else "even", text))
            continue
        other = f"fixed CFG {_stated(fixed, 'sw2')}" if fixed["reached"] else "fixed CFG never gets there"
        text = (
            f"{head}The cap has SW2 {_stated(own, 'sw2')}, {other} "
            f"({own['sw2_vs_cfg_verdict'] or 'not comparable'}); number "
            f"{[r['family'] for r in ranked].index(PAPER) + 1} of the {len(ranked)} rules that reach it. "
            f"Best: {first}."
        )
        sentences.append(Finding(_verdict(own["sw2_vs_cfg_verdict"]), text))
    return sentences


def _averages(rows: list[Row]) -> list[Finding]:
    own = [r for r in rows if r["family"] == PAPER]
    sentences = []
    for key, name in _RIVALS.items():
        known = [r for r in own if r.get(f"sw2_{key}")]
        if not known:
            continue
        ratio = _geometric(r["sw2"] / r[f"sw2_{key}"] for r in known)
        each = _names(
            f"{r['problem']} {_number(r['sw2'] / r[f'sw2_{key}'])}"
            for r in known
            if r["scale"] == known[0]["scale"]
        )
        text = (
            f"**More than a weaker CFG? Against {name}** the cap is {_tally(known, f'sw2_vs_{key}')}; SW2 "
            f"ratio {_number(ratio)} on geometric average (at λ = {known[0]['scale']:g}: {each})."
        )
        sentences.append(Finding(_side(ratio, known, f"sw2_vs_{key}"), text))
    return sentences


def _spread(rows: list[Row], results: list[Row]) -> list[Finding]:
    perfect = {r["problem"]: r for r in results if r["family"] == "perfect model"}
    own = [r for r in rows if r["family"] == PAPER and r["scale"] == 3 and r["kind"] == "exact"]
    parts = [
        f"{r['problem']} {_number(r['radial'] / perfect[r['problem']]['radial'])} radial and "
        f"{_number(r['tangential'] / perfect[r['problem']]['tangential'])} tangential"
        for r in own
    ]
    if not own:
        return []
    lost = any(r["tangential"] < 0.9 * perfect[r["problem"]]["tangential"] for r in own)
    text = (
        "**What the trace of the covariance hides.** Variance within a mode at λ = 3, over that of a "
        f"perfect model with the same steps: {_names(parts)}."
    )
    return [Finding("loses" if lost else "even", text)]


def _anchor(rows: list[Row]) -> list[Finding]:
    here = [r for r in rows if r["family"] == ANCHORED and _far(r["problem"]) and r["scale"] >= 3]
    if not here:
        return []
    shown = [r for r in here if r["scale"] in (3, 9)]
    each = _names(f"{r['problem']} λ = {r['scale']:g}: {_number(1 / r['sw2_ratio_pmc'])}" for r in shown)
    ratio = _geometric(r["sw2_ratio_pmc"] for r in here)
    text = (
        "**Data away from the origin.** Measured from the origin, as in the paper, the cap's SW2 is "
        f"{_number(1 / ratio)} times that of the same cap measured from the mean of the data (geometric "
        f"average for λ ≥ 3; {each})."
    )
    return [Finding("loses" if ratio < 1 else "wins", text)]


def _calibrated(rows: list[Row]) -> list[Finding]:
    sentences = []
    for family in CALIBRATED:
        for kind, name in KINDS.items():
            here = [r for r in rows if r["family"] == family and r["kind"] == kind]
            if not here:
                continue
            ratio = _geometric(r["sw2_ratio_pmc"] for r in here)
            worst = max(here, key=lambda r: r["sw2_ratio_pmc"])
            best = min(here, key=lambda r: r["sw2_ratio_pmc"])
            text = (
                f"**Calibration, {family}, {name}.** Against Γ = 1.1 at the same λ it is "
                f"{_tally(here, 'sw2_vs_pmc')}; SW2 ratio {_number(ratio)} on geometric average, from "
                f"{_number(best['sw2_ratio_pmc'])} ({best['problem']}, λ = {best['scale']:g}) to "
                f"{_number(worst['sw2_ratio_pmc'])} ({worst['problem']}, λ = {worst['scale']:g})."
            )
            sentences.append(Finding(_side(ratio, here, "sw2_vs_pmc"), text, "calibration"))
    return sentences


def _far(problem: str) -> bool:
    mixture = problem_named(problem).condition().mixture
    return float(mixture.mean.norm()) > 1


def _side(ratio: float, rows: Iterable[Row], key: str) -> str:
    """A win needs a smaller error on average and four settings won for each one lost; a loss the opposite."""
    seen = Counter(r[f"{key}_verdict"] for r in rows)
    if ratio < 1 and seen["better"] > 0 and seen["better"] >= 4 * seen["worse"]:
        return "wins"
    return "loses" if ratio > 1 and seen["worse"] > 0 and seen["worse"] >= 4 * seen["better"] else "even"


def _verdict(word: str | None) -> str:
    return {"better": "wins", "worse": "loses"}.get(word or "", "even")


def _tally(rows: Iterable[Row], key: str) -> str:
    seen = Counter(r[f"{key}_verdict"] for r in rows)
    counts = [seen[word] for word in ("better", "even", "worse")]
    return f"better in {counts[0]}, even in {counts[1]} and worse in {counts[2]} of {sum(counts)} settings"


def _geometric(values: Iterable[float]) -> float:
    logs = [math.log(v) for v in values]
    return math.exp(sum(logs) / len(logs))


def _number(value: float) -> str:
    return f"{value:.3g}"


def _stated(row: Row, key: str) -> str:
    low, high = row[f"{key}_low"], row[f"{key}_high"]
    if low is None or high is None:
        return _number(row[key])
    return f"{row[key]:.4g} [{max(low, 0.0):.4g}, {high:.4g}]"


def _names(parts: Iterable[str]) -> str:
    return ", ".join(parts)
