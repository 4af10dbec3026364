"""The end of `meancap reproduce fashion`: ImageNet features where they can be had, and the report."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from .score import idle_cores, watch


def finish_study(out: Path, runs: Sequence[Path], protocols: Sequence[str]) -> None:
    """Scores finished runs by each protocol and writes the report beside them."""
    import torch

    from ..report.scores import write_report
    from ..runs.score_runs import score_runs

    torch.set_num_threads(idle_cores())
    for name in protocols:
        try:
            watch(score_runs(runs, [name], None if name == "fashion" else "fashion-mnist"))
        except (ImportError, FileNotFoundError) as error:
            print(f"meancap: {name} is left out: {error}", file=sys.stderr)
    for path in write_report(out):
        print(path, file=sys.stderr)
