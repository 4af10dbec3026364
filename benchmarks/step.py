"""What one guidance step costs, as ratios to diffusers' plain CFG in the same run.

    python -m benchmarks.step              eager
    python -m benchmarks.step --compile    with torch.compile as well (a minute more)

Every contender gets the same velocities, with the cap active; ours runs with its diagnostics. Kernels and
memory are counters that do not depend on the machine: memory in sizes of one input tensor, with the result.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Callable

import torch
from benchmarks.timing import interleaved, kernels, peak_bytes, versions
from torch import Tensor

from meancap import CFG, Cap, Record, guided_velocity

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
        "meancap": lambda: guided_velocity(RULE, x, T, v_c, v_u, record=Record()),
    }
    if compiled:
        torch.compiler.reset()
        step = torch.compile(lambda x, v_c, v_u: guided_velocity(RULE, x, T, v_c, v_u)[0], fullgraph=True)
        found["meancap, compiled"] = lambda: step(x, v_c, v_u)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--compile", action="store_true", help="time torch.compile too")
    parser.add_argument("--rounds", type=int, default=25)
    options = parser.parse_args()
    logging.getLogger("diffusers").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    print(versions())
    columns = ("CFG, us", "APG", "paper", "meancap", "compiled", "kernels", "memory")
    print(f"{'':34}" + "".join(f"{name:>10}" for name in columns))
    for dtype in (torch.float32, torch.bfloat16):
        for name, shape in SHAPES.items():
            runs = contenders(shape, dtype, options.compile)
            seconds = interleaved(runs, options.rounds)
            base = seconds.pop("diffusers CFG")
            ratios = [f"{s / base:10.2f}" for s in seconds.values()]
            ratios += [f"{'-':>10}"] * (4 - len(ratios))
            ours, size = runs["meancap"], torch.Size(shape).numel() * dtype.itemsize
            counters = f"{len(kernels(ours)):10d}{peak_bytes(ours) / size:10.1f}"
            print(f"{name:20}{dtype!s:>14}{base * 1e6:10.0f}{''.join(ratios)}{counters}", flush=True)


if __name__ == "__main__":
    main()
