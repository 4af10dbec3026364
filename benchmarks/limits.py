"""What this machine can do, measured in the same run: the rooflines that shares are taken of.

triad    bytes per second of a = b + s c, over a working set of given size
product  floating-point operations per second of a float32 matrix product
exp      exponentials per second, float32 in cache
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import torch

from benchmarks.timing import interleaved

_SIDE = 1024
_TIMES = 256


def triad(working_set: int, rounds: int = 15) -> float:
    """Bytes per second, three arrays that together have `working_set` bytes."""
    size = max(1, working_set // 12)
    a, b, c = (torch.ones(size) for _ in range(3))
    repeats = max(1, 2**20 // size)  # a short call is mostly its own start

    def run() -> None:
        for _ in range(repeats):
            torch.add(b, c, alpha=0.5, out=a)

    return repeats * 12 * size / interleaved({"triad": run}, rounds)["triad"]


def product(rounds: int = 7) -> float:
    a, b = (torch.randn(_SIDE, _SIDE, generator=torch.Generator().manual_seed(i)) for i in (0, 1))
    return 2 * _SIDE**3 / interleaved({"product": lambda: a @ b}, rounds)["product"]


def exp(rounds: int = 15) -> float:
    """By torch, or by the laboratory's compiled polynomial alone where that is faster."""
    x = torch.linspace(-20, 0, 2**12)
    out = torch.empty_like(x)
    contenders: dict[str, Callable[[], object]] = {
        "torch": lambda: [torch.exp(x, out=out) for _ in range(_TIMES)]
    }
    if find_spec("numba"):
        run, a, b = _powers(), x.numpy(), out.numpy()
        contenders["numba"] = lambda: run(a, b)
    return _TIMES * x.numel() / min(interleaved(contenders, rounds).values())


def _powers() -> Callable[..., None]:
    """2^x of an array, again and again, by the function that the sampler's kernel uses."""
    import numba

    from meancap_lab.mixtures import mixture_loop

    exp2 = mixture_loop.exp2

    def run(x: Any, out: Any) -> None:
        for _ in range(_TIMES):
            for i in range(x.shape[0]):
                out[i] = exp2(x[i])

    compiled: Callable[..., None] = numba.njit(**mixture_loop._OPTIONS)(run)
    return compiled
