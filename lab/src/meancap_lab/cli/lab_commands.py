"""`meancap bench`, `calibrate` and `conformance`: measure rules, choose one, check an implementation."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from ..extras import need
from .command import add_command, progress

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


def add_bench(commands: Any) -> None:
    p = commands.add_parser(
        "bench", help="measure rules on mixtures whose exact distribution is known", epilog=_BENCH,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    p.add_argument("what", choices=("run", "table"), help="run it, or show finished results")
    p.add_argument("--out", type=Path, default=None, metavar="DIR", help="the folder of the benchmark")
    p.add_argument("--quick", action="store_true", help="21 problems at 10 evaluations")
    p.add_argument("--problems", type=int, default=None, metavar="N", help="the first N of 252 problems")
    p.add_argument(
        "--part", type=int, default=None, metavar="N",
        help="the first N also at 28 and 50 evaluations and with the rest of the rules (a third)",
    )  # fmt: skip
    p.add_argument("--rules", nargs="+", default=None, metavar="NAME", help="only these rules; see --list")
    p.add_argument(
        "--rule", action="append", default=[], metavar="R", help="your own rule, as text; may be repeated"
    )
    p.add_argument("--processes", type=int, default=2, metavar="N", help="processes of one thread each (2)")
    p.add_argument("--list", action="store_true", help="print the rules and stop")
    p.set_defaults(run=bench)


def bench(args: argparse.Namespace) -> int:
    from dataclasses import replace

    need("matplotlib", "report")

    from ..bench.families import families
    from ..bench.procedures import together
    from ..bench.result import QUICK, Plan, run_bench

    if args.list:
        for family in families():
            own = "" if family.run is together else " (by a procedure of its own)"
            print(f"{family.name:<40}{family.call}{own}")
        return 0
    if args.out is None:
        raise ValueError("give --out DIR, the folder of the benchmark (or --list)")
    if args.processes < 1:
        raise ValueError(f"--processes needs at least 1; got {args.processes}")
    if args.what == "table":
        return _show(args.out)
    plan = QUICK if args.quick else Plan()
    for name in ("problems", "part"):
        number = getattr(args, name)
        if number is not None:
            if not 1 <= number <= 252:
                raise ValueError(f"--{name} needs a number from 1 to 252; got {number}")
            plan = replace(plan, **{name: number})
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


_CALIBRATE = """\
  meancap calibrate --model scenes --samples 64 --out scenes.json
  meancap calibrate --model fashion --data DIR --out rule.json
  meancap generate --model fashion --rule rule.json --out runs/calibrated
  meancap calibrate --learn scale --model lab:under-8 --samples 300 --out scale.json

FILE gets a rule, how it was found and the curves of the examples. By default path matching chooses the rule
(docs/choosing.md), and FILE.png shows the curves. Rerun a command to resume it. For a diffusers pipeline use
`meancap_lab.runs.calibrate.match_pipeline`.
"""


def add_calibrate(commands: Any) -> None:
    about = "choose a rule, or learn a scale, from examples of the data"
    p = add_command(commands, "calibrate", calibrate, about, _CALIBRATE)
    p.add_argument("--model", required=True, metavar="M", help="lab:PROBLEM, scenes, fashion or sit:PATH")
    p.add_argument("--out", required=True, type=Path, metavar="FILE", help="the calibration file, JSON")
    p.set_defaults(out_is_file=True)
    p.add_argument(
        "--learn", choices=("rule", "scale"), default="rule",
        help="a rule by path matching (default), or lambda(t) by least squares",
    )  # fmt: skip
    p.add_argument("--data", type=Path, metavar="DIR", help="idx files of Fashion-MNIST, for fashion and sit")
    p.add_argument("--samples", type=int, default=256, metavar="N", help="examples (256)")
    p.add_argument("--steps", type=int, default=20, metavar="N", help="Euler steps that you will use (20)")
    p.add_argument(
        "--rule", action="append", metavar="R", help="a candidate; may be repeated (default: 12 rules)"
    )
    p.add_argument("--seed", type=int, default=0, help="seed of the noise (0)")
    p.add_argument("--batch", type=int, default=50, metavar="N", help="samples at a time, for networks (50)")


def calibrate(args: argparse.Namespace) -> int:
    import torch

    for name, most in (("steps", 10_000), ("samples", 1_000_000)):
        if not 1 <= getattr(args, name) <= most:
            raise ValueError(f"--{name} must be at least 1 and at most {most}; got {getattr(args, name)}")
    if args.model.startswith("lab:"):
        torch.set_num_threads(1)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    return _learn_rule(args) if args.learn == "rule" else _learn_scale(args)


def _learn_rule(args: argparse.Namespace) -> int:
    import shutil

    from meancap.sampling import shifted, uniform

    from ..runs.calibrate import CANDIDATES, draw_match, examples, match_examples

    need("matplotlib", "report")
    rules = args.rule or CANDIDATES
    calls = 2 * args.samples * args.steps * (len(rules) + 1)
    print(
        f"{args.samples} examples, {args.steps} steps, {len(rules)} rules and the examples themselves: "
        f"{calls:,} network calls"
    )
    folder = args.out.with_name(f"{args.out.name}.parts")
    batches = examples(args.model, args.samples, data=args.data, seed=args.seed, batch=args.batch)
    times = shifted(args.steps) if args.model.startswith("scenes") else uniform(args.steps)
    with progress(len(rules) + 1, "runs") as bar:
        match = match_examples(
            batches, times, rules, seed=args.seed, model=args.model, folder=folder, tick=bar.update
        )
    match.calibration(seed=args.seed, calls=calls).save(args.out)
    draw_match(match, args.out.with_name(f"{args.out.name}.png"))
    shutil.rmtree(folder)
    shown = [t for t in match.times[1:] if t < 0.8][:: max(1, len(match.times) // 6)]
    print(f"{'rule':<40}mismatch             best in  squared gap over that of the examples at t")
    print(f"{'':<71}{''.join(f'{t:>7.2f}' for t in shown)}")
    for one in sorted(match.candidates, key=lambda one: one.mismatch):
        gaps = dict(zip(match.times, one.curves["gap"], strict=True))
        ratios = "".join(f"{match.gaps.ratio(t, gaps[t]):7.2f}" for t in shown)
        span = f"{one.mismatch:.3f} [{one.low:.3f}, {one.high:.3f}]"
        print(f"{one.rule:<40}{span:<22}{one.chosen:>5.0%}    {ratios}")
    print(f"{args.out}: {match.summary()}")
    return 0


def _learn_scale(args: argparse.Namespace) -> int:
    from meancap.rules import CFG
    from meancap.schedules import at

    from ..runs.calibrate import KNOTS, examples, learn_scale

    batches = examples(args.model, args.samples, data=args.data, seed=args.seed, batch=args.batch)
    with progress(len(batches) * len(KNOTS), "examples") as bar:
        counted = [(_ticking(predict, bar), x) for predict, x in batches]
        learned = learn_scale(counted, seed=args.seed, model=args.model)
    learned.save(args.out)
    (rule,), curves = learned.parts, learned.curves
    assert isinstance(rule, CFG)
    print("         scale  estimate and its 95 % interval")
    for t, value, low, high in zip(*(curves[name] for name in ("t", "estimate", "low", "high")), strict=True):
        print(f"t {t:<5g} {at(rule.scale, t):6.3f}  {value:.3f} [{low:.3f}, {high:.3f}]")
    print(f"{args.out}: {learned.examples} examples; {learned}")
    return 0


def _ticking(predict: Any, bar: Any) -> Any:
    """The same predictor, each of whose calls moves the bar."""

    def counted(x: Any, t: float) -> Any:
        bar.update()
        return predict(x, t)

    return counted


_CONFORMANCE = """\
  meancap conformance check conformance.example:pmc_cfg
  meancap conformance check mine.guidance:velocity --arrays mlx --dtype float32
  meancap conformance check --command "node conformance/example.mjs"
  meancap conformance report out/a.json out/b.json

conformance/README.md explains the cases and what a function or a program must take and return. The exit code
is 1 if a case fails. `report` makes a Markdown table of files that `check --json FILE` wrote.
"""


def add_conformance(commands: Any) -> None:
    from ..conformance import ARRAYS

    p = add_command(
        commands, "conformance", _conformance, "check an implementation against exact values", _CONFORMANCE
    )
    p.add_argument("what", choices=("check", "report"), help="check one, or tabulate the results of several")
    p.add_argument("names", nargs="*", metavar="NAME", help="module:function, or files for report")
    p.add_argument("--command", metavar="PROG", help="a program that answers each line of JSON with one")
    p.add_argument("--arrays", choices=ARRAYS, default="torch", help="the arrays of a function (torch)")
    p.add_argument("--dtype", choices=("float32",), help="run the cases in float64 in this precision instead")
    p.add_argument(
        "--vectors", type=Path, default=Path("conformance/vectors.json"), metavar="FILE",
        help="the cases (conformance/vectors.json of a clone)",
    )  # fmt: skip
    p.add_argument("--json", type=Path, metavar="FILE", help="also write the results here")
    p.add_argument("--label", metavar="TEXT", help="what the report calls it: name, version, commit")


def _conformance(args: argparse.Namespace) -> int:
    from ..conformance import (
        check_function,
        check_program,
        outcome_table,
        read_cases,
        report_page,
        write_outcomes,
    )

    if args.what == "report":
        print(report_page([Path(name) for name in args.names]), end="")
        return 0
    if bool(args.command) == bool(args.names) or len(args.names) > 1:
        raise ValueError("check needs one module:function, or --command PROG")
    cases = read_cases(args.vectors, args.dtype)
    name = args.command or args.names[0]
    checked = check_program(name, cases) if args.command else check_function(name, cases, args.arrays)
    outcomes = list(checked)
    if args.json:
        write_outcomes(args.json, args.label or name, outcomes)
    print(outcome_table(outcomes))
    return int(any(o.verdict == "fail" for o in outcomes))
