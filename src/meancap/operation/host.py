"""Lengths, cap and write-back on the CPU, compiled by numba: float32 and bfloat16.

    m = a x + k out_c        the conditional mean, float32
    d = out_c - other        the direction in the network's own units, float32
    <m, m>, <d, d>, <m, d>   float32 over runs of 128 elements, float64 over the runs
    c'                       what the cap leaves of the coefficient, float64: c `fraction.kept`
    out_c + c' d             the result, float32, rounded once more to the dtype asked for

One pass over a sample sums, a second one writes; a short sample is still in the cache then. Sums are taken by
chunks of a fixed size, so that no bit of a result depends on the batch, on the order of the samples or on the
number of threads. Samples of a few elements are summed side by side in float64, and so are, each by itself,
samples whose lengths leave the range where float32 can be trusted.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from .host_kernels import CHUNK, FEW, FOLD, LENGTHS, MEASURE, WRITE, few, parts, whole
from .host_threads import by_team, threads
from .request import Numbers, Request, need_one_shape

DEVICE = "cpu"

_LIKE = {torch.float32: np.float32(0), torch.bfloat16: np.int16(0)}  # an element, as the kernels know it
_WORTH = 2**18  # elements for each thread at least: waking another one costs microseconds
_NO_SUMS = np.empty((0, 0, 3))
_NO_NUMBERS = torch.empty(4, 0, dtype=torch.float64)


def run(request: Request) -> tuple[Tensor, Tensor]:
    """The result, and the lengths and the coefficient that is left: (4, batch), float64."""
    x, out_c, other, given, ball, margin, direct, mean, dtype, capped, lengths = request
    x, out_c, other = _readable(x, out_c, other)
    numbers = _table(out_c.shape[0], given)
    if numbers.size and numbers[0, 0] == 0 and not numbers[0].any():
        x = out_c  # the mean does not depend on x: it is not read, and may hold anything
    batch, count = out_c.shape[0], out_c.numel()
    size = count // batch if batch else 0
    result = out_c if dtype is None else torch.empty_like(out_c, dtype=dtype)
    kernel = few if size <= FEW else whole
    found = np.empty((4, batch if lengths or kernel is whole else 0))
    if not capped and kernel is whole:
        found[3] = numbers[2]
    at = (x.data_ptr(), out_c.data_ptr(), other.data_ptr(), result.data_ptr())
    like = (_LIKE[x.dtype], _LIKE[out_c.dtype], _LIKE[result.dtype])
    stages = (MEASURE if capped else 0) | (WRITE if dtype is not None else 0) | (LENGTHS if lengths else 0)
    how = (ball, margin, mean, direct)
    workers = 1 if count < 2 * _WORTH else min(threads(), count // _WORTH)
    chunks = -(-size // CHUNK)
    if workers == 1:
        kernel(at, like, numbers, _NO_SUMS, found, size, 0, batch, stages, *how)
    elif chunks <= 1 or batch % workers == 0 or batch >= 4 * workers:  # whole samples for each thread
        by_team(kernel, at, like, numbers, _NO_SUMS, found, size, batch, stages, how, workers)
    else:
        some = (at, like, numbers, np.empty((batch, chunks, 3)), found, size)
        if capped:
            by_team(parts, *some, batch * chunks, MEASURE, how, workers)
            whole(*some, 0, batch, FOLD | (stages & ~WRITE), *how)
        if stages & WRITE:
            by_team(parts, *some, batch * chunks, WRITE, how, workers)
    return result, torch.from_numpy(found) if lengths else _NO_NUMBERS


def _readable(x: Tensor, out_c: Tensor, other: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The tensors as the kernels read them: element after element, and all of one shape."""
    if not x.shape == out_c.shape == other.shape or out_c.dtype != other.dtype:
        need_one_shape(x, out_c, other)
    if x.dtype not in _LIKE or out_c.dtype not in _LIKE or not (x.is_cpu and out_c.is_cpu and other.is_cpu):
        kinds = [f"{v.dtype} on {v.device}" for v in (x, out_c, other)]
        raise TypeError(f"the kernels of the host take float32 and bfloat16 on the CPU; got {kinds}")
    if not (x.is_contiguous() and out_c.is_contiguous() and other.is_contiguous()):
        x, out_c, other = x.contiguous(), out_c.contiguous(), other.contiguous()
    if x.is_neg() or out_c.is_neg() or other.is_neg():  # the sign of a view of complex numbers
        x, out_c, other = x.resolve_neg(), out_c.resolve_neg(), other.resolve_neg()
    return x, out_c, other


def _table(batch: int, given: Numbers | Tensor) -> Any:
    """The numbers as (5, batch), or (5, 1) where all samples share them."""
    if isinstance(given, Tensor):
        return given.detach().resolve_neg().contiguous().numpy()
    a, k, c, gamma, floor = given
    if type(a) is type(k) is type(c) is type(gamma) is type(floor) is float:
        return np.array(given).reshape(5, 1)
    rows = [v.item() if isinstance(v, Tensor) and v.numel() == 1 else v for v in given]
    counts = [v.numel() for v in rows if isinstance(v, Tensor)]
    if not counts:
        return np.array(rows, np.float64).reshape(5, 1)
    if any(n != batch for n in counts):
        raise ValueError(
            f"give one number for all samples, or one for each; got {counts} for {batch} samples"
        )
    table = np.empty((5, batch))
    for i, v in enumerate(rows):
        table[i] = v.detach().resolve_neg().cpu().numpy() if isinstance(v, Tensor) else v
    return table
