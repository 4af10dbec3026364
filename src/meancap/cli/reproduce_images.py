"""`meancap reproduce imagenet`, `sd35` and `fashion`: tables of image runs."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from .generate import Commands, add_machine, device_of, spread, unwritable
from .progress import progress

if TYPE_CHECKING:
    from ..runs.prepare import RunRequest
    from ..runs.protocols import ImageProtocol
    from ..runs.reproduce import BlockProgress


def add_imagenet(kinds: Commands) -> None:
    p = _parser(kinds, "imagenet", "SiT-XL/2 on ImageNet 256: the paper's second table", "--tiny")
    p.add_argument("--checkpoint", type=Path, metavar="FILE", help="SiT-XL-2-256.pt, or the like")
    p.add_argument("--vae", default="stabilityai/sd-vae-ft-mse", metavar="DIR", help="folder or cached name")
    p.add_argument("--per-class", type=int, default=50, metavar="N", help="samples of each class (50)")
    p.add_argument("--channels", type=int, metavar="N", help="guide only the first N latent channels")
    p.add_argument("--batch", type=int, default=50, metavar="N", help="made and saved at once (50)")
    _rehearsals(p)
    add_machine(p)
    p.set_defaults(run=imagenet, dtype="tf32")


def add_sd35(kinds: Commands) -> None:
    p = _parser(
        kinds, "sd35", "Stable Diffusion 3.5 Medium on COCO prompts: the paper's third table", "--tiny"
    )
    p.add_argument("--pipeline", metavar="DIR", default="stabilityai/stable-diffusion-3.5-medium",
                   help="folder or cached name")  # fmt: skip
    p.add_argument("--prompts", type=Path, metavar="FILE", help="the 5,000 COCO-2017 captions, one per line")
    p.add_argument(
        "--categories", action="store_true", help="the figure of four prompts instead: dog, bedroom, ..."
    )
    p.add_argument("--size", type=int, default=1024, metavar="PX", help="height and width (1024)")
    _rehearsals(p)
    add_machine(p)
    p.set_defaults(run=sd35, dtype="bfloat16")


def add_fashion(kinds: Commands) -> None:
    p = _parser(kinds, "fashion", "the ImageNet protocol on the shipped model", "--per-class 20")
    p.add_argument("--per-class", type=int, default=20, metavar="N", help="samples of each class (20)")
    p.add_argument("--scales", default="2,3,6", metavar="L", help="guidance scales (2,3,6)")
    p.add_argument("--evaluations", default="20", metavar="N", help="network evaluations, like 20,50 (20)")
    p.add_argument("--seed", type=int, default=0, metavar="N", help="of the noise that all rules share (0)")
    p.add_argument("--batch", type=int, default=50, metavar="N", help="made and saved at once (50)")
    add_machine(p)
    p.set_defaults(run=fashion)


def imagenet(args: argparse.Namespace) -> int:
    from ..runs import protocols
    from ..runs.prepare import RunRequest

    protocol = protocols.imagenet(args.per_class)
    machine = {"dtype": args.dtype, "threads": args.threads, "channels": args.channels}
    if args.tiny:
        from ..runs.reproduce import tiny_imagenet

        weights, vae = tiny_imagenet(args.out / "tiny")
        few = RunRequest(f"sit:{weights}", vae=str(vae), per_class=1, classes="0,207,980", batch=3, **machine)
        return _run(replace(protocol, samples=3), replace(few, npz=True, diagnostics=True), args)
    if args.plan:
        from ..runs.protocols import imagenet_needs, plan_text

        print(plan_text(protocol, imagenet_needs(args.checkpoint, args.vae), args.out, picture=256))
        return 0
    if args.checkpoint is None:
        raise ValueError("give --checkpoint FILE, or --plan for what is needed, or --tiny for a rehearsal")
    base = RunRequest(f"sit:{args.checkpoint}", vae=args.vae, npz=True, **machine)
    return _run(protocol, replace(base, per_class=args.per_class, batch=args.batch), args)


def sd35(args: argparse.Namespace) -> int:
    from ..files import write_whole
    from ..runs import protocols
    from ..runs.prepare import RunRequest
    from ..runs.prompts import read_prompts

    machine = {"dtype": args.dtype, "threads": args.threads}
    protocol = protocols.sd35_categories()
    if args.categories:
        if args.prompts is not None:
            raise ValueError("--categories has prompts of its own; leave --prompts out")
        args.prompts = args.out / "prompts.txt"
        if not args.plan:
            args.out.mkdir(parents=True, exist_ok=True)
            write_whole(args.prompts, "\n".join(protocols.category_prompts()) + "\n")
    if args.tiny:
        from ..runs.reproduce import tiny_sd35

        pipeline, prompts = tiny_sd35(args.out / "tiny")
        few = RunRequest(f"diffusers:{pipeline}", prompts=prompts, size=32, diagnostics=True, **machine)
        if args.categories:
            return _run(protocol, replace(few, prompts=args.prompts), args)
        return _run(protocols.sd35(2), few, args)
    if not args.categories:
        given = args.prompts is not None and args.prompts.is_file()
        protocol = protocols.sd35(len(read_prompts(args.prompts)) if given else 5000)
    if args.plan:
        from ..runs.protocols import plan_text, sd35_needs

        print(plan_text(protocol, sd35_needs(args.pipeline, args.prompts), args.out, picture=args.size))
        return 0
    if args.prompts is None:
        raise ValueError("give --prompts FILE, or --plan for what is needed, or --tiny for a rehearsal")
    base = RunRequest(f"diffusers:{args.pipeline}", prompts=args.prompts, size=args.size, **machine)
    return _run(protocol, base, args)


def fashion(args: argparse.Namespace) -> int:
    from ..runs import protocols
    from ..runs.prepare import RunRequest

    scales, counts = comma_numbers(args.scales, float), comma_numbers(args.evaluations, int)
    protocol = protocols.fashion(args.per_class, scales, [int(n) for n in counts], args.seed)
    base = RunRequest("fashion", per_class=args.per_class, batch=args.batch, threads=args.threads)
    return _run(protocol, replace(base, npz=True, diagnostics=True), args, "fashion")


def _run(protocol: ImageProtocol, base: RunRequest, args: argparse.Namespace, score_by: str = "") -> int:
    """Makes the runs of a protocol and shows the table."""
    from ..runs.generate import place
    from ..runs.reproduce import finish, reproduce

    if args.processes > 1 and "RANK" not in os.environ:
        return spread(args)
    rank, world, local = place()
    steps = reproduce(protocol, base, args.out, device=device_of(args, local), rank=rank, world=world)
    try:
        _watch(steps, protocol.name)
    except OSError as error:
        raise SystemExit(unwritable(args.out, error, "finished blocks are kept")) from None
    if finish(protocol, args.out, score_by):
        print((args.out / "table.csv").read_text(encoding="utf-8"), end="")
        _draw(protocol, args.out)
        print(f"{args.out}: {len(protocol.settings)} runs; rules in protocol.json", file=sys.stderr)
    return 0


def _draw(protocol: ImageProtocol, out: Path) -> None:
    """sweep-nN.png for every number N of evaluations."""
    try:
        from ..report.pictures import save_png
        from ..report.style import look
        from ..report.sweep import sweep
    except ImportError:
        print('meancap: no figures without matplotlib: pip install "meancap[report]"', file=sys.stderr)
        return
    for n in sorted({s.evaluations for s in protocol.settings}):
        with look():
            save_png(sweep(out, evaluations=n), out / f"sweep-n{n}.png")


def _watch(steps: Iterable[BlockProgress], name: str) -> None:
    """Runs the steps with a progress bar on stderr, if tqdm is installed."""
    with progress(None, name, "block") as line:
        for step in steps:
            line.total, line.n = step.total, step.done
            line.set_postfix_str(step.setting)


def _parser(kinds: Commands, name: str, about: str, example: str) -> argparse.ArgumentParser:
    p: argparse.ArgumentParser = kinds.add_parser(
        name,
        help=about,
        description=f"{about[0].upper()}{about[1:]}. Give the same command again to go on after a stop.",
        epilog=f"example:\n  meancap reproduce {name} {example} --out out/{name}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    p.add_argument("--out", required=True, type=Path, metavar="DIR", help="folder of all its runs")
    return p


def _rehearsals(p: argparse.ArgumentParser) -> None:
    how = p.add_mutually_exclusive_group()
    how.add_argument("--plan", action="store_true", help="say what would run, what it costs, what is missing")
    how.add_argument("--tiny", action="store_true", help="the whole way on tiny random weights, in a minute")


def comma_numbers(text: str, kind: type[float] | type[int]) -> list[float]:
    try:
        return list(dict.fromkeys(kind(part) for part in text.split(",")))
    except ValueError:
        raise ValueError(f"numbers with commas between them are needed, like 1.5,2; got {text!r}") from None
