"""`meancap bench`: parse, run, show progress and the table."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from .command import progress

Commands = Any  # argparse's sub-parsers, whose type has no public name

_BENCH = """\
examples:
  meancap bench run --quick --out out/bench
  meancap bench run --quick --out out/mine --rules "CFG 5" --rule "CFG(3) | Cap(1.1, smooth=1)"
  meancap bench run --out out/full --processes 2
  meancap bench table --out out/bench
  meancap bench run --list

Give the same command again to go on after a stop. The folder gets result.json, from which every number is
worked out, rules.csv, kinds.csv, figures and leaderboard.html; `table` writes them again from what has
finished, and prints the first rows.
"""


def add_bench(commands: Commands) -> None:
    p = commands.add_parser(
        "bench", help="measure every rule where the truth is known", epilog=_BENCH,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    p.add_argument(
        "what", choices=("run", "table", "lab"), help="run it, or show what has finished; lab is run"
    )
    p.add_argument("--out", type=Path, default=None, metavar="DIR", help="the folder of the benchmark")
    p.add_argument("--quick", action="store_true", help="21 problems at 10 evaluations: two minutes")
    p.add_argument("--problems", type=int, default=None, metavar="N", help="the first N of 252 problems")
    p.add_argument("--rules", nargs="+", default=None, metavar="NAME", help="only these of the list")
    p.add_argument(
        "--rule", action="append", default=[], metavar="R", help="a chain of your own; may be repeated"
    )
    p.add_argument("--processes", type=int, default=2, metavar="N", help="processes of one thread each (2)")
    p.add_argument("--list", action="store_true", help="print the rules and stop")
    p.set_defaults(run=bench)


def bench(args: argparse.Namespace) -> int:
    from dataclasses import replace

    from ..extras import need

    need("matplotlib", "report")

    from ..bench.families import families
    from ..bench.result import QUICK, Plan, run_bench

    if args.list:
        for family in families():
            side = f" ({family.side})" if family.side else ""
            print(f"{family.name:<40}{family.call}{side}")
        return 0
    if args.out is None:
        raise ValueError("give --out DIR, the folder of the benchmark (or --list)")
    if args.processes < 1:
        raise ValueError(f"--processes needs at least 1; got {args.processes}")
    if args.what == "table":
        return _show(args.out)
    if args.what == "lab":
        print("`meancap bench lab` is now `meancap bench run`; this runs it", file=sys.stderr)
    plan = QUICK if args.quick else Plan()
    if args.problems is not None:
        if not 1 <= args.problems <= 252:
            raise ValueError(f"--problems needs a number from 1 to 252; got {args.problems}")
        plan = replace(plan, problems=args.problems)
    plan = replace(plan, rules=tuple(args.rules) if args.rules else None, own=tuple(args.rule))
    if plan.rules is not None or plan.own:
        plan.families("main")  # refuses unknown names before anything is measured
    todo = sum(not (args.out / cell.path).is_file() for cell in plan.cells())
    with progress(todo, args.out.name) as bar:
        for _ in run_bench(args.out, plan, args.processes):
            bar.update()
    return _show(args.out)


def _show(folder: Path) -> int:
    from ..bench.leaderboard import text_table, write_report
    from ..bench.ratios import Result
    from ..bench.result import write_result

    if (folder / "run.json").is_file():
        write_result(folder)
    page = write_report(folder)
    print(text_table(Result(folder)))
    print(page)
    return 0
