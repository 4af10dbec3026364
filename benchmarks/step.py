"""What one guidance step costs, as ratios to diffusers' plain CFG in the same run.

    python -m benchmarks.step

Every contender gets the same velocities, with the cap active; ours runs with numba and, in rows of their own,
with its record and without numba. One thread; the caches are flushed before each timed call, as they are
after a network.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from functools import partial

import diffusers
import torch
from torch import Tensor

from benchmarks.records import Note, Reading, Row, command, progress
from benchmarks.timing import counted, flush, in_turns, peak_bytes, ratio
from meancap import CFG, Cap, Record, cap, guided_velocity

SHAPES = {
    "SiT 64x4x32x32": (64, 4, 32, 32),
    "SD3.5 1x16x128x128": (1, 16, 128, 128),
    "SD3.5 8x16x128x128": (8, 16, 128, 128),
    "Wan 1x16x21x60x104": (1, 16, 21, 60, 104),
    "Flux 1x4096x64": (1, 4096, 64),
    "200000x2": (200_000, 2),
}
SCALE, GAMMA, T = 5.0, 1.1, 0.3
RULE = CFG(SCALE) | Cap(GAMMA)


def naive(x: Tensor, v_c: Tensor, v_u: Tensor) -> Tensor:
    """The paper's enumerated algorithm, line by line in float32, with its epsilon."""
    x, v_c, v_u = x.float(), v_c.float(), v_u.float()
    axes = tuple(range(1, x.dim()))
    m_c, m_u = x + (1 - T) * v_c, x + (1 - T) * v_u
    delta = m_c - m_u
    a, b, q = (delta * delta).sum(axes), (m_c * delta).sum(axes), (m_c * m_c).sum(axes)
    nominal = m_c + (SCALE - 1) * delta
    feasible = (nominal * nominal).sum(axes) <= GAMMA**2 * q
    root = (b * b + (GAMMA**2 - 1) * a * q).clamp(min=0).sqrt()
    limit = torch.where(b >= 0, (GAMMA**2 - 1) * q / (b + root), (root - b) / a)
    beta = torch.where(feasible, SCALE - 1, torch.where(a <= 1e-12, 0.0, limit.clamp(max=SCALE - 1)))
    return v_c + beta.reshape(-1, *[1] * (x.dim() - 1)) * (v_c - v_u)


def contenders(shape: tuple[int, ...], dtype: torch.dtype) -> dict[str, Callable[[], object]]:
    from diffusers.guiders import AdaptiveProjectedGuidance, ClassifierFreeGuidance

    g = torch.Generator().manual_seed(0)
    x, v_c, other = (torch.randn(shape, generator=g) for _ in range(3))
    x, v_c, v_u = x.to(dtype), v_c.to(dtype), (v_c + 0.5 * other).to(dtype)
    plain, projected = ClassifierFreeGuidance(SCALE), AdaptiveProjectedGuidance(SCALE, eta=0.0)
    for guider in (plain, projected):
        guider._step, guider._num_inference_steps = 0, 10
    found: dict[str, Callable[[], object]] = {
        "diffusers CFG": lambda: plain.forward(v_c, v_u),
        "diffusers APG": lambda: projected.forward(v_c, v_u),
        "paper-literal": lambda: naive(x, v_c, v_u),
        "meancap": lambda: guided_velocity(RULE, x, T, v_c, v_u),
        "meancap with its record": lambda: guided_velocity(RULE, x, T, v_c, v_u, record=Record()),
    }
    found["meancap, without numba"] = without_numba(found["meancap"])
    return found


def cases(quick: bool) -> Iterator[tuple[str, tuple[int, ...], torch.dtype]]:
    for dtype in (torch.float32, torch.bfloat16):
        for name, shape in list(SHAPES.items())[: 2 if quick else None]:
            yield f"{name} {str(dtype).removeprefix('torch.')}", shape, dtype


def goals(name: str) -> dict[str, float]:
    """At most so many times diffusers' CFG."""
    if name.startswith("200000"):
        return {"meancap": 8.0, "meancap, without numba": 40.0}
    large = name.startswith(("SD3.5 8x", "Wan"))
    return {"meancap": 1.0 if large else 1.5, "meancap, without numba": 6.0}


def without_numba(run: Callable[[], object]) -> Callable[[], object]:
    """The same in plain PyTorch, as it is if numba is not installed."""

    def plain() -> object:
        before, cap.import_fast = cap.import_fast, lambda: None  # type: ignore[assignment]
        try:
            return run()
        finally:
            cap.import_fast = before

    return plain


def measure(options: argparse.Namespace) -> Iterator[Row]:
    diffusers.utils.logging.set_verbosity_error()
    rounds, tries = (3, 5) if options.quick else (5, 10)
    yield Note("step", f"`{RULE}` at t = {T}; one thread, {rounds} rounds of the least of {tries} calls.")
    for name, shape, dtype in cases(options.quick):
        progress(name)
        runs = contenders(shape, dtype)
        found = in_turns(runs, rounds, tries, between=flush)
        yield Reading("step", name, "CFG, us", 1e6 * min(found["diffusers CFG"]))
        for who in list(runs)[1:]:
            spread = ratio(found, who, "diffusers CFG")
            yield Reading("step", name, f"{who} / CFG", goal=goals(name).get(who), at_most=True, **spread)
        spread = ratio(found, "meancap", "diffusers APG")
        yield Reading("step", name, "meancap / APG", goal=0.35, at_most=True, **spread)
    yield from counts()


def counts() -> Iterator[Row]:
    """What each contender dispatches, touches and holds, in sizes of one tensor."""
    shape = SHAPES["SD3.5 8x16x128x128"]
    for dtype in (torch.float32, torch.bfloat16):
        size = torch.Size(shape).numel() * dtype.itemsize
        for who, run in contenders(shape, dtype).items():
            found = partial(Reading, "step, counted", f"{who}, {str(dtype).removeprefix('torch.')}")
            names, moved = counted(run)
            yield found("kernels", len(names))
            yield found("bytes", round(moved / size, 2), "tensors")
            yield found("memory", round(peak_bytes(run) / size, 2), "tensors")


def main() -> int:
    return command("step", __doc__, measure)


if __name__ == "__main__":
    sys.exit(main())
