"""The capped step on CUDA: one launch, or two where a sample does not fit in registers.

Nothing waits for the device, and all memory comes from torch, so that the step can be captured in a graph.
"""

from __future__ import annotations

import struct

import torch
import triton  # type: ignore[import-untyped,import-not-found,unused-ignore]
from torch import Tensor

from ..tensors import Lengths, Number
from .kernels import PARTS, RUN, part_sums, part_velocities, whole_samples

ONE_LAUNCH = 16384  # elements of a sample that one program holds; half as many where they come one by one
TILE = 4096  # elements at a time where they do not all fit
LEAST = 1024  # elements of one program at least: several samples where these are small


def capped_step(
    x: Tensor,
    t: Number,
    v_c: Tensor,
    v_u: Tensor,
    c: Number,
    gamma: Number,
    floor: Number | None,
    *,
    ball: bool,
    margin: float,
    dtype: torch.dtype,
) -> tuple[Tensor, Lengths, Tensor]:
    """The guided velocity, what the cap saw of each sample, and the coefficient that it left.

    c, gamma, floor  the coefficient asked for, and the cap; `ball` tells Cap from CapDisplacement
    margin           what is taken off a share below 1, for rounding
    """
    batch, size = x.shape[0], x.shape[1:].numel()
    inputs, out = _samples(x, v_c, v_u, dtype)
    rows = [v.stride(0) for v in inputs]
    numbers = torch.empty(4, batch, dtype=torch.float64, device=x.device)
    time, others = _words(t, batch), [word for v in (c, gamma, floor) for word in _words(v, batch)]
    near = 16 // min(v.element_size() for v in inputs)
    cap = {"FLOOR": floor is not None, "BALL": ball, "MARGIN": margin}
    # Triton launches on the current device.
    with torch.cuda.device_of(x):  # type: ignore[no-untyped-call]
        if size <= (ONE_LAUNCH if size % 16 == 0 else ONE_LAUNCH // 2):
            width = triton.next_power_of_2(size)
            high = max(LEAST // width, 1)
            whole_samples[(triton.cdiv(batch, high),)](
                *inputs, out, numbers, batch, size, *rows, *time, *others,
                ROWS=high, SIZE=width, NEXT=near, **cap, **_options(high * width),
            )  # fmt: skip
        else:
            tiles = triton.cdiv(size, TILE * PARTS.value)  # of each program
            grid = (batch, triton.cdiv(size, TILE * tiles))
            sums = torch.empty(batch, 3, grid[1], dtype=torch.float64, device=x.device)
            part_sums[grid](*inputs, sums, size, tiles, *rows, *time, TILE=TILE, NEXT=near, **_options(TILE))
            part_velocities[grid](
                sums, *inputs[1:], out, numbers, batch, size, tiles, *rows[1:], *time, *others,
                TILE=TILE, **cap, **_options(TILE),
            )  # fmt: skip
    m, d, along, coefficient = numbers.unbind(0)
    return out, Lengths(m, d, along), coefficient


def _options(elements: int) -> dict[str, int | bool]:
    """Warps for a tile, a run for each thread; products and sums are contracted only where `fma` says so."""
    return {"num_warps": min(max(elements // (32 * RUN.value), 4), 16), "enable_fp_fusion": False}


def _samples(x: Tensor, v_c: Tensor, v_u: Tensor, dtype: torch.dtype) -> tuple[list[Tensor], Tensor]:
    """The inputs as (batch, size) in one order of their elements, and memory for the result.

    No sum depends on that order, so samples that are dense in the same way, channels last for instance, or
    slices of a longer batch, are read as they lie in memory.
    """
    batch, size, inner = x.shape[0], x.shape[1:].numel(), _inner(v_c)
    if any(_inner(v) != inner for v in (x, v_u)) or not _dense(inner):
        x, v_c, v_u = x.contiguous(), v_c.contiguous(), v_u.contiguous()
    out = torch.empty_strided(x.shape, (size, *v_c.stride()[1:]), dtype=dtype, device=x.device)
    return [v.as_strided((batch, size), (v.stride(0), 1)) for v in (x, v_c, v_u)], out


def _inner(v: Tensor) -> list[tuple[int, int]]:
    """Stride and length of each axis of a sample; an axis of length one has no stride."""
    return [(step, n) for step, n in zip(v.stride()[1:], v.shape[1:], strict=True) if n > 1]


def _dense(inner: list[tuple[int, int]]) -> bool:
    expected = 1
    for step, n in sorted(inner):
        if step != expected:
            return False
        expected *= n
    return True


def _words(v: Number | None, batch: int) -> tuple[int, Tensor | None, int]:
    """A number as kernels take it: the bits of a float, or a tensor and the distance of its entries."""
    if isinstance(v, Tensor):
        v = v.expand(batch)
        return 0, v, v.stride(0)
    return struct.unpack("<q", struct.pack("<d", v or 0.0))[0], None, 0
