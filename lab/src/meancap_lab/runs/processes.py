"""This process among others: its rank from the launcher, and workers that end with their parent.

A run is safe against a kill at any moment, so workers may simply be stopped; without `end_with_parent`, a
worker whose parent died would go on for hours.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import parent_process, resource_tracker
from threading import Thread, current_thread, main_thread

_ENDED = 143  # the exit code of a process that was told to end: 128 + SIGTERM
_TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK")  # accelerate sets them too
_SRUN = ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID")  # of a step; sbatch has tasks, no step


def place() -> tuple[int, int, int]:
    """Rank, number of processes, and rank on this machine, from torchrun, accelerate or srun.

    Raises an error for a process that belongs to several but was started alone: it would make a part.
    """
    known = os.environ
    names = _SRUN if "SLURM_STEP_NUM_TASKS" in known and "RANK" not in known else _TORCHRUN
    numbers = []
    for name, default in zip(names, ("0", "1", "0"), strict=True):
        text = known.get(name, default)
        if not text.isdigit():
            raise ValueError(f"the environment variable {name} must be a whole number; got {text!r}")
        numbers.append(int(text))
    rank, world, local = numbers
    if world > 1 and names[0] not in known:
        raise ValueError(
            f"{names[1]}={world} needs {names[0]}, the number of this process; start it with torchrun or "
            f"srun, or unset {names[1]} to make everything in one process"
        )
    tasks = known.get("SLURM_NTASKS", "1")
    if names is _TORCHRUN and "RANK" not in known and "SLURM_PROCID" in known and tasks != "1":
        raise ValueError(
            f"this is one process in a SLURM job of {tasks} tasks; start it as `srun meancap ...`, or give "
            "sbatch --ntasks=1 to make everything in one process"
        )
    if not rank < max(world, 1):
        raise ValueError(f"{names[0]}={rank} needs a {names[1]} above it; got {world}")
    return rank, max(world, 1), local


def launched() -> bool:
    """Whether a launcher started this process with others: it reports those that fail, and may end all."""
    return any(name in os.environ for name in ("TORCHELASTIC_RUN_ID", _SRUN[1]))


@contextmanager
def without_interrupts() -> Iterator[None]:
    """Processes that are started in here never receive Ctrl-C, not even while they import.

    They inherit a mask of signals. This process, whose other threads have no mask, receives it at the end.
    """
    if not hasattr(signal, "pthread_sigmask") or current_thread() is not main_thread():
        yield
        return
    resource_tracker.ensure_running()  # it would take the mask away when it is started by the first of them
    heard: list[int] = []
    handler = signal.signal(signal.SIGINT, lambda number, _: heard.append(number))
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(signal.SIGINT, handler)
    if heard:
        signal.raise_signal(signal.SIGINT)


def end_with_parent() -> None:
    """Called once in a process that `multiprocessing` started; does nothing in any other."""
    parent = parent_process()
    if parent is None:
        return

    def follow() -> None:
        parent.join()  # the system closes a pipe when the parent dies, by whatever signal
        os._exit(_ENDED)

    Thread(target=follow, daemon=True).start()
