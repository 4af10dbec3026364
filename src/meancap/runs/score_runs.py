"""Scores for several runs under several protocols; the caller owns the loop and its progress bar."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from ..metrics.protocols import protocol
from .references import ReferenceSearch
from .scoring import ScoreProgress, open_target, scoring


def score_runs(
    runs: Sequence[Path],
    protocols: Sequence[str],
    reference: str | None = None,
    weights: str | None = None,
    *,
    force: bool = False,
) -> Iterator[ScoreProgress]:
    """Scores every run under every protocol, yielding after each batch of images."""
    chosen = [protocol(name) for name in protocols]
    targets = [open_target(path) for path in runs]  # before any work: a wrong name should cost nothing
    for p in chosen:
        extractor = p.load(weights)
        search = ReferenceSearch(p, extractor, reference if p.reference else None)
        yield from search
        for path, target in zip(runs, targets, strict=True):
            for step in scoring(target, p, extractor, search.reference, force=force):
                yield replace(step, what=f"{path.resolve().name}, {p.name}")
