"""Lengths, cap and write-back on CUDA: one launch, or two where a sample does not fit in registers.

Nothing waits for the device, and all memory comes from torch, so that a step can be captured in a graph.
Triton is imported by the first launch; `ready` says whether there can be one.
"""

from __future__ import annotations

import struct
import subprocess
import warnings
from functools import cache

import torch
from torch import Tensor

from ..tensors import Number
from . import reference
from .request import Found, Request, need_one_shape

DEVICE = "cuda"

ONE_LAUNCH = 16384  # elements of a sample that one program holds; half as many where they come one by one
TILE = 4096  # elements at a time where they do not all fit
LARGEST = 2**31 - 2**16  # elements of a sample: they are counted in 32 bits
LEAST = 1024  # elements of one program at least: several samples where these are small


@cache
def ready(device: int | None) -> bool:
    """Whether triton compiles for this device: from compute capability 8.0, with a C compiler at hand."""
    if torch.version.hip or torch.cuda.get_device_capability(device) < (8, 0):
        return False
    try:
        from triton.runtime import driver  # type: ignore[import-untyped,import-not-found,unused-ignore]
    except ImportError:
        return False
    try:
        driver.active.get_current_target()
    except (RuntimeError, OSError, subprocess.CalledProcessError) as error:
        warnings.warn(f"guidance runs without its CUDA kernel, because triton failed: {error}", stacklevel=2)
        return False
    return True


def run(request: Request) -> tuple[Tensor, Found]:
    """The result, and the lengths and the coefficient that is left: (4, batch), float64."""
    from .triton_kernels import PARTS, part_results, part_sums, whole_samples

    x, out_c, other = request[:3]
    need_one_shape(x, out_c, other)
    lengths, write = request.capped, request.dtype is not None
    batch, size = x.shape[0], x.shape[1:].numel()
    if not (0 < batch * size <= LARGEST * batch and x.device == out_c.device == other.device):
        return reference.run(request)
    inputs, out = _samples(x.resolve_neg(), out_c.resolve_neg(), other.resolve_neg(), request.dtype)
    rows = [v.stride(0) for v in inputs]
    lengths_and_coefficient = torch.empty(4, batch if lengths else 0, dtype=torch.float64, device=x.device)
    words = [word for v in request.numbers for word in _words(v, batch, x.device)]
    near = 16 // min(v.element_size() for v in inputs)
    how = {
        "LENGTHS": lengths, "WRITE": write, "MEAN": request.mean, "DIRECT": request.direct,
        "BALL": request.ball, "MARGIN": request.margin,
    }  # fmt: skip
    # Triton launches on the current device.
    with torch.cuda.device_of(x):  # type: ignore[no-untyped-call]
        if size <= (ONE_LAUNCH if size % 16 == 0 else ONE_LAUNCH // 2):
            width = 1 << max(size - 1, 0).bit_length()
            high = max(LEAST // width, 1)
            whole_samples[(-(-batch // high),)](
                *inputs, out, lengths_and_coefficient, batch, size, *rows, *words,
                ROWS=high, SIZE=width, NEXT=near, **how, **_options(high * width, high),
            )  # fmt: skip
        else:
            tiles = -(-size // (TILE * PARTS.value))  # of each program
            parts = -(-size // (TILE * tiles))
            sums = torch.empty(batch if lengths else 0, 3, parts, dtype=torch.float64, device=x.device)
            if lengths:
                part_sums[(batch, parts)](
                    *inputs, sums, size, tiles, *rows, *words[:6],
                    TILE=TILE, NEXT=near, DIRECT=request.direct, **_options(TILE),
                )  # fmt: skip
            part_results[(batch, parts if write else 1)](
                sums, parts, *inputs, out, lengths_and_coefficient, batch, size, tiles, *rows, *words,
                TILE=TILE, **how, **_options(TILE),
            )  # fmt: skip
    return out, lengths_and_coefficient


def _options(elements: int, samples: int = 1) -> dict[str, int | bool]:
    """Warps for a tile: a run for each thread, but at most two samples, whose numbers need registers.

    Products and sums are contracted only where `fma` says so.
    """
    from .triton_kernels import RUN

    warps = max(elements // (32 * RUN.value), samples // 64, 4)
    return {"num_warps": min(warps, 16), "enable_fp_fusion": False}


def _samples(
    x: Tensor, out_c: Tensor, other: Tensor, dtype: torch.dtype | None
) -> tuple[list[Tensor], Tensor]:
    """The inputs as (batch, size) in one order of their elements, and memory for the result.

    No sum depends on that order, so samples that are dense in the same way, channels last for instance, or
    slices of a longer batch, are read as they lie in memory.
    """
    batch, size, inner = x.shape[0], x.shape[1:].numel(), _inner(out_c)
    if any(_inner(v) != inner for v in (x, other)) or not _dense(inner):
        x, out_c, other = x.contiguous(), out_c.contiguous(), other.contiguous()
    if dtype is None:
        out = out_c
    else:
        out = torch.empty_strided(x.shape, (size, *out_c.stride()[1:]), dtype=dtype, device=x.device)
    return [v.as_strided((batch, size), (v.stride(0), 1)) for v in (x, out_c, other)], out


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


def _words(v: Number, batch: int, device: torch.device) -> tuple[int, Tensor | None, int]:
    """A number as kernels take it: the bits of a float, or a tensor and the distance of its entries."""
    if isinstance(v, Tensor):
        v = v.detach().resolve_neg().to(device).reshape(-1).expand(batch)
        return 0, v, v.stride(0)
    return struct.unpack("<q", struct.pack("<d", v))[0], None, 0
