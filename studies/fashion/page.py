"""The page of the fashion study: readings.csv, comparisons with fixed CFG, tables and fronts."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from itertools import pairwise
from pathlib import Path

import torch

from meancap.files import write_whole
from meancap.metrics.score import Estimate, difference
from meancap.report import score_page as tables
from meancap.report.document import Table
from meancap.report.score_page import cell, fronts, marked
from meancap.report.scored_runs import ScoredRun, in_order, method_name
from studies.common import Row, markdown, read_csv

REAL = "Test pictures"
PROTOCOL = "fashion"
COMPARED = ("FD-fashion", "recall", "diversity")
FIXED = ("Fixed CFG", "Conditional")
COLUMNS = ("method", "scale", "gamma", "evaluations", "rule", "scale used", "n", "number", "value")


@dataclass(frozen=True)
class Pooled:
    """One setting of the study over all its seeds."""

    method: str
    scale: float | None
    gamma: float | None
    evaluations: int
    rule: str
    used: float  # the effective scale, mean over steps and pictures
    numbers: Mapping[str, Estimate]
    seeds: Mapping[str, tuple[float, ...]]


def write_pooled(settings: Sequence[Pooled], path: Path) -> Path:
    """A line for each setting and number; the file appears whole or not at all."""
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*COLUMNS, "seeds", "parts"])
    for s in settings:
        scale, gamma = ("" if v is None else f"{v:g}" for v in (s.scale, s.gamma))
        for i, (name, e) in enumerate(s.numbers.items()):
            rule = s.rule if i == 0 else ""  # that of a calibrated cap is long
            parts = [] if e.parts is None else e.parts.tolist()
            lists = [" ".join(f"{v:.5g}" for v in values) for values in (s.seeds.get(name, ()), parts)]
            about = [s.method, scale, gamma, s.evaluations, rule, f"{s.used:.5g}", e.n]
            writer.writerow([*about, name, f"{e.value:.6g}", *lists])
    return write_whole(path, text.getvalue())


def read_pooled(path: Path) -> list[Pooled]:
    """What `write_pooled` wrote."""
    groups: dict[tuple[str, ...], list[dict[str, str]]] = {}
    for row in read_csv(path):
        groups.setdefault(tuple(row[name] for name in COLUMNS[:4]), []).append(row)
    settings = []
    for lines in groups.values():
        first, numbers, seeds = lines[0], {}, {}
        for row in lines:
            parts = torch.tensor([float(v) for v in row["parts"].split()], dtype=torch.float64)
            own = parts if len(parts) else None
            numbers[row["number"]] = Estimate(row["number"], float(row["value"]), int(row["n"]), own)
            seeds[row["number"]] = tuple(float(v) for v in row["seeds"].split())
        scale, gamma = (float(first[k]) if first[k] else None for k in ("scale", "gamma"))
        about = first["method"], scale, gamma, int(first["evaluations"]), first["rule"]
        settings.append(Pooled(*about, float(first["scale used"]), numbers, seeds))
    return settings


def runs_of(settings: Sequence[Pooled]) -> list[ScoredRun]:
    """The settings as runs that share their noise, in the order of the paper's tables."""
    return in_order(
        ScoredRun(
            Path(s.method), s.rule, method_name(s.rule), s.evaluations, next(iter(s.numbers.values())).n,
            "all seeds", s.used, {PROTOCOL: dict(s.numbers)}, {PROTOCOL: PROTOCOL},
        )
        for s in settings
        if s.method != REAL
    )  # fmt: skip


def draw_fronts(settings: Sequence[Pooled]):
    """What a rule gives up in one number to win in another; the star is where real pictures are."""
    real = {name: e.value for s in settings if s.method == REAL for name, e in s.numbers.items()}
    return fronts(runs_of(settings), PROTOCOL, real)


def comparisons(settings: Sequence[Pooled]) -> Iterator[Row]:
    """Each rule less fixed CFG at equal scale, at equal alignment and at equal effective scale."""
    runs = runs_of(settings)
    kinds: dict[str, Table | None] = {
        "equal scale": tables.equal_scale(runs, PROTOCOL, COMPARED),
        "equal alignment": tables.equal_alignment(runs, PROTOCOL, COMPARED),
        "equal use": at_use(runs),
    }
    for kind, table in kinds.items():
        for line in (line for group in (table.groups if table else ()) for line in group):
            yield {"against": kind} | dict(zip(table.columns, line, strict=True))


def at_use(runs: Sequence[ScoredRun]) -> Table:
    """Each rule less fixed CFG at the rule's effective scale, on straight lines over log λ."""
    fixed = {e.name.scale or 1.0: e.scores[PROTOCOL] for e in runs if e.name.method in FIXED}
    rows = []
    for e in (e for e in runs if e.name.method not in FIXED and e.name.scale is not None):
        used = e.kept or 1.0
        other = between(fixed, used)
        differences = ["not reached"] * len(COMPARED)
        if other is not None:
            differences = [marked(difference(e.scores[PROTOCOL][c], other[c]), c) for c in COMPARED]
        rows.append((e.name.label, f"{e.name.scale:g}", f"{used:.2f}", *differences))
    head = ("method − fixed CFG", "λ", "scale used", *map(tables.titled, COMPARED))
    return Table(head, (tuple(rows),), names=1)


def between(fixed: Mapping[float, Mapping[str, Estimate]], scale: float) -> dict[str, Estimate] | None:
    """The numbers of fixed CFG at a scale between two that were run; None outside them."""
    for low, high in pairwise(sorted(fixed)):
        if low <= scale <= high:
            share = math.log(scale / low) / math.log(high / low)
            return {name: _blend(e, fixed[high][name], share) for name, e in fixed[low].items()}
    return None


def _blend(a: Estimate, b: Estimate, share: float) -> Estimate:
    value = (1 - share) * a.value + share * b.value
    parts = None if a.parts is None or b.parts is None else (1 - share) * a.parts + share * b.parts
    return Estimate(a.name, value, a.n, parts)


def parts(folder: Path) -> dict[str, str]:
    """The marked parts of the page."""
    settings = read_pooled(folder / "readings.csv")
    columns = ("FD-fashion", "recall", "alignment", "diversity", "brightness")
    rows = [
        ["test pictures", "–", "–", *(cell(s.numbers[c]) for c in columns)]
        for s in settings
        if s.method == REAL
    ]
    shown = ("Conditional", "Fixed CFG", "APG", "PMC-CFG 1.10", "PMC-CFG, calibrated")
    for e in (e for e in runs_of(settings) if e.name.label in shown):
        numbers = [cell(e.scores[PROTOCOL][c]) for c in columns]
        rows.append([e.name.label, f"{e.name.scale:g}", f"{e.kept:.2f}", *numbers])
    head = ["rule", "λ", "scale used", *map(tables.titled, columns)]
    against = [row for row in comparisons(settings) if row["against"] == "equal alignment"]
    first = next(iter(against))["alignment"]
    lines = [
        [row["method − fixed CFG"], *(row[tables.titled(c)] for c in COMPARED)]
        for row in against
        if row["alignment"] == first
    ]
    equal = markdown([f"less fixed CFG, {first}", *map(tables.titled, COMPARED)], lines)
    return {"readings": markdown(head, rows), "equal alignment": equal, "earlier": earlier(folder)}


def earlier(folder: Path) -> str:
    """Fixed CFG and caps in the earlier run, each at its best scale and at λ = 6."""
    rows = read_csv(folder / "earlier.csv")
    lines = []
    for number, protocol in (("FD-fashion", "fashion"), ("FD-EffLite0", "efficientnet-lite0")):
        for n in ("20", "50"):
            own = [r for r in rows if r["protocol"] == protocol and r["evaluations"] == n]
            line = [f"{number}, {n} evaluations"]
            for caps in (False, True):
                kind = "PMC" if caps else "Fixed CFG"
                some = [r for r in own if r["method"].startswith(kind)]
                best = min((r for r in some if r["number"] == number), key=lambda r: float(r["value"]))
                name = f"{best['method']} {best['gamma']}".strip() if caps else "fixed CFG"
                line.append(f"{float(best['value']):.3g} ({name}, λ = {float(best['scale']):g})")
                recalls = sorted(
                    float(r["value"]) for r in some if r["number"] == "recall" and float(r["scale"]) == 6
                )
                line.append(f"{recalls[0]:.2f}" + (f"–{recalls[-1]:.2f}" if caps else ""))
            lines.append(line)
    head = ["", "best fixed CFG", "recall at λ = 6", "best cap", "recall at λ = 6"]
    return markdown(head, lines)
