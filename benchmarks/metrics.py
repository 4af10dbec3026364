"""How fast the metrics are: ratios to scipy, torchmetrics' formula and this machine's matrix product, in
one run.

    python -m benchmarks.metrics             the table; exit code 1 where a goal is missed
    python -m benchmarks.metrics --memory    precision and recall of 50,000 x 2048 against 10,000; peak memory

1 thread, thread CPU time, contenders in turns, the least of all rounds.

    Frechet term   tr (S_a S_b)^(1/2) of two 2048 x 2048 covariances in float64
    k-NN           10,000 x 2048 float32 features: radii, and membership in balls; against a matrix product
"""

from __future__ import annotations

import argparse
import resource
import sys
from collections.abc import Callable
from importlib.util import find_spec

import torch
from benchmarks.timing import interleaved
from torch import Tensor

from meancap.metrics import precision_recall, trace_of_root
from meancap.metrics.neighbours import ROWS, nearest, points, within

WIDTH, POINTS, SIDE = 2048, 10_000, 2048
GOALS = {"scipy sqrtm": 8.0, "torchmetrics": 2.5}
GEMM_SHARE, MEMORY = 0.8, 4.0


def covariance(seed: int) -> Tensor:
    """Of 2.5 d correlated draws whose scales fall over two decades, like a network's features."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(5 * WIDTH // 2, WIDTH, generator=g, dtype=torch.float64)
    x *= torch.logspace(0, -2, WIDTH, dtype=torch.float64)
    mix = torch.randn(WIDTH, WIDTH, generator=g, dtype=torch.float64) / WIDTH**0.5
    return torch.cov((x @ mix).T)


def frechet(rounds: int) -> bool:
    a, b = covariance(1), covariance(2)
    contenders: dict[str, Callable[[], object]] = {
        "meancap": lambda: trace_of_root(a, b),
        # What torchmetrics 1.9 does: the eigenvalues of the product, complex, of which the real part is kept.
        "torchmetrics": lambda: torch.linalg.eigvals(a @ b).sqrt().real.sum(),
    }
    if find_spec("scipy") is not None:
        from scipy.linalg import sqrtm

        product = (a @ b).numpy()
        contenders["scipy sqrtm"] = lambda: torch.tensor(sqrtm(product).real.trace())
    ours = float(trace_of_root(a, b))
    # interleaved() calls each twice per round, one of them untimed: scipy's takes many seconds.
    seconds = interleaved(contenders, rounds)
    good = True
    print(f"Frechet term, d = {WIDTH}, float64")
    for name, taken in seconds.items():
        apart = abs(float(contenders[name]()) / ours - 1)
        factor = taken / seconds["meancap"]
        goal = GOALS.get(name)
        met = goal is None or factor >= goal
        good &= met
        said = "" if goal is None else f"   goal {goal:g} x: {'met' if met else 'MISSED'}"
        print(f"  {name:<14}{taken:8.2f} s {factor:8.1f} x   relative difference {apart:.0e}{said}")
    return good


def neighbours(rounds: int) -> bool:
    """Whole searches against bare matrix products of the same size and blocks."""
    g = torch.Generator().manual_seed(3)
    (p,) = points(
        torch.randn(POINTS, WIDTH, generator=g) @ torch.randn(WIDTH, WIDTH, generator=g) / WIDTH**0.5
    )
    radii = nearest(p, (3,), 10).squares[:, 2].contiguous()
    square = torch.randn(SIDE, SIDE, generator=g)
    gemm_flop, search_flop = 2 * SIDE**3, 2 * POINTS**2 * WIDTH
    runs: dict[str, Callable[[], object]] = {
        f"GEMM {SIDE}^3": lambda: square @ square,
        f"product in blocks of {ROWS}": lambda: [p.x[i : i + ROWS] @ p.x.T for i in range(0, POINTS, ROWS)],
        "radii (k = 3)": lambda: nearest(p, (3,), 10),
        "membership": lambda: sum(len(i) for i, _, _ in within(p, p, radii, radii)),
    }
    seconds = interleaved(runs, rounds)
    rate = {k: (gemm_flop if k.startswith("GEMM") else search_flop) / s / 1e9 for k, s in seconds.items()}
    peak = rate[f"GEMM {SIDE}^3"]
    good = True
    print(f"k-NN, {POINTS:,} x {WIDTH}, float32 product, float64 decisions")
    for name, value in rate.items():
        goal = name in ("radii (k = 3)", "membership")
        met = not goal or value >= GEMM_SHARE * peak
        good &= met
        said = f"   goal {GEMM_SHARE:.0%}: {'met' if met else 'MISSED'}" if goal else ""
        print(f"  {name:<26}{value:7.0f} GFLOP/s {value / peak:7.0%} of GEMM{said}")
    return good


def memory() -> bool:
    g = torch.Generator().manual_seed(4)
    mix = torch.randn(WIDTH, WIDTH, generator=g) / WIDTH**0.5
    generated = torch.empty(50_000, WIDTH)
    for block in torch.split(generated, 5000):
        block.copy_(torch.randn(len(block), WIDTH, generator=g) @ mix)
    real = torch.randn(10_000, WIDTH, generator=g) @ mix
    found = precision_recall(real, generated)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    seconds = resource.getrusage(resource.RUSAGE_SELF).ru_utime
    met = peak <= MEMORY
    print(f"precision {found.precision:.4f}, recall {found.recall:.4f} of 50,000 x 2048 against 10,000")
    verdict = "met" if met else "MISSED"
    print(f"peak of the whole process {peak:.2f} GB, goal {MEMORY:g}: {verdict}; {seconds:.0f} CPU s")
    return met


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--memory", action="store_true", help="only the peak memory of a large search")
    parser.add_argument(
        "--rounds", type=int, default=2, help="of the Frechet term; three times as many of k-NN"
    )
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.memory:
        return 0 if memory() else 1
    good = frechet(arguments.rounds)
    good &= neighbours(3 * arguments.rounds)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
