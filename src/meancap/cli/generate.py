"""`meancap generate`: parse, run, show progress."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import signal
import sys
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .progress import bar

if TYPE_CHECKING:
    from ..runs.prepare import RunRequest

Commands = Any  # argparse's sub-parsers, whose type has no public name

_EXAMPLES = """\
examples:
  meancap generate --model fashion --rule "CFG(4) | Cap(1.1)" --per-class 100 --out runs/cap
  meancap generate --model scenes --prompt "a red disc left of a blue square" --rule "CFG(4)" --out runs/s
  meancap generate --model sit:SiT-XL-2-256.pt --vae stabilityai/sd-vae-ft-mse --npz --out runs/xl
  meancap generate --model diffusers:DIR --prompts FILE --rule "Cap(1.1)" --guidance-scale 7 --out runs/sd
  torchrun --nproc_per_node 2 -m meancap generate ...          the same files, made by two processes

Give the same command again to go on after a stop; a folder with another configuration is refused.
"""


def add_generate(commands: Commands) -> None:
    """Registers the command."""
    p = commands.add_parser(
        "generate",
        help="make samples into a run folder",
        description="Make samples of a model under a guidance rule into a run folder.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    p.add_argument(
        "--model", required=True, metavar="M", help="fashion, scenes[:PATH], sit:PATH or diffusers:PATH"
    )
    p.add_argument("--rule", metavar="R", help='guidance, such as "CFG(4) | Cap(1.1)"; none if not given')
    p.add_argument("--out", required=True, type=Path, metavar="DIR", help="the run folder")
    p.add_argument("--steps", type=int, default=50, metavar="N", help="with Euler also evaluations (50)")
    p.add_argument("--seed", type=int, default=0, help="of the run; each sample has one of its own (0)")
    p.add_argument("--npz", action="store_true", help="one samples.npz (arr_0 uint8 NHWC), no PNG files")
    p.add_argument("--diagnostics", action="store_true", help="keep the guidance meter of every step")
    classes = p.add_argument_group("class models and scenes (fashion, scenes, sit:)")
    classes.add_argument(
        "--per-class", type=int, default=10, metavar="N", help="samples of each class or prompt (10)"
    )
    classes.add_argument("--classes", metavar="A,B", help="only these classes, by number or name")
    classes.add_argument("--solver", default="euler", help="euler (default), heun, midpoint or rk4")
    classes.add_argument("--sampler", default="ode", choices=("ode", "ancestral"), help=_SAMPLER)
    classes.add_argument("--eta", type=float, metavar="E", help="its noise level, 0 (ODE) to 1 (default)")
    classes.add_argument("--batch", type=int, default=50, metavar="N", help="made and saved at once (50)")
    classes.add_argument("--channels", type=int, metavar="N", help="guide only the first N latent channels")
    classes.add_argument("--vae", metavar="DIR", help="autoencoder of a latent model: folder or cached name")
    p.add_argument("--prompts", type=Path, metavar="FILE", help="one prompt per line (scenes, diffusers:)")
    sentences = p.add_argument_group("scenes")
    sentences.add_argument("--prompt", metavar="S", help='one sentence, such as "a red disc above a square"')
    p.add_argument("--negative", metavar="S", help="a sentence or class to avoid (scenes, fashion, sit:)")
    prompts = p.add_argument_group("pipelines (diffusers:)")
    prompts.add_argument("--guidance-scale", type=float, metavar="S", help="what the pipeline itself is told")
    prompts.add_argument("--size", type=int, metavar="PX", help="height and width of the pictures")
    prompts.add_argument("--noise", default="per sample", choices=("per sample", "stream"), help=_NOISE)
    add_machine(p)
    p.set_defaults(run=generate)


_SAMPLER = "'ancestral' adds fresh noise in each step; a scale means another strength there (ode)"
_NOISE = "'stream' is one generator over all prompts in order, as in the paper's SD3.5 runs"


def add_machine(p: argparse.ArgumentParser) -> None:
    """Options that tell where to compute."""
    machine = p.add_argument_group("machine")
    kinds = ("float32", "tf32", "bfloat16", "float16")
    machine.add_argument("--dtype", default="float32", choices=kinds, help="of the network (float32)")
    machine.add_argument("--device", help="cpu, cuda or mps; default cuda where there is one, else cpu")
    machine.add_argument("--threads", type=int, default=1, help="CPU threads; they are part of the run (1)")
    machine.add_argument("--processes", type=int, default=1, metavar="N", help="processes to start here (1)")


def generate(args: argparse.Namespace) -> int:
    if args.processes > 1 and "RANK" not in os.environ:
        return spread(args)
    from ..runs.folder import Store
    from ..runs.generate import make_run, place
    from ..runs.prepare import open_model

    rank, world, local = place()
    request = request_of(args)
    prepared = open_model(request, device_of(args, local)).prepare(request)
    store = Store(args.out, prepared.config, prepared.made_with)
    mine = range(rank, prepared.config.blocks, world)
    try:
        name = args.out.name if world == 1 else f"{args.out.name} [{rank}]"
        for _ in bar(make_run(store, prepared.make, rank, world), len(store.missing(mine)), name):
            pass
    except OSError as error:
        kept = len(mine) - len(store.missing(mine))
        raise SystemExit(unwritable(args.out, error, f"{kept} of {len(mine)} blocks are kept")) from None
    if store.finished:
        print(f"{args.out}: {prepared.config.count} samples, {prepared.config.rule or 'no rule'}")
    return 0


def unwritable(out: Path, error: OSError, kept: str) -> int:
    """Prints the disk's error and what was saved; returns the exit code."""
    reason = error.strerror or str(error)
    print(
        f"meancap: cannot write to {out} ({reason}); {kept}: make room and give the same command again",
        file=sys.stderr,
    )
    return 1


def request_of(args: argparse.Namespace) -> RunRequest:
    """The options as a value."""
    from ..runs.prepare import RunRequest

    return RunRequest(**{f.name: getattr(args, f.name) for f in fields(RunRequest) if hasattr(args, f.name)})


def device_of(args: argparse.Namespace, local: int = 0) -> str:
    """The device of this process; on a CPU it also fixes the number of threads, on which bits depend."""
    import torch

    here = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    device: str = args.device or ("cuda" if here["cuda"] else "cpu")
    if not here.get(device.partition(":")[0]):
        present = ", ".join(kind for kind, there in here.items() if there)
        raise ValueError(f"--device {device} is not on this machine; it has {present}")
    for name in ("threads", "processes"):
        if getattr(args, name) < 1:
            raise ValueError(f"--{name} must be at least 1; got {getattr(args, name)}")
    if device == "cpu":
        torch.set_num_threads(args.threads)
    return f"cuda:{local % torch.cuda.device_count()}" if device == "cuda" else device


def spread(args: argparse.Namespace) -> int:
    """Runs this command in several processes, each with its rank, as torchrun starts them."""
    from ..runs.child_processes import without_interrupts

    fresh = multiprocessing.get_context("spawn")
    running = [fresh.Process(target=_one_of, args=(args, rank)) for rank in range(args.processes)]
    try:
        with without_interrupts():
            for one in running:
                one.start()
        for one in running:
            one.join()
    except KeyboardInterrupt:  # the others do not hear it
        started = [one for one in running if one.pid]
        for one in started:
            one.terminate()
        for one in started:
            one.join()
        raise
    codes = [one.exitcode or 0 for one in running]
    if (killed := min(codes)) < 0:  # such a process could not print why
        print(
            f"meancap: a process was ended by signal {-killed}, perhaps for want of memory; "
            "give the same command again to go on",
            file=sys.stderr,
        )
    return max(map(abs, codes))


def _one_of(args: argparse.Namespace, rank: int) -> None:
    """One process of several; only the first prints errors that all of them meet."""
    from ..runs.child_processes import ENDED, end_with_parent

    end_with_parent()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(ENDED))  # in order: semaphores are given back
    place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": args.processes}
    os.environ.update({name: str(value) for name, value in place.items()})
    try:
        code = args.run(args)
    except (ValueError, OSError, ImportError) as error:
        if rank == 0:
            print(f"meancap: {error}", file=sys.stderr)
        code = 2
    except KeyboardInterrupt:
        code = 130
    raise SystemExit(code)


def need_matplotlib(command: str) -> None:
    """Raises one sentence if the drawing package is missing; the images extra does not include it."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise ImportError(f'meancap {command} draws with matplotlib: pip install "meancap[report]"') from None
