# mypy: allow-untyped-defs, allow-untyped-decorators, allow-untyped-calls
"""The kernels of the host by several threads: torch's own, so that nobody waits for a core.

torch runs its loops by OpenMP, whose threads stay awake for a while after each: threads of another pool would
have to wait for them. `GOMP_parallel` lends them to compiled code. Where torch has no such OpenMP (macOS,
Windows), and in a forked process, where OpenMP's threads are gone, one thread does the work.
"""

from __future__ import annotations

import ctypes
import os
from functools import cache
from typing import Any

import numba  # type: ignore[import-untyped,unused-ignore]
import numpy as np
import torch

from .host_memory import pointer, taken
from .request import PROCESS

_numba: Any = numba  # it has more than its types say


def threads() -> int:
    """How many threads a call may use: as many as torch has."""
    return 1 if os.getpid() != PROCESS or _lend() is None else torch.get_num_threads()


def by_team(
    kernel: Any, at: Any, like: Any, numbers: Any, sums: Any, results: Any,
    size: int, count: int, stage: int, how: tuple[bool, float, bool, bool], workers: int,
) -> None:  # fmt: skip
    """`kernel` on range(count), in as many equal parts as there are workers."""
    ball, margin, mean, direct = how
    # In the order in which `_share` reads them.
    arrays = [word for v in (numbers, sums, results) for word in (v.ctypes.data, *v.shape[:2])]
    words = [0, workers, count, size, stage, *at, ball, mean, direct, *arrays]
    given = np.array([*words, np.float64(margin).view(np.int64)], np.int64)
    lend = _lend()
    assert lend is not None
    lend(_share(kernel, *map(type, like)).address, given.ctypes.data, workers, 0)


@cache
def _lend() -> Any:
    """OpenMP's call that runs a function in all threads of a team, or None."""
    if os.name != "posix":
        return None
    lend = getattr(ctypes.CDLL(None), "GOMP_parallel", None)
    if lend is not None:
        lend.argtypes, lend.restype = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint), None
    return lend


@cache
def _share(kernel: Any, *kinds: Any) -> Any:
    """What each thread of a team runs: parts of the work, as long as there are any."""
    like = tuple(kind(0) for kind in kinds)

    @numba.cfunc(numba.void(numba.int64))
    def share(address):
        given = pointer(address, 0)
        part = taken(given)
        while part < given[1]:  # a team may be smaller than was asked for
            first, last = given[2] * part // given[1], given[2] * (part + 1) // given[1]
            numbers = _numba.carray(pointer(given[12], 0.0), (given[13], given[14]))
            sums = _numba.carray(pointer(given[15], 0.0), (given[16], given[17], 3))
            results = _numba.carray(pointer(given[18], 0.0), (given[19], given[20]))
            at, margin = (given[5], given[6], given[7], given[8]), pointer(address, 0.0)[21]
            ball, mean, direct = given[9] != 0, given[10] != 0, given[11] != 0
            kernel(
                at, like, numbers, sums, results, given[3], first, last, given[4], ball, margin, mean, direct
            )
            part = taken(given)

    return share
