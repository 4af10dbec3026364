"""The CUDA kernels as far as they can be known without a GPU: compiled for two devices, never run.

    python -m benchmarks.triton_kernels

Registers are of one thread, 255 at most; what a thread spills goes to slow memory, and there should be none.
Launches are what one guidance step needs.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from benchmarks.records import Note, Reading, Row, command, progress

SHAPES = {
    "SiT 64x4x32x32": (64, 4, 32, 32),
    "the largest sample in registers, 16384": (2, 16384),
    "SD3.5 8x16x128x128": (8, 16, 128, 128),
    "200000x2": (200_000, 2),
}
KERNELS = ("whole_samples", "part_sums", "part_results")


def compiled(shape: tuple[int, ...], dtype: torch.dtype, arch: int) -> list[Any]:
    """What one step launches, compiled for a device that is not there."""
    import triton
    from triton.backends.compiler import GPUTarget

    from meancap.cap import Request, cuda, margin_of
    from meancap.cap import triton_kernels as kernels

    triton.runtime.driver._active = SimpleNamespace(
        get_current_device=lambda: arch,
        get_current_stream=lambda device: 0,
        get_current_target=lambda: GPUTarget("cuda", arch, 32),
    )
    found: list[Any] = []
    for name in KERNELS:
        kernel = getattr(kernels, name)

        def compile_only(*args: Any, kernel: Any = kernel, warmup: bool, **options: Any) -> None:
            found.append(type(kernel).run(kernel, *args, warmup=True, **options))

        kernel.run = compile_only
        kernel.device_caches.clear()
    x, v_c, v_u = (torch.zeros(shape, dtype=dtype) for _ in range(3))
    cuda.run(Request(x, v_c, v_u, (1.0, 0.7, 4.0, 1.1, 0.0), margin=margin_of(dtype), dtype=dtype))
    return found


def resources(kernel: Any) -> tuple[int, int]:
    """Registers and spilled bytes of a thread, as the finished binary states them."""
    import triton

    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.TemporaryDirectory() as folder:
        binary = Path(folder) / "kernel.cubin"
        binary.write_bytes(kernel.asm["cubin"])
        told = subprocess.run([tool, "-res-usage", binary], capture_output=True, text=True, check=True)
    numbers = re.search(r"REG:(\d+) STACK:(\d+) SHARED:\d+ LOCAL:(\d+)", told.stdout + told.stderr)
    if numbers is None:
        raise RuntimeError(f"cuobjdump said nothing of registers: {told.stdout!r}")
    registers, stack, local = map(int, numbers.groups())
    return registers, stack + local


def measure(options: argparse.Namespace) -> Iterator[Row]:
    yield Note("triton_kernels", "**Not run on a GPU**: there is none here, and no speed is claimed.")
    if find_spec("triton") is None:
        yield Note("triton_kernels", "Nor compiled: triton is not installed.")
        return
    with tempfile.TemporaryDirectory() as folder:
        import triton

        triton.knobs.cache.dir = folder
        for name, shape in list(SHAPES.items())[: 2 if options.quick else None]:
            for dtype in (torch.float32, torch.bfloat16):
                for arch in (80, 90):
                    case = f"{name} {str(dtype).removeprefix('torch.')}"
                    progress(f"{case}, sm_{arch}")
                    made = compiled(shape, dtype, arch)
                    used = [resources(kernel) for kernel in made]
                    if arch == 80:
                        goal = 1 if torch.Size(shape[1:]).numel() <= 16384 else 2
                        yield Reading("triton_kernels", case, "launches", len(made), goal=goal, at_most=True)
                    most, spilled = max(r for r, _ in used), sum(s for _, s in used)
                    yield Reading("triton_kernels", case, f"sm_{arch}: registers", most)
                    yield Reading(
                        "triton_kernels", case, f"sm_{arch}: spilled bytes", spilled, goal=0, at_most=True
                    )


def main() -> int:
    return command("triton_kernels", __doc__, measure)


if __name__ == "__main__":
    sys.exit(main())
