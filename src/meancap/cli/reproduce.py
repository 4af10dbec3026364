"""`meancap reproduce KIND`: an experiment of the paper, from one command."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..runs.config import add_options, config_of
from ..runs.processes import place
from .command import add_command, comma_numbers, progress
from .generate import add_processes, device_of, start_processes, starts_processes, unwritable

if TYPE_CHECKING:
    from ..runs.config import RunConfig
    from ..runs.protocols import ImageProtocol
    from ..runs.reproduce import BlockProgress

_MACHINE = ("dtype", "device", "threads")
_GMM_EXAMPLES = """\
  meancap reproduce gmm --out out/gmm                   the table of the paper and its figures, half a minute
  meancap reproduce gmm --out out/gmm20 --repeats 20    means and standard deviations instead of one draw

DIR gets table.csv, report.html, report.md, figures/ (PNG and SVG), data/ and run.json. Rerun the command to
resume it after a stop; a folder with another configuration is refused."""


def add_reproduce(commands: Any) -> None:
    p = commands.add_parser(
        "reproduce",
        help="run an experiment of the paper",
        epilog="example:\n  meancap reproduce gmm --out out/gmm",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    kinds = p.add_subparsers(title="experiments", metavar="KIND", required=True)
    for add in (_add_gmm, _add_imagenet, _add_sd35, _add_fashion):
        add(kinds)


def _add_gmm(kinds: Any) -> None:
    about = "the analytic mixture: the paper's first table and its figures"
    p = add_command(kinds, "gmm", gmm, about, _GMM_EXAMPLES)
    p.add_argument("--out", required=True, type=Path, metavar="DIR", help="the run folder")
    p.add_argument(
        "--samples", type=int, default=200_000, metavar="N", help="in each row (200000, as in the paper)"
    )
    p.add_argument("--seed", type=int, default=0, help="of all noise (0)")
    p.add_argument("--repeats", type=int, default=1, metavar="N", help="independent draws of the table (1)")


def _add_imagenet(kinds: Any) -> None:
    p = _parser(kinds, "imagenet", imagenet, "SiT-XL/2 on ImageNet 256: the paper's second table")
    p.add_argument("--checkpoint", type=Path, metavar="FILE", help="SiT-XL-2-256.pt, or the like")
    add_options(p, "vae", "per_class", "channels", "batch", *_MACHINE)
    p.set_defaults(dtype="tf32", per_class=50, vae="stabilityai/sd-vae-ft-mse")


def _add_sd35(kinds: Any) -> None:
    about = "Stable Diffusion 3.5 Medium on COCO prompts: the paper's third table"
    p = _parser(kinds, "sd35", sd35, about)
    p.add_argument("--pipeline", metavar="DIR", default="stabilityai/stable-diffusion-3.5-medium",
                   help="folder or cached name")  # fmt: skip
    p.add_argument(
        "--categories", action="store_true", help="the figure of four prompts instead: dog, bedroom, ..."
    )
    add_options(p, "prompts", "size", *_MACHINE)
    p.set_defaults(dtype="bfloat16", size=(1024, 1024))


def _add_fashion(kinds: Any) -> None:
    p = _parser(kinds, "fashion", fashion, "the ImageNet protocol on the shipped model", "--per-class 20")
    p.add_argument("--scales", default="2,3,6", metavar="L", help="guidance scales (2,3,6)")
    p.add_argument("--evaluations", default="20", metavar="N", help="network evaluations, like 20,50 (20)")
    add_options(p, "per_class", "batch", "seed", "device", "threads")
    p.set_defaults(per_class=20)


def _parser(kinds: Any, name: str, run: Any, about: str, example: str = "") -> argparse.ArgumentParser:
    lines = [
        f"  meancap reproduce {name} {option} --out out/{name}"
        for option in ([example] if example else ["--plan", "--tiny"])
    ]
    p = add_command(
        kinds, name, run, about, "\n".join(lines) + "\n\nRerun a command to resume it after a stop."
    )
    p.add_argument("--out", required=True, type=Path, metavar="DIR", help="folder of all its runs")
    add_processes(p)
    if not example:
        how = p.add_mutually_exclusive_group()
        how.add_argument(
            "--plan", action="store_true", help="print what would run, its cost, what is missing"
        )
        how.add_argument(
            "--tiny", action="store_true", help="the whole way on tiny random weights, in a minute"
        )
    return p


def gmm(args: argparse.Namespace) -> int:
    import torch

    try:
        from ..gmm.experiment import count_stages, stages
        from ..gmm.figures import FIGURES
        from ..gmm.report import table_text, write_report
        from ..gmm.settings import GMMConfig
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f'reproduce gmm needs {error.name}: pip install "meancap[report]"', name=error.name
        ) from None

    # A block of samples fits the cache of one core; threads that share it only wait for each other.
    torch.set_num_threads(1)
    config = GMMConfig(args.samples, args.seed, args.repeats)
    look = "{l_bar}{bar:30}| {elapsed}<{remaining} {postfix}"
    with progress(count_stages(config) + 2 * len(FIGURES) + 2, bar_format=look) as line:
        for stage in stages(config, args.out):
            line.set_postfix_str(stage, refresh=False)
            line.update()
        for path in write_report(args.out):
            line.set_postfix_str(path.name, refresh=False)
            line.update()
    print(table_text(args.out))
    print(f"\n{args.out / 'report.html'}   the report, with figures")
    print(f"{args.out / 'table.csv'}     every number")
    return 0


def imagenet(args: argparse.Namespace) -> int:
    from ..runs import protocols

    protocol = protocols.imagenet(args.per_class)
    if args.tiny:
        from ..runs.reproduce import tiny_imagenet

        weights, vae = tiny_imagenet(args.out / "tiny")
        few = config_of(args, model=f"sit:{weights}", vae=str(vae), per_class=1, batch=2, images="npz")
        few = replace(few, classes=("0", "207", "387", "980"), diagnostics=True)
        return _run(replace(protocol, samples=4), few, args)
    if args.plan:
        needs = protocols.imagenet_needs(args.checkpoint, args.vae)
        given = f"--checkpoint {args.checkpoint or 'SiT-XL-2-256.pt'} --vae {args.vae} "
        print(protocols.plan_text(protocol, needs, args.out, picture=256, given=given))
        return 0
    if args.checkpoint is None:
        raise ValueError("give --checkpoint FILE, or --plan for what is needed, or --tiny for a rehearsal")
    return _run(protocol, config_of(args, model=f"sit:{args.checkpoint}", images="npz"), args)


def sd35(args: argparse.Namespace) -> int:
    from ..files import write_whole
    from ..runs import protocols
    from ..runs.prompts import read_prompts

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
        lines = args.prompts if args.categories else prompts
        few = config_of(args, model=f"diffusers:{pipeline}", prompts=lines, size=(32, 32), diagnostics=True)
        return _run(protocol if args.categories else protocols.sd35(2), few, args)
    if not args.categories:
        given = args.prompts is not None and args.prompts.is_file()
        protocol = protocols.sd35(len(read_prompts(args.prompts)) if given else 5000)
    if args.plan:
        needs = protocols.sd35_needs(args.pipeline, args.prompts)
        given = "--categories " if args.categories else f"--prompts {args.prompts or 'coco-val-5000.txt'} "
        print(protocols.plan_text(protocol, needs, args.out, picture=args.size[0], given=given))
        return 0
    if args.prompts is None:
        raise ValueError("give --prompts FILE, or --plan for what is needed, or --tiny for a rehearsal")
    return _run(protocol, config_of(args, model=f"diffusers:{args.pipeline}"), args)


def fashion(args: argparse.Namespace) -> int:
    from ..runs import protocols

    scales, counts = comma_numbers(args.scales, float), comma_numbers(args.evaluations, int)
    protocol = protocols.fashion(args.per_class, scales, [int(n) for n in counts], args.seed)
    return _run(protocol, config_of(args, model="fashion", images="npz", diagnostics=True), args, "fashion")


def _run(protocol: ImageProtocol, base: RunConfig, args: argparse.Namespace, score_by: str = "") -> int:
    """Makes the runs of a protocol and shows the table."""
    from ..runs.reproduce import finish, reproduce

    if starts_processes(args):
        return start_processes(args)
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
    else:
        print(
            f"meancap: {args.out} is unfinished: process {rank} of {world} has made its blocks; if the other "
            "processes have ended, rerun the command",
            file=sys.stderr,
        )
    return 0


def _draw(protocol: ImageProtocol, out: Path) -> None:
    """sweep-nN.png for every number N of evaluations; mechanism.png and qualitative.png if there are runs."""
    try:
        from ..report.pictures import sheet, write_paths
        from ..report.style import look, save_png
        from ..report.sweep import sweep
    except ImportError:
        print('meancap: no figures without matplotlib: pip install "meancap[report]"', file=sys.stderr)
        return
    from ..runs.folder import Run

    with look():
        for n in sorted({s.evaluations for s in protocol.settings}):
            save_png(sweep(out, evaluations=n), out / f"sweep-n{n}.png")
        if protocol.figures:
            plain, capped = (Run.open(out / "figures" / s.name) for s in protocol.figures)
            write_paths(plain, capped, out)
            fixed = protocol.fixed_of_figures
            rows = min(16, len(plain))
            spread = [k * len(plain) // rows for k in range(rows)]  # over all classes or prompts
            titles = [
                "no guidance\nλ = 1",
                f"fixed CFG\nλ = {fixed.scale:g}",
                f"PMC-CFG\nλ = {fixed.scale:g}",
            ]
            figure = sheet([plain, Run.open(out / fixed.name), capped], spread, titles)
            save_png(figure, out / "qualitative.png")


def _watch(steps: Iterable[BlockProgress], name: str) -> None:
    """Runs the steps with a progress bar on stderr, if tqdm is installed."""
    with progress(None, name, "block") as line:
        for step in steps:
            line.total, line.n = step.total, step.done
            line.set_postfix_str(step.setting)
