"""Millions of guided samples of a mixture: the flow of `meancap.sample`, by the fastest engine that can run
it.

    numba     one compiled loop: Euler, two dimensions, few components, float32 on the CPU
    torch     whole blocks of samples in columns: one width for all components, any dimension, any solver
    library   the loop of `meancap.sampling` in chunks: every mixture and every rule

The engines agree up to rounding, and each treats every sample by itself: neither the chunk nor the number
of threads matters. Memory beyond x and the result is that of one chunk.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from importlib.util import find_spec
from threading import Thread
from types import ModuleType

import torch
from torch import Tensor

from ..rules import Rule
from ..sampling import Step, StepMethod, euler, trajectory
from ..sampling.grid import Times, checked
from .columns import Columns, near
from .condition import Condition
from .plan import LARGEST, Plan, plan

ENGINES = ("numba", "torch", "library")
CHUNK = 32768
_LANES = 128
_NUMBERS = 2**24  # in the largest tensor that the library's loop may form for one chunk


def flow(
    condition: Condition,
    rule: Rule,
    x: Tensor,
    times: Sequence[float],
    step: StepMethod = euler,
    *,
    engine: str | None = None,
    chunk: int = CHUNK,
) -> Tensor:
    """The end of the guided flow from x (n, d) through `times`, in the precision of x."""
    grid = checked(times)
    if x.ndim != 2 or x.shape[1] != condition.mixture.means.shape[1]:
        raise ValueError(f"flow takes x (n, {condition.mixture.means.shape[1]}); got {tuple(x.shape)}")
    if chunk < 1:
        raise ValueError(f"a chunk holds at least one sample; got {chunk}")
    numbers = _numbers(condition, rule, x, grid)
    fastest = _fastest(numbers, x, step)
    engine = engine or fastest
    _need(engine, fastest, rule)
    if engine == "library" or numbers is None:
        return _by_library(condition, rule, x, grid, step, chunk)
    known = torch.linalg.vector_norm(x, dim=1) <= (near(x.shape[1]) if engine == "torch" else LARGEST)
    if known.all():
        return _by_numbers(numbers, x, grid, step, engine, chunk)
    end = torch.empty_like(x)
    end[known] = _by_numbers(numbers, x[known], grid, step, engine, chunk)
    end[~known] = _by_library(condition, rule, x[~known], grid, step, chunk)
    return end


def engine_for(
    condition: Condition, rule: Rule, x: Tensor, times: Sequence[float], step: StepMethod = euler
) -> str:
    """The engine that `flow` takes by itself."""
    return _fastest(_numbers(condition, rule, x, checked(times)), x, step)


def _numbers(condition: Condition, rule: Rule, x: Tensor, grid: Times) -> Plan | None:
    if x.dtype not in (torch.float32, torch.float64) or (x.requires_grad and torch.is_grad_enabled()):
        return None
    numbers = plan(condition, rule)
    if numbers is None or any(abs(numbers.limits(t)[0]) > LARGEST for t in grid[:-1]):
        return None
    return numbers


def _fastest(numbers: Plan | None, x: Tensor, step: StepMethod) -> str:
    if numbers is None:
        return "library"
    if step is not euler or x.dtype != torch.float32 or x.device.type != "cpu" or x.shape[1] != 2:
        return "torch"
    compiled_loop = _compiled()
    return "numba" if compiled_loop is not None and len(numbers.means) <= compiled_loop.MOST else "torch"


def _compiled() -> ModuleType | None:
    """The loop by numba, where that is there and works."""
    try:
        if find_spec("numba") is None:
            return None
        from . import compiled_loop
    except ImportError as error:  # its versions refuse those of numpy that they do not know
        warnings.warn(f"mixtures are sampled without numba, because it failed: {error}", stacklevel=2)
        return None
    return compiled_loop


def _need(engine: str, fastest: str, rule: Rule) -> None:
    if engine not in ENGINES:
        raise ValueError(f"the engines are {', '.join(ENGINES)}; got {engine!r}")
    if ENGINES.index(engine) >= ENGINES.index(fastest):
        return
    if engine == "numba" and _compiled() is None:
        raise ModuleNotFoundError('the numba engine needs numba: pip install "meancap[fast]"', name="numba")
    raise ValueError(
        f"the {engine} engine cannot run {rule} on this mixture and solver; leave engine out for {fastest}"
    )


def _by_numbers(numbers: Plan, x: Tensor, grid: Times, step: StepMethod, engine: str, chunk: int) -> Tensor:
    x = x.detach()
    if engine == "numba":
        from . import compiled_loop

        return compiled_loop.compiled_flow(numbers, x, grid)
    end = torch.empty_like(x)
    columns = Columns(numbers, x)
    for low in range(0, len(x), chunk):
        part = x[low : low + chunk]
        # Matrix products and vector loops treat the end of a ragged block differently, in the last bit.
        block = x.new_zeros(x.shape[1], -(-len(part) // _LANES) * _LANES)
        block[:, : len(part)] = part.T
        done = _worker(os.getpid()).submit(columns.flow, block, grid, step)
        end[low : low + chunk] = done.result()[:, : len(part)].T
    return end


@lru_cache(maxsize=1)
def _worker(process: int) -> ThreadPoolExecutor:
    """A thread in which torch's operations use one core; a process that was forked gets its own.

    A block fits the cache of one core: more threads mostly wait for each other, and round differently. The
    number of threads is set for the worker alone, so that flows may run in several threads of a program.
    """
    return ThreadPoolExecutor(1, initializer=_use_one_core, initargs=(torch.get_num_threads(),))


def _use_one_core(others: int) -> None:
    torch.set_num_threads(1)
    # torch also gives this number to threads that start later; a thread that ends at once takes that back.
    reset = Thread(target=torch.set_num_threads, args=(others,))
    reset.start()
    reset.join()


def _by_library(
    condition: Condition, rule: Rule, x: Tensor, grid: Times, step: StepMethod, chunk: int
) -> Tensor:
    size = max(1, min(chunk, _NUMBERS // condition.mixture.means.numel()))
    parts = [_last(trajectory(condition.predict, rule, part, grid, step)) for part in torch.split(x, size)]
    return torch.cat(parts) if parts else x.clone()


def _last(steps: Iterator[Step]) -> Tensor:
    """The end of a run; samples that start as NaN end as NaN, and nobody need be warned."""
    for step in steps:
        x = step.x_next
    return x
