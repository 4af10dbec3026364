"""`meancap calibrate`: parse, run, show progress."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from .command import progress

Commands = Any  # argparse's sub-parsers, whose type has no public name

_CALIBRATE = """\
examples:
  meancap calibrate --model lab:leak-triple --out leak.json
  meancap calibrate --model fashion --samples 200 --steps 25 --out fashion.json
  meancap calibrate --learn scale --model lab:under-8 --samples 300 --out scale.json
  meancap calibrate --learn scale --model fashion --data DIR --samples 400 --out scale.json
  python -c 'from meancap.runs.calibrate import calibrated; print(calibrated("leak.json", level="q90"))'
"""


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
