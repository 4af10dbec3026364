"""What one guidance step costs, as ratios to diffusers' plain CFG in the same run.

    python -m benchmarks.step                 eager, and with torch.compile (minutes more)
    python -m benchmarks.step --no-compile    eager alone

Every contender gets the same velocities, with the cap active; ours runs by numba's kernels and, in rows of
their own, with its diagnostics and without the kernels. The roofline is 6 tensors moved (x, v_c, v_u in; v_c,
v_u in again, v out) at the speed of a triad over the same memory.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial

import diffusers
import torch
from torch import Tensor

from benchmarks import limits
from benchmarks.records import Curve, Note, Reading, Row, command, progress
from benchmarks.timing import counted, in_turns, interleaved, peak_bytes, ratio
from meancap import CFG, Cap, Record, guided_velocity
from meancap.cap import dispatch
from meancap.torch_settings import torch_settings

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


def contenders(shape: tuple[int, ...], dtype: torch.dtype, compiled: bool) -> dict[str, Callable[[], object]]:
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
    found["meancap, without numba"] = without_kernels(found["meancap"])
    if compiled:
        torch.compiler.reset()
        step = torch.compile(lambda x, v_c, v_u: guided_velocity(RULE, x, T, v_c, v_u)[0], fullgraph=True)
        found["meancap, compiled"] = lambda: step(x, v_c, v_u)
        bare = torch.compile(lambda v_c, v_u: v_u + SCALE * (v_c - v_u), fullgraph=True)
        found["CFG, compiled"] = lambda: bare(v_c, v_u)  # what calling a compiled graph costs by itself
    return found


def cases(quick: bool) -> Iterator[tuple[str, tuple[int, ...], torch.dtype]]:
    for dtype in (torch.float32, torch.bfloat16):
        for name, shape in list(SHAPES.items())[: 2 if quick else None]:
            yield f"{name} {str(dtype).removeprefix('torch.')}", shape, dtype


def goal(name: str, dtype: torch.dtype) -> float:
    """Of the step over diffusers' CFG, with numba installed."""
    if name.startswith("200000"):
        return 6.0
    return 0.85 if dtype == torch.float32 else 0.75


def without_kernels(run: Callable[[], object]) -> Callable[[], object]:
    """The same in plain PyTorch, as it is where numba is not installed."""

    def plain() -> object:
        before, dispatch._module = dispatch._module, _no_kernels
        try:
            return run()
        finally:
            dispatch._module = before

    return plain


def _no_kernels(*given: object) -> None:
    return None


def measure(options: argparse.Namespace) -> Iterator[Row]:
    diffusers.utils.logging.set_verbosity_error()
    rounds, tries = (3, 10) if options.quick else (5, 20)
    yield Note("step", f"`{RULE}` at t = {T}; one thread, {rounds} rounds of the least of {tries} calls.")
    for name, shape, dtype in cases(options.quick):
        progress(name)
        runs = contenders(shape, dtype, options.compile)
        found = in_turns(runs, rounds, tries)
        yield Reading("step", name, "CFG, us", 1e6 * min(found["diffusers CFG"]))
        goals = {"meancap": goal(name, dtype), "meancap, compiled": 1.0}
        projected = ratio(found, "meancap", "diffusers APG")
        for who in list(runs)[1:]:
            spread = ratio(found, who, "diffusers CFG")
            yield Reading("step", name, f"{who} / CFG", goal=goals.get(who), at_most=True, **spread)
        yield Reading("step", name, "meancap / APG", goal=0.10, at_most=True, **projected)
        size = torch.Size(shape).numel() * dtype.itemsize
        best = 6 * size / limits.triad(4 * size)
        for who in (one for one in runs if one.startswith("meancap")):
            yield Reading("step", name, f"{who}: share of the roofline", best / min(found[who]))
    yield from two_threads(options.quick)
    yield from counts()
    yield from curves(options.quick)


def two_threads(quick: bool) -> Iterator[Row]:
    """The wall clock with two threads, on tensors of several megabytes; a quiet machine is needed."""
    rounds, tries = (3, 10) if quick else (5, 20)
    for name, shape, dtype in cases(False):
        if torch.Size(shape).numel() < 2**20:
            continue
        runs = contenders(shape, dtype, False)
        both = {who: runs[who] for who in ("diffusers CFG", "meancap")}
        with torch_settings(threads=2):
            found = in_turns(both, rounds, tries, time.perf_counter)
        spread = ratio(found, "meancap", "diffusers CFG")
        yield Reading(
            "step, two threads", name, "meancap / CFG, wall clock", goal=1.0, at_most=True, **spread
        )


def counts() -> Iterator[Row]:
    """What each contender dispatches, touches and holds, in sizes of one tensor."""
    shape = SHAPES["SD3.5 8x16x128x128"]
    for dtype in (torch.float32, torch.bfloat16):
        size = torch.Size(shape).numel() * dtype.itemsize
        for who, run in contenders(shape, dtype, False).items():
            found = partial(Reading, "step, counted", f"{who}, {str(dtype).removeprefix('torch.')}")
            names, moved = counted(run)
            yield found("kernels", len(names))
            yield found("bytes", round(moved / size, 2), "tensors")
            yield found("memory", round(peak_bytes(run) / size, 2), "tensors")


def curves(quick: bool) -> Iterator[Row]:
    axes = {
        "batch": (
            "of 4x32x32",
            [(n, (n, 4, 32, 32)) for n in ((1, 16, 64) if quick else (1, 4, 16, 64, 256))],
        ),
        "size": (
            "of 1x16xSxS",
            [(n, (1, 16, n, n)) for n in ((16, 64) if quick else (16, 32, 64, 128, 256))],
        ),
    }
    for axis, (what, points) in axes.items():
        lines: dict[str, list[float]] = {}
        for at, shape in points:
            progress(f"{axis} {at}")
            for who, seconds in interleaved(
                contenders(shape, torch.float32, False), 5 if quick else 15
            ).items():
                lines.setdefault(who, []).append(1e6 * seconds)
        at = tuple(float(n) for n, _ in points)
        for who, line in lines.items():
            yield Curve("step", f"Cost against {axis} {what}", who, axis, "us", at, tuple(line))


def main() -> int:
    how = {"action": argparse.BooleanOptionalAction, "default": True, "help": "time torch.compile too"}
    return command("step", __doc__, measure, [("--compile", how)])


if __name__ == "__main__":
    sys.exit(main())
