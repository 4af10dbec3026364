"""What the numbers say, in sentences filled from them; no sentence claims more than an interval supports."""

from __future__ import annotations

from collections.abc import Sequence

from ...metrics.protocols import direction
from ...metrics.score import Estimate
from ..document import Table
from .collect import ScoredRun
from .compare import at_alignment, both_have, clear, companions, contrast, sweeps
from .fronts import DISTANCES

BASE, RIVAL = "Fixed CFG", "PMC-CFG"


def reading(entries: Sequence[ScoredRun], protocol: str) -> list[str]:
    """The paper's claim, tested on these runs: is the cap better in distance and recall at large scales?"""
    chosen = [e for e in entries if protocol in e.scores]
    numbers = judged(chosen, protocol)
    said = []
    for evaluations in sorted({e.evaluations for e in chosen}) if numbers else ():
        some = [e for e in chosen if e.evaluations == evaluations]
        said += _best_scale(some, protocol, numbers[0], evaluations)
        said += _largest_scale(some, protocol, numbers, evaluations)
    return said


def judged(entries: Sequence[ScoredRun], protocol: str) -> list[str]:
    """The numbers that the paper's claim is about, distance first; none where there is no distance."""
    have = {name for e in entries for name in e.scores.get(protocol, {})}
    distance = [d for d in DISTANCES if d in have][:1]
    return [*distance, *(r for r in ("recall", "Recall@3") if r in have)] if distance else []


def tally(entries: Sequence[ScoredRun], protocol: str) -> Table | None:
    """In how many comparisons each cap is better or worse than fixed CFG, by 95 % intervals."""
    chosen = [e for e in entries if protocol in e.scores]
    numbers, curves = judged(chosen, protocol), sweeps(chosen, protocol)
    labels = list(dict.fromkeys(label for _, label in curves if label != BASE))
    groups = []
    for label in labels:
        lines = []
        for how in ("equal scale", "equal alignment"):
            for number in numbers:
                counts = {"better": 0, "worse": 0, "undecided": 0, "not reached": 0}
                for evaluations in sorted({n for n, _ in curves}):
                    sweep = curves.get((evaluations, label), [])
                    for b in (e for e in curves.get((evaluations, BASE), []) if e.name.method == BASE):
                        d = _compared(how, sweep, b, protocol, number)
                        counts["not reached" if d is None else word(d, number)] += 1
                lines.append((label, how, number, *(str(v) if v else "·" for v in counts.values())))
        groups.append(tuple(lines))
    columns = ("method", "against fixed CFG at", "number", "better", "worse", "undecided", "not reached")
    return Table(columns, tuple(groups), names=3) if groups and numbers else None


def _compared(
    how: str, sweep: Sequence[ScoredRun], b: ScoredRun, protocol: str, number: str
) -> Estimate | None:
    if how == "equal alignment":
        return at_alignment(sweep, b, protocol, number)
    same = [e for e in sweep if e.name.scale == b.name.scale and both_have(e, b, protocol, number)]
    return contrast(companions(same, b)[0], b, protocol, number) if same else None


def _largest_scale(
    entries: Sequence[ScoredRun], protocol: str, numbers: Sequence[str], evaluations: int
) -> list[str]:
    fixed = [e for e in entries if e.name.method == BASE and e.name.scale is not None]
    if not fixed:
        return []
    largest = max(e.name.scale or 0.0 for e in fixed)
    said = []
    for e in entries:
        if e.name.method.startswith(RIVAL) and e.name.scale == largest:
            b = companions([one for one in fixed if one.name.scale == largest], e)[0]
            parts = [_change(e, b, protocol, n) for n in numbers if both_have(e, b, protocol, n)]
            said.append(
                f"At the largest scale, λ = {largest:g} with {evaluations} evaluations, {e.name.label} "
                f"against fixed CFG at the same scale: {'; '.join(parts)}."
            )
    return said


def _best_scale(entries: Sequence[ScoredRun], protocol: str, distance: str, evaluations: int) -> list[str]:
    having = [e for e in entries if e.name.scale is not None and distance in e.scores[protocol]]
    fixed = [e for e in having if e.name.method == BASE]
    capped = [e for e in having if e.name.method.startswith(RIVAL)]
    if not fixed or not capped:
        return []

    def value(e: ScoredRun) -> float:
        return e.scores[protocol][distance].value

    a, b = min(capped, key=value), min(fixed, key=value)
    gap = contrast(a, b, protocol, distance)
    verdict = _verdict(gap, distance, "the best cap", "fixed CFG at its best scale")
    return [
        f"Each at its own best scale with {evaluations} evaluations, {distance} is {value(a):.3f} for "
        f"{a.name.label} (λ = {a.name.scale:g}) and {value(b):.3f} for fixed CFG (λ = {b.name.scale:g}): "
        f"{verdict}."
    ]


def _change(e: ScoredRun, b: ScoredRun, protocol: str, number: str) -> str:
    d = contrast(e, b, protocol, number)
    interval = d.interval()
    span = "" if interval is None else f" [{interval[0]:+.3f}, {interval[1]:+.3f}]"
    one, two = e.scores[protocol][number].value, b.scores[protocol][number].value
    return f"{number} {one:.3f} instead of {two:.3f}, difference {d.value:+.3f}{span}: {word(d, number)}"


def word(d: Estimate, number: str) -> str:
    """What an interval says of a difference: better, worse or undecided."""
    sign = clear(d)
    return "undecided" if not sign else "better" if sign == direction(number) else "worse"


def _verdict(d: Estimate, number: str, ours: str, theirs: str) -> str:
    sign = clear(d)
    if not sign:
        return f"{ours} and {theirs} cannot be told apart"
    return f"{ours} is {'better' if sign == direction(number) else 'worse'} than {theirs}"
