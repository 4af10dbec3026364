"""The scored runs below a folder, each named as the paper names its methods.

method   Conditional, Fixed CFG, APG, C2FG, PMC-CFG, ...; the rule's own text where no name fits
scale    nominal guidance scale; gamma the cap's, if it has one
kept     mean effective scale over all steps and images, where the run kept its meter
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ...metrics.score import Estimate
from ...rules import CFG, Cap, CapDisplacement, Momentum, Project, Rule, parse
from ...runs.folder import Run
from ...runs.scoring import read_estimates, read_scores
from ...schedules import Exponential

ORDER = ("Conditional", "Fixed CFG", "APG", "C2FG", "PMC-CFG")


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


def collect(folder: Path) -> list[ScoredRun]:
    """All finished runs with scores in a folder or below it, in the order of the paper's tables."""
    runs = [_entry(path.parent) for path in sorted(folder.rglob("scores.jsonl")) if _is_run(path.parent)]
    if not runs:
        raise ValueError(
            f"there are no scored runs in {folder}; score them first: meancap score RUN --protocol NAME"
        )
    return in_order(runs)


def in_order(runs: Iterable[ScoredRun]) -> list[ScoredRun]:
    """In the order of the paper's tables."""
    return sorted(runs, key=_place)


def method_name(rule: str, guidance_scale: float | None = None) -> Name:
    """The method that a rule's text stands for; `guidance_scale` is what the host pipeline was told."""
    if not rule:
        return Name("Fixed CFG" if guidance_scale != 1 else "Conditional", guidance_scale)
    parsed = parse(rule)
    parts = parsed.parts
    cap = parts[-1] if isinstance(parts[-1], Cap) else None
    nominal = parts[:-1] if cap else parts
    if cap and not nominal:
        return _capped(cap, guidance_scale)
    method, scale = _nominal(nominal)
    if method is None:
        return Name(rule)
    if cap is None:
        return Name(method, scale)
    return _capped(cap, scale) if method in ("Fixed CFG", "Conditional") else Name(rule, scale)


def _nominal(parts: tuple[Rule, ...]) -> tuple[str | None, float | None]:
    last = parts[-1]
    if not isinstance(last, CFG):
        return None, None
    if len(parts) == 1:
        if isinstance(last.scale, Exponential):
            return "C2FG", float(last.scale.start)
        if isinstance(last.scale, float):
            return ("Conditional" if last.scale == 1 else "Fixed CFG"), last.scale
        return None, None
    projected = any(isinstance(p, (Project, Momentum)) for p in parts)
    return ("APG", last.scale) if projected and isinstance(last.scale, float) else (None, None)


def _capped(cap: Cap, scale: float | None) -> Name:
    gamma = cap.gamma if isinstance(cap.gamma, float) else None
    if isinstance(cap, CapDisplacement):
        return Name("PMC-CFG, displacement", scale, gamma)
    if cap.floor is not None:
        return Name("PMC-CFG, calibrated", scale, None if gamma == 1 else gamma)
    return Name("PMC-CFG" if cap.anchor is None else "PMC-CFG, anchored", scale, gamma)


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
    )


def _is_run(folder: Path) -> bool:
    return (folder / "run.json").is_file()


def _place(e: ScoredRun) -> tuple[int, float, int, str, float]:
    base = e.name.method.partition(",")[0]
    rank = ORDER.index(base) if base in ORDER else len(ORDER)
    return e.evaluations, e.name.scale or 0.0, rank, e.name.method, e.name.gamma or 0.0
