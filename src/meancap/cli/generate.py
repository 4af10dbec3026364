"""`meancap generate`: make samples into a run folder, in this process or in several."""

from __future__ import annotations

import argparse
import multiprocessing
import signal
import sys
from pathlib import Path
from typing import Any

from ..runs.config import add_options, config_of
from ..runs.processes import ENDED, end_with_parent, place, without_interrupts
from .command import add_command, bar

_EXAMPLES = """\
  meancap generate --model fashion --rule "CFG(4) | Cap(1.1)" --per-class 100 --out runs/cap
  meancap generate --model scenes --prompt "a red disc left of a blue square" --rule "CFG(4)" --out runs/s
  meancap generate --model sit:SiT-XL-2-256.pt --vae stabilityai/sd-vae-ft-mse --npz --out runs/xl
  meancap generate --model diffusers:DIR --prompts FILE --rule "Cap(1.1)" --guidance-scale 7 --out runs/sd
  torchrun --nproc_per_node 2 -m meancap generate ...          the same files, made by two processes
  srun --ntasks 16 --gpus-per-task 1 meancap generate ...      the same on several machines, under SLURM

Rerun a command to resume it after a stop; a folder with another configuration raises an error.
"""


def add_generate(commands: Any) -> None:
    p = add_command(
        commands, "generate", generate, "make samples of a model under a rule into a run folder", _EXAMPLES
    )
    p.add_argument("--out", required=True, type=Path, metavar="DIR", help="the run folder")
    add_options(p)
    add_processes(p)


def add_processes(p: argparse.ArgumentParser) -> None:
    p.add_argument("--processes", type=int, default=1, metavar="N", help="processes to start here (1)")


def generate(args: argparse.Namespace) -> int:
    if starts_processes(args):
        return start_processes(args)
    from ..runs.generate import make_run
    from ..runs.prepare import open_model

    rank, world, local = place()
    config = config_of(args)
    prepared = open_model(config, device_of(args, local)).prepare(config)
    store = prepared.store(args.out)
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
    else:
        missing = len(store.missing(range(prepared.config.blocks)))
        print(
            f"meancap: {args.out} is unfinished: {missing} of {prepared.config.blocks} blocks are missing, "
            f"none of process {rank} of {world}; if the other processes have ended, rerun the command",
            file=sys.stderr,
        )
    return 0


def unwritable(out: Path, error: OSError, kept: str) -> int:
    """Prints the disk's error and what was saved; returns the exit code."""
    print(
        f"meancap: cannot write to {out} ({error.strerror or error}); {kept}: make room and rerun it",
        file=sys.stderr,
    )
    return 1


def device_of(args: argparse.Namespace, local: int = 0) -> str:
    """The device of this process; on a CPU it also fixes the number of threads, on which bits depend."""
    import torch

    here = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    device: str = args.device or ("cuda" if here["cuda"] else "cpu")
    if not here.get(device.partition(":")[0]):
        present = ", ".join(kind for kind, there in here.items() if there)
        raise ValueError(f"--device {device} is not on this machine; it has {present}")
    if device == "cpu":
        torch.set_num_threads(args.threads)
    return f"cuda:{local % torch.cuda.device_count()}" if device == "cuda" else device


def starts_processes(args: argparse.Namespace) -> bool:
    """Whether --processes asks for several and no launcher has started this one among others."""
    if args.processes < 1:
        raise ValueError(f"--processes must be at least 1; got {args.processes}")
    return args.processes > 1 and place()[1] == 1


def start_processes(args: argparse.Namespace) -> int:
    """Runs this command in several processes, each with its rank, as torchrun starts them."""
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
            f"meancap: {args.out} is unfinished: a process was ended by signal {-killed}, perhaps for want "
            "of memory; rerun the command to go on",
            file=sys.stderr,
        )
    return max(map(abs, codes))


def _one_of(args: argparse.Namespace, rank: int) -> None:
    """One process of several; only the first prints errors that all of them meet."""
    import os

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
