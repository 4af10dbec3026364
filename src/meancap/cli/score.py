"""`meancap score`: numbers for runs, each with its protocol."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .progress import progress

if TYPE_CHECKING:
    from ..runs.scoring import ScoreProgress

Commands = Any  # argparse's sub-parsers, whose type has no public name

_SCORE = """\
examples:
  meancap score runs/cap runs/fixed --protocol fashion
  meancap score runs/* --protocol efficientnet-lite0 --reference fashion-mnist
  meancap score samples.npz --protocol adm-imagenet256 --reference VIRTUAL_imagenet256_labeled.npz
  meancap score --list

Features are kept beside each run and scores in its scores.jsonl; the same command goes on after a stop.
"""


def add_score(commands: Commands) -> None:
    p = commands.add_parser(
        "score", help="measure runs: Frechet distances, recall, alignment, ...", epilog=_SCORE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    p.add_argument(
        "runs", nargs="*", type=Path, metavar="RUN", help="run folders, folders of pictures, or .npz"
    )
    p.add_argument(
        "--protocol", action="append", metavar="NAME", help="see --list; several with commas between them"
    )
    p.add_argument(
        "--reference", default=None, metavar="R", help="real images: a folder, an .npz, or fashion-mnist"
    )
    p.add_argument(
        "--weights", default=None, metavar="FILE", help="weights of the network, if not in a usual place"
    )
    p.add_argument(
        "--threads", type=int, default=None, metavar="N", help="CPU threads; default the idle cores"
    )
    p.add_argument("--force", action="store_true", help="measure again what has been measured")
    p.add_argument("--list", action="store_true", help="print the protocols and stop")
    p.set_defaults(run=score)


def score(args: argparse.Namespace) -> int:
    from ..metrics.protocols import PROTOCOLS

    if args.list:
        for p in PROTOCOLS.values():
            print(f"{p.name:<22}{p.about}\n{'':<22}{', '.join(p.numbers)}")
            if p.reference:
                print(f"{'':<22}reference: {p.reference}")
        return 0
    if not args.runs or not args.protocol:
        raise ValueError("give at least one RUN and one --protocol (meancap score --list names them)")
    import torch

    from ..runs.scoring import score_runs

    torch.set_num_threads(idle_cores() if args.threads is None else max(1, args.threads))
    protocols = [name.strip() for text in args.protocol for name in text.split(",")]
    watch(score_runs(args.runs, protocols, args.reference, args.weights, force=args.force))
    print(score_table(args.runs, protocols))
    return 0


def idle_cores() -> int:
    """The number of idle cores, at least one: more threads than idle cores are very slow."""
    cores = os.cpu_count() or 1
    busy = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    return max(1, cores - round(busy))


def watch(steps: Iterable[ScoreProgress]) -> None:
    """Scores to the end, with a bar on stderr for each run that has something to do."""
    for what, group in groupby(steps, key=lambda step: step.what):
        first = next((step for step in group if step.done), None)
        if first is not None:
            with progress(first.total, what, "img") as line:
                line.update(first.done)
                for step in group:
                    line.update(step.done)


def score_table(names: Sequence[Path], protocols: Sequence[str]) -> str:
    """One line per run, one block per protocol; half of the 95 % interval below each value."""
    from ..runs.scoring import read_scores, results_of

    folders, lines = [results_of(name) for name in names], []
    for protocol in protocols:
        rows = []
        for folder in folders:
            rows.append({s.name: s for s in read_scores(folder) if s.protocol.startswith(f"{protocol}:")})
        titles = list(dict.fromkeys(title for row in rows for title in row))
        some = next((s for row in rows for s in row.values()), None)
        if some is None:
            continue
        wide = max(len(str(n)) for n in names)
        lines += [some.protocol, "", f"{'run':<{wide}}  {'n':>6}  " + "  ".join(f"{t:>11}" for t in titles)]
        for name, row in zip(names, rows, strict=True):
            n = max(s.n for s in row.values())
            values = [f"{row[t].value:.4g}" if t in row else "" for t in titles]
            errors = [_half(row[t].interval) if t in row else "" for t in titles]
            for first, count, cells in ((str(name), str(n), values), ("", "", errors)):
                line = f"{first:<{wide}}  {count:>6}  " + "  ".join(f"{cell:>11}" for cell in cells)
                lines.append(line.rstrip())
        lines.append("")
    return "\n".join(lines).rstrip()


def _half(interval: tuple[float, float] | None) -> str:
    return "" if interval is None else f"±{(interval[1] - interval[0]) / 2:.2g}"
