"""How the benchmarks take time and count: contenders interleaved in one run, thread CPU time, several rounds.

Each timed call follows untimed ones of the same contender, so that nobody pays for the pages that the
contender before it gave back to the system, nor for the caches that it filled: after a contender that moves
60 tensors, a call of 100 us needs two more before its time settles. Ratios survive a busy machine; seconds do
not.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from functools import cache

import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

LONG = 0.5  # seconds; a call as long as this needs no untimed one before it
SETTLED = 3  # untimed calls before a timed one
Contenders = Mapping[str, Callable[[], object]]
Rounds = dict[str, list[float]]  # thread CPU seconds of each contender, round by round


def thread_seconds() -> float:
    return time.clock_gettime_ns(time.CLOCK_THREAD_CPUTIME_ID) * 1e-9


def in_turns(
    contenders: Contenders,
    rounds: int,
    tries: int = 1,
    seconds: Callable[[], float] = thread_seconds,
    between: Callable[[], object] = lambda: None,
) -> Rounds:
    """All contenders in every round, one after the other; of several tries in a round, the least counts.

    A call of a millisecond needs tries: one interruption is longer than it. `between` runs, untimed, before
    each timed call; `flush` there empties the caches, as a network does between two steps.
    """
    found: Rounds = {name: [] for name in contenders}
    for _ in range(rounds):
        least = dict.fromkeys(contenders, float("inf"))
        for _ in range(tries):
            for name, run in contenders.items():
                for _ in range(SETTLED if not found[name] or found[name][-1] < LONG else 0):
                    run()
                between()
                start = seconds()
                run()
                least[name] = min(least[name], seconds() - start)
        for name, spent in least.items():
            found[name].append(spent)
    return found


def interleaved(
    contenders: Contenders, rounds: int, seconds: Callable[[], float] = thread_seconds
) -> dict[str, float]:
    """The least CPU seconds of each contender."""
    return {name: min(spent) for name, spent in in_turns(contenders, 1, rounds, seconds).items()}


def ratio(found: Rounds, above: str, below: str) -> dict[str, float]:
    """Median and range of the ratio of two contenders, each round by itself: fields of a `Reading`."""
    each = [a / b for a, b in zip(found[above], found[below], strict=True)]
    return {"value": statistics.median(each), "low": min(each), "high": max(each)}


_FLUSH = 2**24  # float32 numbers, 64 MB: more than the caches hold


@cache
def _ballast() -> torch.Tensor:
    return torch.zeros(_FLUSH)


def flush() -> None:
    """Empties the caches by writing more than they hold."""
    _ballast().add_(1.0)


class _Count(TorchDispatchMode):
    """Counts kernels, what is dispatched and neither a view nor an allocation, and the bytes they touch."""

    FREE = ("view", "reshape", "expand", "select", "slice", "unsqueeze", "squeeze", "flatten", "unbind",
            "detach", "split", "as_strided", "alias", "transpose", "permute", "t.", "empty", "new_empty",
            "lift_fresh", "promote_types", "local_scalar_dense", "is_autocast")  # fmt: skip
    ONLY_WRITE = ("copy_", "fill_", "zero_")

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []
        self.bytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        name = func.__name__.lstrip("_")
        if not name.startswith(self.FREE):
            self.names.append(name.split(".")[0].strip("_"))
            read = list(args[1:] if name.startswith(self.ONLY_WRITE) else args)
            read += [v for key, v in (kwargs or {}).items() if key != "out"]
            self.bytes += sum(map(_held, tree_leaves((read, found))))
        return found


def _held(v: object) -> int:
    """The bytes of a tensor; what is expanded is read from the memory it has."""
    return min(v.nbytes, v.untyped_storage().nbytes()) if isinstance(v, torch.Tensor) else 0


def counted(run: Callable[[], object]) -> tuple[list[str], int]:
    """The names of the kernels that a call dispatches, and the bytes that they read and write."""
    run()
    with _Count() as count:
        run()
    return count.names, count.bytes


def kernels(run: Callable[[], object]) -> list[str]:
    """The names of the kernels that a call dispatches."""
    return counted(run)[0]


def peak_bytes(run: Callable[[], object]) -> int:
    """The most memory that a call holds above what was held before it, its result included."""
    run()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, record_shapes=False) as trace:
        result = run()
    del result
    held = most = 0
    for event in trace.profiler.kineto_results.events():
        if event.name() == "[memory]":
            held += event.nbytes()
            most = max(most, held)
    return most
