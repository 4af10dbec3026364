"""`meancap bench` and `meancap calibrate`: parse, run, show progress."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from .progress import progress

Commands = Any  # argparse's sub-parsers, whose type has no public name

_BENCH = """\
examples:
  meancap bench lab --out out/bench --quick
  meancap bench lab --out out/bench --quick --rule "CFG(3) | Cap(1.1, smooth=1)"
  meancap bench lab --out out/caps --rules "cap 1.2" interval --problems drawn-0 drawn-1000 leak-triple
  meancap bench lab --list

Give the same command again to go on after a stop. The folder gets readings.csv, from which every number is
worked out, tables, figures and leaderboard.html. Problems drawn-0, drawn-1, ... are to choose settings on;
from drawn-1000 on they are held out.
"""
_CALIBRATE = """\
examples:
  meancap calibrate --model lab:leak-triple --out leak.json
  meancap calibrate --model fashion --samples 200 --steps 25 --out fashion.json
  meancap calibrate --learn scale --model lab:under-8 --samples 300 --out scale.json
  meancap calibrate --learn scale --model fashion --data DIR --samples 400 --out scale.json
  python -c 'from meancap.runs.calibrate import calibrated; print(calibrated("leak.json", level="q90"))'
"""


def add_bench(commands: Commands) -> None:
    p = commands.add_parser(
        "bench", help="measure every rule where the truth is known", epilog=_BENCH,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    p.add_argument("what", choices=("lab",), help="the laboratory of exact mixtures")
    p.add_argument("--out", type=Path, default=None, metavar="DIR", help="the folder of the benchmark")
    p.add_argument("--quick", action="store_true", help="a few minutes instead of half an hour")
    p.add_argument("--rules", nargs="+", default=None, metavar="NAME", help="only these of the list")
    p.add_argument("--problems", nargs="+", default=None, metavar="NAME", help="only these")
    p.add_argument(
        "--rule", action="append", default=[], metavar="R", help="a chain of your own; may be repeated"
    )
    p.add_argument("--processes", type=int, default=2, metavar="N", help="processes of one thread each (2)")
    p.add_argument("--seed", type=int, default=0, help="of the shared noise (0)")
    p.add_argument("--list", action="store_true", help="print rules and problems and stop")
    p.set_defaults(run=bench)


def bench(args: argparse.Namespace) -> int:
    from dataclasses import replace
    from importlib.util import find_spec

    if not all(map(find_spec, ("numpy", "matplotlib"))):
        raise ImportError('meancap bench writes tables and figures: pip install "meancap[report]"')

    from ..lab.problems import problem
    from ..runs.bench.config import FULL, FULL_PROBLEMS, MAIN_PROBLEMS, QUICK, QUICK_PROBLEMS, role
    from ..runs.bench.families import chosen, families, main_families
    from ..runs.bench.run import bench as run
    from ..runs.bench.run import missing, prepare, scoring_tasks

    config = replace(QUICK if args.quick else FULL, seed=args.seed)
    problems = args.problems or (QUICK_PROBLEMS if args.quick else FULL_PROBLEMS)
    if args.list:
        for name in problems:
            print(f"{name:<28}{problem(name).about}")
        for family in families():
            side = "" if family.side == "rule" else f" ({family.side})"
            print(f"{family.name:<32}{family.call}{side}")
        return 0
    if args.out is None:
        raise ValueError("give --out DIR, the folder of the benchmark (or --list)")
    if args.processes < 1:
        raise ValueError(f"--processes needs at least 1; got {args.processes}")
    wanted = chosen(args.rules, args.rule)
    passes = [(list(dict.fromkeys(problems)), wanted)]
    if not (args.quick or args.problems):
        choose = [name for name in FULL_PROBLEMS if role(name) == "chosen"]
        passes.append(([*choose, *MAIN_PROBLEMS], main_families(wanted)))
    tasks = [task for some, rules in passes for task in prepare(args.out, config, some, rules)]
    # What is not yet tuned will be scored as well, unless its problem is there to choose settings on.
    todo = list({task.path: task for task in missing(tasks)}.values())
    count = len(todo) + sum(role(task.problem) != "chosen" for task in todo)
    with progress(count + len(missing(scoring_tasks(tasks))), args.out.name) as bar:
        for some, rules in passes:
            for _ in run(args.out, config, some, rules, args.processes):
                bar.update()
    return _report(args.out, len(tasks))


def _report(folder: Path, cells: int) -> int:
    from ..report.leaderboard import write_report
    from ..runs.bench.readings import write_readings

    write_readings(folder)
    page = write_report(folder)
    print(f"{folder}: {cells} cells; {page}")
    return 0


def add_calibrate(commands: Commands) -> None:
    p = commands.add_parser(
        "calibrate", help="measure a model for a cap without a knob", epilog=_CALIBRATE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    p.add_argument("--model", required=True, metavar="M", help="lab:PROBLEM, fashion or sit:PATH")
    p.add_argument("--out", required=True, type=Path, metavar="FILE", help="the calibration file, JSON")
    p.add_argument(
        "--learn", choices=("cap", "scale"), default="cap",
        help="radii of a cap from an unguided pilot (cap), or lambda(t) from examples with trusted labels",
    )  # fmt: skip
    p.add_argument("--data", type=Path, metavar="DIR", help="Fashion-MNIST's idx files, for a scale")
    p.add_argument("--samples", type=int, default=1000, metavar="N", help="size of the pilot (1000)")
    p.add_argument("--steps", type=int, default=50, metavar="N", help="Euler steps of the pilot (50)")
    p.add_argument("--seed", type=int, default=0, help="of the pilot's noise (0)")
    p.add_argument(
        "--anchor", choices=("element", "channel"), default=None, help="values that the anchor has"
    )
    p.add_argument("--batch", type=int, default=50, metavar="N", help="samples at a time, for networks (50)")
    p.set_defaults(run=calibrate)


def calibrate(args: argparse.Namespace) -> int:
    import torch

    if args.learn == "scale":
        return _learn_scale(args)

    from ..runs.calibrate import calibrate as run
    from ..runs.calibrate import pilots
    from ..sampling import uniform

    if args.model.startswith("lab:"):
        torch.set_num_threads(1)
    batches = pilots(args.model, args.samples, args.seed, args.batch)
    with progress(len(batches) * (args.steps + 1), "pilot") as bar:
        counted = [(_ticking(predict, bar), x) for predict, x in batches]
        calibration = run(counted, uniform(args.steps), model=args.model, per=args.anchor)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    calibration.save(args.out)
    levels = ", ".join(calibration.radii)
    print(f"{args.out}: {calibration.samples} samples, {len(calibration.times)} times, levels {levels}")
    return 0


def _learn_scale(args: argparse.Namespace) -> int:
    from ..runs.calibrate import KNOTS, examples, learn_scale

    batches = examples(args.model, args.samples, data=args.data, seed=args.seed, batch=args.batch)
    with progress(len(batches) * len(KNOTS), "examples") as bar:
        counted = [(_ticking(predict, bar), x) for predict, x in batches]
        learned = learn_scale(counted, seed=args.seed, model=args.model)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    learned.save(args.out)
    for t, value, low, high in zip(learned.times, learned.values, learned.low, learned.high, strict=True):
        print(f"t {t:<5g} scale {value:6.3f}  [{low:.3f}, {high:.3f}]")
    print(f"{args.out}: {learned.examples} examples; {learned.rule}")
    return 0


def _ticking(predict: Any, bar: Any) -> Any:
    """The same predictor, each of whose calls moves the bar."""

    def counted(x: Any, t: float) -> Any:
        bar.update()
        return predict(x, t)

    return counted
