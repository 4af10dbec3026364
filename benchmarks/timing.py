"""How the benchmarks take time: contenders interleaved in one run, thread CPU time, the least of all rounds.

Each timed call follows an untimed one of the same contender, so that nobody pays for the pages that the
contender before it gave back to the system. Ratios survive a busy machine; seconds do not.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode


def thread_seconds() -> float:
    return time.clock_gettime_ns(time.CLOCK_THREAD_CPUTIME_ID) * 1e-9


def interleaved(contenders: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """The least thread CPU seconds of each contender."""
    best = dict.fromkeys(contenders, float("inf"))
    for _ in range(rounds):
        for name, run in contenders.items():
            run()
            start = thread_seconds()
            run()
            best[name] = min(best[name], thread_seconds() - start)
    return best


class _Count(TorchDispatchMode):
    """Counts kernels: what is dispatched and neither a view nor an allocation."""

    FREE = ("view", "reshape", "expand", "select", "slice", "unsqueeze", "flatten", "unbind", "detach",
            "split", "as_strided", "alias", "transpose", "empty", "new_empty", "lift_fresh", "promote_types",
            "local_scalar_dense", "is_autocast")  # fmt: skip

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.__name__.split(".")[0].strip("_")
        if not name.startswith(self.FREE):
            self.names.append(name)
        return func(*args, **(kwargs or {}))


def kernels(run: Callable[[], object]) -> list[str]:
    """The names of the kernels that a call dispatches."""
    run()
    with _Count() as count:
        run()
    return count.names


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


def versions() -> str:
    import diffusers

    return f"torch {torch.__version__}, diffusers {diffusers.__version__}, {torch.get_num_threads()} thread"
