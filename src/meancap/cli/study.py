"""The end of `meancap reproduce fashion`: further protocols, all seeds together, the report."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from .progress import bar
from .score import idle_cores, watch

if TYPE_CHECKING:
    from ..runs.protocols import ImageProtocol


def finish_study(out: Path, studies: Mapping[Path, ImageProtocol], protocols: Sequence[str]) -> None:
    """Scores finished runs by each protocol, and writes readings.csv and the report beside them."""
    import torch

    from ..report.scores import write_report
    from ..runs.pooled import pooled_study, write_pooled
    from ..runs.scoring import score_runs

    torch.set_num_threads(idle_cores())
    runs = [folder / s.name for folder, study in studies.items() for s in study.settings]
    for name in protocols:
        try:
            watch(score_runs(runs, [name], None if name == "fashion" else "fashion-mnist"))
        except (ImportError, FileNotFoundError) as error:
            print(f"meancap: {name} is left out: {error}", file=sys.stderr)
    settings = next(iter(studies.values())).settings
    pooled = list(bar(pooled_study(settings, [*studies]), len(settings) + 1, "all seeds", "setting"))
    for path in (write_pooled(pooled, out / "readings.csv"), *write_report(out)):
        print(path, file=sys.stderr)
