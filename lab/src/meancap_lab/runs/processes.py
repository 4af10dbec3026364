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
_SRUN = ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID")


def place() -> tuple[int, int, int]:
    """Rank, number of processes, and rank on this machine, from torchrun, accelerate or srun."""
    names = _SRUN if "SLURM_PROCID" in os.environ and "RANK" not in os.environ else _TORCHRUN
    numbers = []
    for name, default in zip(names, ("0", "1", "0"), strict=True):
        text = os.environ.get(name, default)
        if not text.isdigit():
            raise ValueError(f"the environment variable {name} must be a whole number; got {text!r}")
        numbers.append(int(text))
    rank, world, local = numbers
    if not rank < max(world, 1):
        raise ValueError(f"{names[0]}={rank} needs a {names[1]} above it; got {world}")
    return rank, max(world, 1), local


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
