"""`meancap reproduce scenes`: rules and scales on sentences whose truth is known."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from .command import bar, comma_numbers

_EXAMPLES = """\
examples:
  meancap reproduce scenes --quick --out out/quick      every part, few prompts and scales: some minutes
  meancap reproduce scenes --out out/scenes             the whole study
  meancap reproduce scenes --only-seed 1 --out out/scenes      one seed of it, beside another process

DIR gets study.json, table.csv, readings.csv (what was seen on every picture), compared.csv, figures and a run
folder for every cell. The same command in the same folder goes on after a stop, with more --seeds if you
like; the table holds whatever is finished. Pilots come first: some minutes without a bar.
"""


def add_scenes(kinds: Any) -> None:
    p = kinds.add_parser(
        "scenes",
        help="prompts, burnt colours and open attributes on the model of the scenes",
        description="Run rules and scales on the model that reads sentences, and measure them exactly.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    p.add_argument("--out", required=True, type=Path, metavar="DIR", help="folder of all its runs")
    p.add_argument("--quick", action="store_true", help="16 prompts, one seed, one scale, 8 steps")
    p.add_argument("--prompts", type=int, metavar="N", help="in each cell, for each seed (32)")
    p.add_argument("--seeds", type=int, metavar="N", help="of prompts and noise (3)")
    p.add_argument("--scales", metavar="L", help="guidance scales of the first part (2,4,7,15)")
    p.add_argument("--only-seed", type=int, metavar="K", help="make the runs of one seed and no table")
    p.add_argument("--threads", type=int, default=1, help="CPU threads; they are part of the runs (1)")
    p.set_defaults(run=scenes)


def scenes(args: argparse.Namespace) -> int:
    import torch

    from ..runs.scenes_study import QUICK, SceneStudy, cells_of, run_study
    from ..runs.scenes_table import grouped, scene_rows, write_table

    torch.set_num_threads(args.threads)
    study = QUICK if args.quick else SceneStudy()
    given: dict[str, Any] = {
        name: getattr(args, name) for name in ("prompts", "seeds") if getattr(args, name) is not None
    }
    if args.scales is not None:
        given["scales"] = tuple(comma_numbers(args.scales, float))
    study = replace(study, **given)
    seeds = None if args.only_seed is None else [args.only_seed]
    steps = run_study(study, args.out, threads=args.threads, seeds=seeds)
    todo = cells_of(study, args.out)
    total = len(todo) if seeds is None else sum(cell.seed in seeds for cell in todo)
    for _ in bar(steps, total, "scenes", "run"):
        pass
    if seeds is not None:
        return 0
    groups = grouped(todo, args.out)
    rows = list(bar(scene_rows(groups, args.out), len(groups), "measure", "row"))
    write_table([line for row in rows for line in row.readings], args.out / "readings.csv")
    path = write_table([row.line for row in rows], args.out / "table.csv")
    print(path.read_text(encoding="utf-8"), end="")
    _draw(args.out)
    return 0


def _draw(out: Path) -> None:
    from ..runs.scenes_readings import read_readings
    from ..runs.scenes_table import write_table

    try:
        from ..report.scenes import curves, prompt_sheet
        from ..report.scenes_compared import compared, contrast_rows
        from ..report.style import look, save_png
    except ImportError:
        print('meancap: no figures without matplotlib: pip install "meancap[report]"', file=sys.stderr)
        return
    readings = read_readings(out / "readings.csv")
    parts = [part for part in ("scenes", "wrong") if any(r.part == part for r in readings)]
    contrasts = [line for part in parts for line in compared(readings, part)]
    write_table(contrast_rows(contrasts), out / "compared.csv")
    with look():
        save_png(curves(out), out / "curves.png")
        save_png(prompt_sheet(out), out / "sheet.png")
