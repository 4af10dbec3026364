"""The scored runs below a folder, compared in two fair ways: at equal nominal scale, and at equal alignment.

    method   Conditional, Fixed CFG, APG, C2FG, PMC-CFG, ...; otherwise the rule's form, CFG(λ) | Rescale()
    scale    nominal guidance scale; gamma the cap's, if it has one
    kept     mean effective scale over all steps and images, if the run kept its meter

A cap does less than the scale it is given, so at equal scale a weaker rule can look better for being
weaker. At equal alignment each rule is read off its own sweep over scales, by straight lines between
neighbours, at the point where it aligns as well as fixed CFG does; errors follow every image through both
runs of the pair.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor

from meancap.rules import parse

from ..metrics.score import Estimate, difference
from ..runs.folder import Run
from ..runs.paper_protocols import cifar, fashion_protocol, imagenet, sd35
from ..runs.scoring import read_estimates, read_scores

_ORDER = ("Conditional", "Fixed CFG", "APG", "C2FG", "PMC-CFG")


@dataclass(frozen=True)
class Name:
    """What a table calls a rule."""

    method: str
    scale: float | None = None
    gamma: float | None = None

    @property
    def label(self) -> str:
        """The method with its gamma: what one curve of a figure is called."""
        return self.method if self.gamma is None else f"{self.method} {self.gamma:.2f}"


@dataclass(frozen=True, eq=False)
class ScoredRun:
    """One scored run."""

    folder: Path
    rule: str
    name: Name
    evaluations: int
    n: int
    pairing: str  # equal for runs that share noise and conditions, image by image
    kept: float | None
    scores: dict[str, dict[str, Estimate]]  # by protocol and number
    protocols: dict[str, str]  # each protocol in full
    model: str = ""


def collect(folder: Path) -> list[ScoredRun]:
    """All finished runs with scores in a folder or below it, in the order of the paper's tables."""
    scored = [path.parent for path in sorted(folder.rglob("scores.jsonl"))]
    runs = [_entry(path) for path in scored if (path / "run.json").is_file()]
    if not runs:
        raise ValueError(
            f"there are no scored runs in {folder}; score them first: meancap score RUN --protocol NAME"
        )
    return sorted(runs, key=_place)


def method_name(rule: str, guidance_scale: float | None = None) -> Name:
    """The name of a rule's form; `guidance_scale` is the scale of the host pipeline."""
    if not rule:
        rule = f"CFG({guidance_scale})"
    elif parse(rule).caps and guidance_scale is not None:  # it limits the pipeline's own guidance
        rule = f"CFG({guidance_scale}) | {rule}"
    form, scale, gamma = _form(rule)
    method = "Conditional" if form == "CFG(λ)" and scale == 1 else _paper_names().get(form, form)
    return Name(method, scale, gamma)


def _form(rule: str) -> tuple[str, float | None, float | None]:
    """A rule's text with λ and Γ for its scale and its cap's bound and dots for lists, and both numbers."""
    form, numbers, depth = str(parse(rule)), dict[str, float](), None
    while form != depth:  # lists within lists
        form, depth = re.sub(r"\[[^][…]+\]|\[(\[…\],? ?)+\]", "[…]", form), form
    for symbol, before in (("λ", r"\bCFG\((?:Exponential\()?"), ("Γ", r"\bCap(?:Displacement)?\(")):
        if found := re.search(rf"({before})(-?[\d.e+-]+)(?=[,)])", form):
            numbers[symbol] = float(found[2])
            form = form[: found.start(2)] + symbol + form[found.end(2) :]
    return form, numbers.get("λ"), numbers.get("Γ")


@lru_cache
def _paper_names() -> dict[str, str]:
    """What the paper and its tables call a form; rivals have the settings of the protocols."""
    settings = [
        s for protocol in (imagenet(), sd35(), fashion_protocol(), cifar()) for s in protocol.settings
    ]
    rivals = {_form(str(s.rule))[0]: s.method for s in settings if s.method in ("APG", "C2FG", "Interval")}
    return rivals | {
        "CFG(λ)": "Fixed CFG",
        "CFG(λ) | Cap(Γ)": "PMC-CFG",
        "CFG(λ) | CapDisplacement(Γ)": "PMC-CFG, displacement",
        "CFG(λ) | Cap(Γ, anchor='first')": "PMC-CFG, anchored",
        "CFG(λ) | Cap(Γ, anchor=[…])": "PMC-CFG, anchored",
        "CFG(λ) | Cap(Γ, anchor=[…], floor=Piecewise([…], […]))": "PMC-CFG, calibrated",
    }


def _entry(folder: Path) -> ScoredRun:
    run = Run.open(folder)
    protocols = {s.protocol.partition(":")[0]: s.protocol for s in read_scores(folder)}
    shared = json.dumps([run.seeds, run.labels, run.prompts])
    kept = None
    if (folder / "diagnostics.npz").is_file() and run.meter:
        kept = float(run.meter["scale"].mean())
    return ScoredRun(
        folder,
        run.rule,
        method_name(run.rule, run.config.get("guidance_scale")),
        run.finished["evaluations"] // max(1, run.finished["samples"]),
        run.finished["samples"],
        hashlib.sha256(shared.encode()).hexdigest()[:12],
        kept,
        {name: read_estimates(folder, name) for name in protocols},
        protocols,
        run.config["model"],
    )


def _place(e: ScoredRun) -> tuple[int, float, int, str, float]:
    base = e.name.method.partition(",")[0]
    rank = _ORDER.index(base) if base in _ORDER else len(_ORDER)
    return e.evaluations, e.name.scale or 0.0, rank, e.name.method, e.name.gamma or 0.0


DISTANCES = ("FID", "FD-fashion", "FD-EffLite0")
_ALIGNMENTS = ("alignment", "CLIP", "IS")
FEWEST = 50  # images: below, an interval may be 0 by chance, and nothing is called better or worse


def alignment_of(scores: dict[str, Estimate]) -> str | None:
    """The number of a protocol that measures how well the condition is met."""
    return next((name for name in _ALIGNMENTS if name in scores), None)


def companions(entries: Sequence[ScoredRun], e: ScoredRun) -> list[ScoredRun]:
    """Those that share their noise with e, so that several seeds stay apart; all if none does."""
    return [one for one in entries if one.pairing == e.pairing] or list(entries)


def contrast(a: ScoredRun, b: ScoredRun, protocol: str, number: str) -> Estimate:
    """a - b, image by image if the two runs share their noise."""
    one, two = a.scores[protocol][number], b.scores[protocol][number]
    fits = one.parts is not None and two.parts is not None and len(one.parts) == len(two.parts)
    return difference(one, two, paired=a.pairing == b.pairing and fits)


def at_level(
    sweep: Sequence[tuple[Estimate, Estimate]], level: Estimate, *, paired: bool = True
) -> Estimate | None:
    """The second number of a sweep where its first number equals `level`; None if it never does.

    `sweep` holds (alignment, number) in the order of the scale. With a and b the ends of the first piece that
    crosses the level, the value is n_a + (l - a)(n_b - n_a)/(b - a); its parts follow all five estimates.
    """
    for (a, n_a), (b, n_b) in pairwise(sweep):
        if min(a.value, b.value) <= level.value <= max(a.value, b.value) and a.value != b.value:
            share = (level.value - a.value) / (b.value - a.value)
            slope = (n_b.value - n_a.value) / (b.value - a.value)
            value = n_a.value + share * (n_b.value - n_a.value)
            moved = [n_a.parts, n_b.parts, a.parts, b.parts, level.parts]
            if not paired or any(part is None for part in moved):
                return Estimate(n_a.name, value, n_a.n)
            size = min(len(part) for part in moved if part is not None)
            n_a_, n_b_, a_, b_, level_ = (_grouped(part, size) for part in moved if part is not None)
            change = (1 - share) * (n_a_ - n_a.value) + share * (n_b_ - n_b.value)
            change = change + slope * (
                (level_ - level.value) - (1 - share) * (a_ - a.value) - share * (b_ - b.value)
            )
            return Estimate(n_a.name, value, n_a.n, value + change)
    return None


def at_alignment(sweep: Sequence[ScoredRun], b: ScoredRun, protocol: str, number: str) -> Estimate | None:
    """A sweep's number where it aligns as well as run b does, minus b's; None if it never does."""
    alignment = alignment_of(b.scores[protocol])
    if alignment is None or number not in b.scores[protocol]:
        return None
    having = [
        e for e in companions(sweep, b) if number in e.scores[protocol] and alignment in e.scores[protocol]
    ]
    points = [(e.scores[protocol][alignment], e.scores[protocol][number]) for e in having]
    paired = all(e.pairing == b.pairing for e in having)
    ours, base = at_level(points, b.scores[protocol][alignment], paired=paired), b.scores[protocol][number]
    if ours is None:
        return None
    parts = None
    if ours.parts is not None and base.parts is not None:
        size = min(len(ours.parts), len(base.parts))
        parts = _grouped(ours.parts, size) - _grouped(base.parts, size)
    return Estimate(number, ours.value - base.value, base.n, parts)


def sweeps(entries: Sequence[ScoredRun], protocol: str) -> dict[tuple[int, str], list[ScoredRun]]:
    """The runs of each method over its scales, by (evaluations, label); unguided runs begin every sweep."""
    chosen = [e for e in entries if protocol in e.scores and e.name.scale is not None]
    by_label: dict[tuple[int, str], list[ScoredRun]] = {}
    for e in chosen:
        if e.name.method != "Conditional":
            by_label.setdefault((e.evaluations, e.name.label), []).append(e)
    for (evaluations, _), sweep in by_label.items():
        plain = [e for e in chosen if e.name.method == "Conditional" and e.evaluations == evaluations]
        sweep[:0] = dict.fromkeys(companions(plain, e)[0] for e in sweep if plain)
    return by_label


def interval_of(e: Estimate) -> tuple[float, float] | None:
    """The 95 % interval that a report shows; None for few images."""
    return None if e.n < FEWEST else e.interval()


def clear(e: Estimate) -> int:
    """+1 or -1 where the interval of a difference leaves zero out, else 0."""
    interval = interval_of(e)
    if interval is None:
        return 0
    low, high = interval
    return 1 if low > 0 else -1 if high < 0 else 0


def _grouped(parts: Tensor, size: int) -> Tensor:
    """Parts of images as parts of groups: image i belongs to group i mod size, as in recall."""
    if len(parts) == size:
        return parts.double()
    group = torch.arange(len(parts)) % size
    total = torch.zeros(size, dtype=torch.float64).index_add_(0, group, parts.double())
    return total / torch.bincount(group, minlength=size)
