"""The scores of a run on disk.

scores.jsonl                   one line per number: a Score, and the images it was taken of
scores/<protocol>.safetensors  what each image contributed, for paired comparisons between runs
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from ..files import write_whole
from ..metrics.score import Estimate, Score
from .ledger import locked

_FIELDS = {field.name for field in fields(Score)}


class Damaged(ValueError):
    """A file of scores that cannot be read."""


def read_scores(folder: str | Path) -> list[Score]:
    """The scores of a run, in the order they were written; none where there are none."""
    return [
        Score(r["name"], r["value"], tuple(r["interval"]) if r["interval"] else None, r["n"], r["protocol"])
        for r in _rows(Path(folder))
    ]


def read_estimates(folder: str | Path, protocol: str) -> dict[str, Estimate]:
    """The scores of one protocol with what each image contributed, by name."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    path = Path(folder) / "scores" / f"{protocol}.safetensors"
    try:
        parts = load_file(path) if path.is_file() else {}
    except SafetensorError:
        raise Damaged(f"{path} is damaged; score again with --force") from None
    scores = [s for s in read_scores(folder) if s.protocol.startswith(f"{protocol}:")]
    return {s.name: Estimate(s.name, s.value, s.n, parts.get(s.name)) for s in scores}


def write_scores(folder: Path, protocol: str, text: str, estimates: Sequence[Estimate], mark: str) -> None:
    """Replaces the lines of this protocol and keeps all others; `mark` stands for the images."""
    from safetensors.torch import save

    parts = {e.name: e.parts.double().contiguous() for e in estimates if e.parts is not None}
    new = [{**e.score(text).as_json(), "images": mark} for e in estimates]
    (folder / "scores").mkdir(parents=True, exist_ok=True)
    with locked(folder):  # another process may be scoring the same run by another protocol
        write_whole(folder / "scores" / f"{protocol}.safetensors", save(parts))
        rows = [r for r in _rows(folder) if not r["protocol"].startswith(f"{protocol}:")] + new
        write_whole(folder / "scores.jsonl", "".join(json.dumps(row) + "\n" for row in rows))


def scored(folder: Path, protocol: str, mark: str) -> bool:
    """Whether these images have been scored under this very protocol."""
    return any(r["protocol"] == protocol and r.get("images") == mark for r in _rows(folder))


def _rows(folder: Path) -> list[dict[str, Any]]:
    path = folder / "scores.jsonl"
    if not path.is_file():
        return []
    try:
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    except ValueError:
        rows = [None]
    if not all(isinstance(r, dict) and r.keys() >= _FIELDS for r in rows):
        raise Damaged(f"{path} is damaged; delete it and score again")
    return rows
