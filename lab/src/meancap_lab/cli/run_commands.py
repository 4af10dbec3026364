"""`meancap generate` and `reproduce KIND`: samples into run folders."""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Mapping
from dataclasses import replace
from itertools import chain
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

from meancap import Calibration

from ..extras import need, pip_command
from ..runs.processes import place
from .command import add_command, progress, unfinished
from .run_options import add_options, config_of

if TYPE_CHECKING:
    from ..runs.config import RunConfig
    from ..runs.paper_protocols import ImageProtocol

_GENERATE = """\
  meancap generate --model fashion --rule "CFG(4) | Cap(1.1)" --per-class 100 --out runs/cap
  meancap generate --model fashion --rule rule.json --per-class 10 --out runs/calibrated
  meancap generate --model scenes --prompt "a red disc left of a blue square" --rule "CFG(4)" --out runs/s
  meancap generate --model sit:SiT-XL-2-256.pt --vae stabilityai/sd-vae-ft-mse --npz --out runs/xl
  meancap generate --model diffusers:DIR --prompts FILE --rule "Cap(1.1)" --guidance-scale 7 --out runs/sd
  torchrun --nproc_per_node 2 -m meancap generate ...          the same files, made by two processes
  srun --ntasks 16 --gpus-per-task 1 meancap generate ...      the same on several machines, under SLURM

Rerun a command to resume it after a stop; a folder with another configuration raises an error.
"""


def add_generate(commands: Any) -> None:
    p = add_command(
        commands, "generate", generate, "make samples of a model under a rule into a run folder", _GENERATE
    )
    p.add_argument("--out", required=True, type=Path, metavar="DIR", help="the run folder")
    add_options(p)


def generate(args: argparse.Namespace) -> int:
    from ..runs.folder import Ledger
    from ..runs.generate import generate

    here, config = place(), config_of(args)
    if config.rule is not None and config.rule.endswith(".json"):
        config = replace(config, rule=str(Calibration.load(config.rule)))
    rank, world, _ = here

    def tick(done: int, todo: int) -> None:
        line.total = todo
        line.update(done - line.n)

    blocks = generate(args.out, config, here, tick)
    try:
        with progress(None, args.out.name if world == 1 else f"{args.out.name} [{rank}]", "step") as line:
            for _ in blocks:
                pass
    except OSError as error:
        saved, total = _blocks(args.out)
        raise SystemExit(_unwritable(args.out, error, f"{saved} of {total} blocks are kept")) from None
    content = Ledger(args.out, "images").read() or {}
    counts = content["finished"]
    if counts is None:
        saved, total = _blocks(args.out)
        return unfinished(args.out, f"{total - saved} of {total} blocks are missing", rank, world)
    print(f"{args.out}: {counts['samples']} samples, {content['config']['rule'] or 'no rule'}")
    return _not_finite({args.out: counts})


def _blocks(out: Path) -> tuple[int, int]:
    """How many blocks of an unfinished run are saved, and how many it has."""
    from ..runs.folder import Ledger

    config = (Ledger(out, "images").read() or {})["config"]
    return len(list(out.glob("blocks/*.json"))), -(-config["count"] // config["batch"])


def _not_finite(counts: Mapping[Path, Mapping[str, int]]) -> int:
    """Prints which runs hold samples that are NaN or infinite; returns the exit code."""
    lost = {out: one["not_finite"] for out, one in counts.items() if "not_finite" in one}
    for out, count in lost.items():
        print(
            f"meancap: {count} of {counts[out]['samples']} samples in {out} ended as NaN or infinity; check "
            "the weights and the rule",
            file=sys.stderr,
        )
    return 1 if lost else 0


def _unwritable(out: Path, error: OSError, kept: str) -> int:
    """Prints the disk's error and what was saved; returns the exit code."""
    print(
        f"meancap: cannot write to {out} ({error.strerror or error}); {kept}: make room and rerun it",
        file=sys.stderr,
    )
    return 1


_MACHINE = ("dtype", "device", "threads")
_GMM_EXAMPLES = """\
  meancap reproduce gmm --out out/gmm                   the table of the paper and its figures, half a minute
  meancap reproduce gmm --out out/gmm20 --repeats 20    means and standard deviations instead of one draw

DIR gets table.csv, report.html, report.md, figures/ (PNG and SVG), data/ and run.json. Rerun the command to
resume it after a stop; a folder with another configuration is refused."""


def add_prompts(commands: Any) -> None:
    p = add_command(
        commands, "prompts", _prompts, "make the prompt file of `reproduce sd35` from COCO's captions",
        "  meancap prompts coco captions_val2017.json --out coco-val-5000.txt\n\n"
        "The first caption of each image, shuffled by the seed as in the authors' generate_coco_sd35.py.\n",
    )  # fmt: skip
    p.add_argument("data", choices=("coco",))
    p.add_argument("captions", type=Path, metavar="FILE", help="captions_val2017.json")
    p.add_argument("--count", type=int, default=5000, metavar="N", help="images (5000)")
    p.add_argument("--seed", type=int, default=42, metavar="N", help="of the order (42)")
    how = "one prompt per line (coco-val-5000.txt); seed and order go to a .json beside it"
    place = Path("coco-val-5000.txt")
    p.add_argument("--out", type=Path, default=place, metavar="FILE", help=how)
    p.set_defaults(out_is_file=True)


def _prompts(args: argparse.Namespace) -> int:
    from ..runs.prompts import coco_prompts

    about = coco_prompts(args.captions, args.out, args.count, args.seed)
    print(f"{args.out}: {args.count} prompts, seed {args.seed}, sha256 {about['prompts_sha256']}")
    return 0


def add_reproduce(commands: Any) -> None:
    p = commands.add_parser(
        "reproduce",
        help="run an experiment of the paper",
        epilog="example:\n  meancap reproduce gmm --out out/gmm",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    kinds = p.add_subparsers(title="experiments", metavar="KIND", required=True)
    for add in (_add_gmm, _add_imagenet, _add_sd35, _add_fashion, _add_cifar):
        add(kinds)


def _add_gmm(kinds: Any) -> None:
    about = "the analytic mixture: the paper's first table and its figures"
    p = add_command(kinds, "gmm", gmm, about, _GMM_EXAMPLES)
    p.add_argument("--out", required=True, type=Path, metavar="DIR", help="the run folder")
    p.add_argument(
        "--samples",
        type=int,
        default=200_000,
        metavar="N",
        help="samples in each row (200000, as in the paper)",
    )
    p.add_argument("--seed", type=int, default=0, help="seed of all noise (0)")
    p.add_argument("--repeats", type=int, default=1, metavar="N", help="independent draws of the table (1)")


def _add_imagenet(kinds: Any) -> None:
    p = _parser(kinds, "imagenet", imagenet, "SiT-XL/2 on ImageNet 256: the paper's second table")
    p.add_argument(
        "--checkpoint", type=Path, metavar="FILE", help="checkpoint of a SiT, such as SiT-XL-2-256.pt"
    )
    p.add_argument("--channels", default="4", metavar="4|3|paper",
                   help="guided latent channels of every method (4), or as in the authors' code: 3 for CFG "
                   "and C2FG, 4 for PMC and APG")  # fmt: skip
    add_options(p, "vae", "per_class", "batch", "noise", *_MACHINE)
    p.set_defaults(dtype="tf32", per_class=50, vae="stabilityai/sd-vae-ft-mse")


def _add_sd35(kinds: Any) -> None:
    about = "Stable Diffusion 3.5 Medium on COCO prompts: the paper's third table"
    p = _parser(kinds, "sd35", sd35, about)
    p.add_argument("--pipeline", metavar="DIR", default="stabilityai/stable-diffusion-3.5-medium",
                   help="folder or cached name")  # fmt: skip
    p.add_argument("--figure", choices=("categories", "text"), help="a figure instead: four prompts, or a "
                   "sign that says hello world")  # fmt: skip
    add_options(p, "prompts", "size", "noise", *_MACHINE)
    p.set_defaults(dtype="bfloat16", size=(1024, 1024))


def _add_fashion(kinds: Any) -> None:
    p = _parser(
        kinds, "fashion", reproduce_fashion, "the ImageNet protocol on the shipped model", "--per-class 20"
    )
    p.add_argument("--scales", default="2,3,6", type=_floats, metavar="L", help="guidance scales (2,3,6)")
    how = "network evaluations, like 20,50 (20)"
    p.add_argument("--evaluations", default="20", type=_integers, metavar="N", help=how)
    add_options(p, "per_class", "batch", "seed", "device", "threads")
    p.set_defaults(per_class=20)


def _add_cifar(kinds: Any) -> None:
    about = "the ImageNet protocol on the shipped model of natural pictures"
    p = _parser(kinds, "cifar", cifar, about, "--per-class 20")
    how = "network evaluations, like 20,50 (20)"
    p.add_argument("--evaluations", default="20", type=_integers, metavar="N", help=how)
    p.add_argument("--weights", type=Path, metavar="FILE", help="another network than the shipped one")
    add_options(p, "per_class", "batch", "seed", *_MACHINE)
    p.set_defaults(dtype="bfloat16", per_class=500, batch=100)


def _floats(text: str) -> list[float]:
    return list(dict.fromkeys(map(float, text.split(","))))


def _integers(text: str) -> list[int]:
    return list(dict.fromkeys(map(int, text.split(","))))


def _parser(kinds: Any, name: str, run: Any, about: str, example: str = "") -> argparse.ArgumentParser:
    lines = [
        f"  meancap reproduce {name} {option}" for option in ([example] if example else ["--plan", "--tiny"])
    ]
    p = add_command(
        kinds, name, run, about, "\n".join(lines) + "\n\nRerun a command to resume it after a stop."
    )
    out = Path("out") / name
    p.add_argument("--out", type=Path, default=out, metavar="DIR", help=f"folder of all its runs ({out})")
    p.set_defaults(parser=p)
    if not example:
        p.add_argument("--plan", action="store_true", help="print what would run, its cost, what is missing")
        p.add_argument(
            "--tiny", action="store_true", help="run, score and report on tiny random weights, in a minute"
        )
    return p


def gmm(args: argparse.Namespace) -> int:
    import torch

    need("matplotlib", "report")
    from ..mixtures.gmm_experiment import count_stages, stages
    from ..mixtures.gmm_figures import FIGURES
    from ..mixtures.gmm_report import table_text, write_report
    from ..mixtures.gmm_settings import GMMConfig

    # A block of samples fits the cache of one core; threads that share it only wait for each other.
    torch.set_num_threads(1)
    config = GMMConfig(args.samples, args.seed, args.repeats)
    look = "{l_bar}{bar:30}| {elapsed}<{remaining} {postfix}"
    with progress(count_stages(config) + 2 * len(FIGURES) + 2, bar_format=look) as line:
        for done in chain(stages(config, args.out), map(str, write_report(args.out))):
            line.set_postfix_str(done, refresh=False)
            line.update()
    print(table_text(args.out))
    print(f"\n{args.out / 'report.html'}   the report, with figures")
    print(f"{args.out / 'table.csv'}     every number")
    return 0


def imagenet(args: argparse.Namespace) -> int:
    from ..runs import paper_protocols

    protocol = paper_protocols.imagenet(args.per_class, args.channels, args.vae, args.dtype)
    if args.tiny:
        protocol = replace(protocol, samples=4, mechanism_samples=(300, 4, 20))
    if args.plan:
        needs = paper_protocols.imagenet_needs(args.checkpoint, args.vae)
        args.checkpoint = args.checkpoint or (None if args.tiny else Path("SiT-XL-2-256.pt"))
        return _print_plan(protocol, needs, args, 256)
    if args.tiny:
        from ..runs.reproduce import tiny_imagenet

        weights, vae = tiny_imagenet(args.out / "tiny")
        few = config_of(
            args, model=f"sit:{weights}", vae=str(vae), per_class=1, batch=2, images="npz", channels=None
        )
        return _run(protocol, replace(few, classes=("0", "207", "387", "980"), diagnostics=True), args, "hsv")
    if args.checkpoint is None:
        raise ValueError("give --checkpoint FILE, or --plan for what is needed, or --tiny for a rehearsal")
    base = config_of(args, model=f"sit:{args.checkpoint}", images="npz", channels=None)
    return _run(protocol, base, args)


def sd35(args: argparse.Namespace) -> int:
    from meancap.files import write_whole

    from ..runs import paper_protocols
    from ..runs.generate import read_prompts

    if args.figure:
        if args.prompts is not None:
            raise ValueError("--figure has prompts of its own; leave --prompts out")
        protocol = paper_protocols.sd35_figure(args.figure)
    else:
        given = args.prompts is not None and args.prompts.is_file()
        protocol = paper_protocols.sd35(len(read_prompts(args.prompts)) if given else 5000)
    if args.tiny and not args.figure:
        protocol = paper_protocols.sd35(2)
    if args.plan:
        needs = paper_protocols.sd35_needs(protocol, args.pipeline, args.prompts)
        if not args.tiny and not args.figure:
            args.prompts = args.prompts or Path("coco-val-5000.txt")
        return _print_plan(protocol, needs, args, args.size[0])
    if args.figure:
        args.prompts = args.out / "prompts.txt"
        args.out.mkdir(parents=True, exist_ok=True)
        write_whole(args.prompts, "\n".join(paper_protocols.figure_prompts(args.figure)) + "\n")
    if args.tiny:
        from ..runs.reproduce import tiny_sd35

        pipeline, prompts = tiny_sd35(args.out / "tiny")
        lines = args.prompts if args.figure else prompts
        few = config_of(args, model=f"diffusers:{pipeline}", prompts=lines, size=(32, 32), diagnostics=True)
        return _run(protocol, few, args, "hsv")
    if args.prompts is None:
        raise ValueError("give --prompts FILE, or --plan for what is needed, or --tiny for a rehearsal")
    return _run(protocol, config_of(args, model=f"diffusers:{args.pipeline}"), args)


def _print_plan(protocol: ImageProtocol, needs: list[Any], args: argparse.Namespace, picture: int) -> int:
    """The plan, whose commands repeat the options that were given."""
    from ..runs.paper_protocols import plan_text

    given = ""
    for name, value in vars(args).items():
        if name not in ("run", "parser", "out", "plan") and value != args.parser.get_default(name):
            word = value[0] if name == "size" else value
            given += f"--{name.replace('_', '-')} " + ("" if word is True else f"{quote(str(word))} ")
    out = Path(quote(str(args.out)))
    print(plan_text(protocol, needs, out, picture, args.dtype, given, tiny=args.tiny))
    return 0


def reproduce_fashion(args: argparse.Namespace) -> int:
    from ..runs import paper_protocols

    protocol = paper_protocols.fashion_protocol(args.per_class, args.scales, args.evaluations, args.seed)
    return _run(protocol, config_of(args, model="fashion", images="npz", diagnostics=True), args, "fashion")


def cifar(args: argparse.Namespace) -> int:
    from ..runs import paper_protocols

    protocol = paper_protocols.cifar(args.per_class, args.evaluations, args.seed)
    model = "cifar" if args.weights is None else f"cifar:{args.weights}"
    code = _run(protocol, config_of(args, model=model, images="npz"), args)
    if code == 0:
        print(
            f"score them: meancap score {args.out}/*-n* --protocol adm-cifar10 --reference cifar-10",
            file=sys.stderr,
        )
    return code


def _run(protocol: ImageProtocol, base: RunConfig, args: argparse.Namespace, score_by: str = "") -> int:
    """Makes the runs of a protocol and shows the table; a rehearsal goes on to the report."""
    from ..report.document import Table, aligned
    from ..runs.folder import Run
    from ..runs.reproduce import finish, reproduce

    rank, world, local = place()
    steps = reproduce(protocol, base, args.out, local=local, rank=rank, world=world)
    try:
        with progress(None, protocol.name, "block") as line:
            for step in steps:
                line.total, line.n = step.total, step.done
                line.set_postfix_str(step.setting)
    except OSError as error:
        raise SystemExit(_unwritable(args.out, error, "finished blocks are kept")) from None
    if finish(protocol, args.out, score_by):
        head, *rows = csv.reader((args.out / "table.csv").read_text(encoding="utf-8").splitlines())
        print(aligned(Table(tuple(head), (tuple(map(tuple, rows)),))))
        if protocol.mechanism or score_by == "hsv":
            _draw(protocol, args.out, whole_report=score_by == "hsv")
        print(f"{args.out}: {len(protocol.settings)} runs; rules in protocol.json", file=sys.stderr)
        runs = [args.out / setting.name for setting in protocol.settings]
        return _not_finite({run: Run.open(run).finished for run in runs})
    return unfinished(args.out, "blocks are missing", rank, world)


def _draw(protocol: ImageProtocol, out: Path, *, whole_report: bool) -> None:
    """mechanism.png, its numbers and qualitative.png, if the protocol has runs for them, and the report."""
    try:
        from ..report.pictures import mechanism, mechanism_csv, sheet
        from ..report.score_page import write_report
        from ..report.style import look, save_png
    except ImportError:
        print(
            f"meancap: skipped the figures, which need matplotlib; run {pip_command('report')}",
            file=sys.stderr,
        )
        return
    from meancap.files import write_whole

    from ..runs.folder import Run

    if protocol.mechanism:
        plain, capped = (Run.open(out / name) for name in list(protocol.figure_runs)[-2:])
        shown = [Run.open(out / name) for name in protocol.matched]
        rows = min(16, len(shown[0]))
        spread = [k * len(shown[0]) // rows for k in range(rows)]  # over all classes or prompts
        strong = f"λ = {protocol.mechanism[1].scale:g}"
        titles = ["no guidance\nλ = 1", f"fixed CFG\n{strong}", f"PMC-CFG\n{strong}"]
        write_whole(out / "mechanism.csv", mechanism_csv(plain, capped))
        with look():
            save_png(mechanism([(plain, capped)]), out / "mechanism.png")
            save_png(sheet(shown, spread, titles), out / "qualitative.png")
    for path in write_report(out) if whole_report else ():
        print(path)
