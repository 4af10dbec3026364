"""The tables of a report on scored runs, and sentences filled from them.

No sentence claims more than an interval supports.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from io import StringIO

from ..metrics.protocols import PROTOCOLS, direction
from ..metrics.score import Estimate
from ..runs.paper_protocols import paper_table
from .document import Table
from .scored_runs import (
    DISTANCES,
    FEWEST,
    ScoredRun,
    alignment_of,
    at_alignment,
    both_have,
    clear,
    companions,
    contrast,
    sweeps,
)

_ARROWS = {-1: "↓", 0: "", 1: "↑"}
# Which table of the paper a protocol belongs to, and what its columns are called there.
PAPER = {
    "adm-imagenet256": (
        "imagenet",
        {"FID": "fid", "sFID": "sfid", "IS": "is", "precision": "precision", "recall": "recall"},
    ),
    "coco-torchmetrics": ("sd35", {"FID": "fid"}),
    "coco-cleanfid-recall": ("sd35", {"Recall@3": "recall_at_3"}),
    "clip-b32": ("sd35", {"CLIP": "clip"}),
    "imagereward-1.0": ("sd35", {"ImageReward": "image_reward"}),
    "hsv": ("sd35", {"saturation": "saturation"}),
}  # fmt: skip

# Which of our caps the paper's PMC-CFG is in each table; an anchored or a calibrated one is another method.
CAPS = {"imagenet": "PMC-CFG", "sd35": "PMC-CFG, displacement"}


def numbers_of(entries: Sequence[ScoredRun], protocol: str) -> list[str]:
    """The numbers of a protocol, in its own order."""
    names = dict.fromkeys(name for e in entries for name in e.scores.get(protocol, {}))
    return [name for name in names if measures(protocol, name)]


def measures(protocol: str, number: str) -> bool:
    """Whether a number is the protocol's own, and not lent by another one for comparisons."""
    return protocol not in PROTOCOLS or number in PROTOCOLS[protocol].numbers


def titled(number: str) -> str:
    """A score with an arrow towards what is better."""
    return f"{number}{_ARROWS[direction(number)]}"


def cell(e: Estimate | None, *, sign: bool = False) -> str:
    """A value with half of its 95 % interval, to the digits that it leaves; few images have none."""
    if e is None:
        return "—"
    interval = e.interval()
    plus = "+" if sign else ""
    if interval is None or e.n < FEWEST:
        return f"{e.value:{plus}.4g}"
    half = (interval[1] - interval[0]) / 2
    places = 0 if half >= 10 else 1 if half >= 1 else 2 if half >= 0.1 else 3 if half >= 0.01 else 4
    return f"{e.value:{plus}.{places}f} ± {half:.{places}f}"


def results(entries: Sequence[ScoredRun], protocol: str) -> Table:
    """Every run with every number, by scale; the best of each column and evaluation count is strong."""
    columns = numbers_of(entries, protocol)
    chosen = [e for e in entries if protocol in e.scores]
    best = {(n, c): _best(chosen, protocol, c, n) for n in {e.evaluations for e in chosen} for c in columns}
    groups: dict[tuple[int, float], list[tuple[str, ...]]] = {}
    for e in chosen:
        cells = []
        for c in columns:
            text = cell(e.scores[protocol].get(c))
            cells.append(f"**{text}**" if best[e.evaluations, c] is e else text)
        kept = "—" if e.kept is None else f"{e.kept:.2f}"
        line = (_method(e), _number(e.name.scale), _gamma(e), str(e.evaluations), kept, *cells)
        groups.setdefault((e.evaluations, e.name.scale or 0.0), []).append(line)
    head = ("method", "λ", "Γ", "evaluations", "mean λ in effect")
    return Table((*head, *map(titled, columns)), tuple(tuple(g) for g in groups.values()), names=4)


def beside_paper(entries: Sequence[ScoredRun], protocol: str) -> Table | None:
    """Ours beside the paper's values, row by row; None where the paper has no such protocol."""
    if protocol not in PAPER:
        return None
    table, columns = PAPER[protocol]
    rows = []
    for row in paper_table(table):
        gamma, scale = row["gamma"], float(row["scale"])
        match = [
            e
            for e in entries
            if protocol in e.scores
            and e.name.method == (CAPS[table] if row["method"] == "PMC-CFG" else row["method"])
            and e.name.scale == scale
            and (not gamma or e.name.gamma == float(gamma))
            and e.evaluations == int(row.get("evaluations") or 10)
        ]
        ours = match[0].scores[protocol] if match else {}
        cells = [text for name, key in columns.items() for text in (row[key], cell(ours.get(name)))]
        count = row.get("evaluations") or "10"
        rows.append((row["method"], _number(scale), gamma or "—", count, *cells))
    head = [text for name in columns for text in (f"{titled(name)} paper", "ours")]
    return Table(("method", "λ", "Γ", "evaluations", *head), (tuple(rows),), names=4)


def equal_scale(entries: Sequence[ScoredRun], protocol: str, columns: Sequence[str]) -> Table:
    """Each rule minus fixed CFG at the same nominal scale and evaluations, image by image."""
    chosen = [e for e in entries if protocol in e.scores]
    groups: dict[tuple[int, float], list[tuple[str, ...]]] = {}
    for e in (e for e in chosen if e.name.method != _BASE):
        at = [b for b in chosen if b.evaluations == e.evaluations and b.name.scale == e.name.scale]
        for b in companions([b for b in at if b.name.method == _BASE], e)[:1]:
            cells = [
                marked(contrast(e, b, protocol, c), c) if both_have(e, b, protocol, c) else "—"
                for c in columns
            ]
            line = (_method(e), _number(e.name.scale), _gamma(e), str(e.evaluations), *cells)
            groups.setdefault((b.evaluations, b.name.scale or 0.0), []).append(line)
    head = ("method − fixed CFG", "λ", "Γ", "evaluations")
    return Table((*head, *map(titled, columns)), tuple(tuple(g) for g in groups.values()), names=4)


def equal_alignment(entries: Sequence[ScoredRun], protocol: str, columns: Sequence[str]) -> Table | None:
    """Each rule where it aligns as well as fixed CFG at some scale, minus fixed CFG there."""
    curves = sweeps(entries, protocol)
    groups = []
    for (evaluations, label), runs in curves.items():
        if label != _BASE:
            continue
        for b in (e for e in runs if e.name.method == _BASE):
            alignment = alignment_of(b.scores[protocol])
            if alignment is None:
                return None
            level = b.scores[protocol][alignment]
            own = f"at fixed CFG's λ = {_number(b.name.scale)}: {level.value:.3f}"
            lines = [
                (
                    own,
                    name,
                    str(evaluations),
                    *(_reached(at_alignment(sweep, b, protocol, c), c) for c in columns),
                )
                for (n, name), sweep in curves.items()
                if n == evaluations and name != _BASE
            ]
            groups.append(tuple(lines))
    head = ("alignment", "method − fixed CFG", "evaluations")
    return Table((*head, *map(titled, columns)), tuple(groups), names=3) if groups else None


def _reached(d: Estimate | None, number: str) -> str:
    return "not reached" if d is None else marked(d, number)


def as_csv(entries: Sequence[ScoredRun]) -> str:
    """Everything as one plain table: a line per run and number."""
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    head = ["run", "rule", "method", "scale", "gamma", "evaluations", "n", "mean_effective_scale"]
    writer.writerow([*head, "number", "value", "low", "high", "protocol"])
    for e in entries:
        for protocol, scores in e.scores.items():
            for number, s in ((k, v) for k, v in scores.items() if measures(protocol, k)):
                low, high = s.interval() or ("", "")
                own = [
                    e.folder.name,
                    e.rule,
                    e.name.method,
                    e.name.scale,
                    e.name.gamma,
                    e.evaluations,
                    s.n,
                    e.kept,
                ]
                writer.writerow([*own, number, s.value, low, high, e.protocols[protocol]])
    return text.getvalue()


def marked(e: Estimate, number: str) -> str:
    """A difference; strong where its interval leaves zero out and it is for the better."""
    text = cell(e, sign=True)
    return f"**{text}**" if clear(e) and clear(e) == direction(number) else text


def _best(entries: Sequence[ScoredRun], protocol: str, number: str, evaluations: int) -> ScoredRun | None:
    if not direction(number):
        return None
    having = [e for e in entries if e.evaluations == evaluations and number in e.scores[protocol]]
    return max(having, key=lambda e: direction(number) * e.scores[protocol][number].value, default=None)


def _method(e: ScoredRun) -> str:
    return e.name.method


def _gamma(e: ScoredRun) -> str:
    return "—" if e.name.gamma is None else f"{e.name.gamma:.2f}"


def _number(value: float | None) -> str:
    return "—" if value is None else f"{value:g}"


_BASE, _RIVAL = "Fixed CFG", "PMC-CFG"


def reading(entries: Sequence[ScoredRun], protocol: str) -> list[str]:
    """The paper's claim, tested on these runs: is the cap better in distance and recall at large scales?"""
    chosen = [e for e in entries if protocol in e.scores]
    numbers = _judged(chosen, protocol)
    said = []
    for evaluations in sorted({e.evaluations for e in chosen}) if numbers else ():
        some = [e for e in chosen if e.evaluations == evaluations]
        said += _best_scale(some, protocol, numbers[0], evaluations)
        said += _largest_scale(some, protocol, numbers, evaluations)
    return said


def _judged(entries: Sequence[ScoredRun], protocol: str) -> list[str]:
    """The numbers that the paper's claim is about, distance first; none where there is no distance."""
    have = {name for e in entries for name in e.scores.get(protocol, {})}
    distance = [d for d in DISTANCES if d in have][:1]
    return [*distance, *(r for r in ("recall", "Recall@3") if r in have)] if distance else []


def tally(entries: Sequence[ScoredRun], protocol: str) -> Table | None:
    """In how many comparisons each cap is better or worse than fixed CFG, by 95 % intervals."""
    chosen = [e for e in entries if protocol in e.scores]
    numbers, curves = _judged(chosen, protocol), sweeps(chosen, protocol)
    labels = list(dict.fromkeys(label for _, label in curves if label != _BASE))
    groups = []
    for label in labels:
        lines = []
        for how in ("equal scale", "equal alignment"):
            for number in numbers:
                counts = {"better": 0, "worse": 0, "undecided": 0, "not reached": 0}
                for evaluations in sorted({n for n, _ in curves}):
                    sweep = curves.get((evaluations, label), [])
                    for b in (e for e in curves.get((evaluations, _BASE), []) if e.name.method == _BASE):
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
    fixed = [e for e in entries if e.name.method == _BASE and e.name.scale is not None]
    if not fixed:
        return []
    largest = max(e.name.scale or 0.0 for e in fixed)
    said = []
    for e in entries:
        if e.name.method.startswith(_RIVAL) and e.name.scale == largest:
            b = companions([one for one in fixed if one.name.scale == largest], e)[0]
            parts = [_change(e, b, protocol, n) for n in numbers if both_have(e, b, protocol, n)]
            said.append(
                f"At the largest scale, λ = {largest:g} with {evaluations} evaluations, {e.name.label} "
                f"against fixed CFG at the same scale: {'; '.join(parts)}."
            )
    return said


def _best_scale(entries: Sequence[ScoredRun], protocol: str, distance: str, evaluations: int) -> list[str]:
    having = [e for e in entries if e.name.scale is not None and distance in e.scores[protocol]]
    fixed = [e for e in having if e.name.method == _BASE]
    capped = [e for e in having if e.name.method.startswith(_RIVAL)]
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
