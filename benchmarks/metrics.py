"""How fast the metrics are: ratios to scipy, torchmetrics' formula and this machine's matrix product, in
one run.

    python -m benchmarks.metrics             the table; exit code 1 where a goal is missed
    python -m benchmarks.metrics --memory    precision and recall of 50,000 x 2048 against 10,000; peak memory

1 thread, thread CPU time, contenders in turns.

    Frechet term   tr (S_a S_b)^(1/2) of two 2048 x 2048 covariances in float64
    k-NN           10,000 x 2048 features: radii, and membership in balls; against a matrix product
"""

from __future__ import annotations

import argparse
import resource
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec

import torch
from torch import Tensor

from benchmarks.records import Note, Reading, Row, command, progress
from benchmarks.timing import in_turns, ratio
from meancap_lab.metrics import precision_recall
from meancap_lab.metrics.distances import trace_of_root
from meancap_lab.metrics.manifold import ROWS, ball_radii, insiders

WIDTH, POINTS, SIDE = 2048, 10_000, 2048
GOALS = {"scipy sqrtm": 8.0, "torchmetrics": 2.5}
GEMM_SHARE, MEMORY = 0.8, 4.0


def covariance(seed: int, width: int) -> Tensor:
    """Of 2.5 d correlated draws whose scales fall over two decades, like a network's features."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(5 * width // 2, width, generator=g, dtype=torch.float64)
    x *= torch.logspace(0, -2, width, dtype=torch.float64)
    mix = torch.randn(width, width, generator=g, dtype=torch.float64) / width**0.5
    return torch.cov((x @ mix).T)


def frechet(width: int, rounds: int) -> Iterator[Row]:
    a, b = covariance(1, width), covariance(2, width)
    contenders: dict[str, Callable[[], object]] = {
        "meancap": lambda: trace_of_root(a, b),
        # What torchmetrics 1.9 does: the eigenvalues of the product, complex, of which the real part is kept.
        "torchmetrics": lambda: torch.linalg.eigvals(a @ b).sqrt().real.sum(),
    }
    if find_spec("scipy") is not None:
        from scipy.linalg import sqrtm

        product = (a @ b).numpy()
        contenders["scipy sqrtm"] = lambda: torch.tensor(sqrtm(product).real.trace())
    progress(f"Frechet term, d = {width}")
    found = in_turns(contenders, rounds)
    mine = float(trace_of_root(a, b))
    case = f"Frechet term, d = {width}, float64"
    yield Reading("metrics", case, "seconds", min(found["meancap"]))
    for name in list(contenders)[1:]:
        apart = abs(float(contenders[name]()) / mine - 1)
        yield Reading("metrics", case, f"x {name}", goal=GOALS[name], **ratio(found, name, "meancap"))
        yield Reading("metrics", case, f"difference from {name}", apart, goal=1e-10, at_most=True)


def neighbours(count: int, rounds: int) -> Iterator[Row]:
    """Whole searches against bare matrix products of the same size and blocks."""
    g = torch.Generator().manual_seed(3)
    x = torch.randn(count, WIDTH, generator=g) @ torch.randn(WIDTH, WIDTH, generator=g) / WIDTH**0.5
    exact = x.double()
    square = torch.randn(SIDE, SIDE, generator=g, dtype=torch.float64)
    flop = dict.fromkeys(("product in blocks", "radii (k = 3)", "radii and membership"), 2 * count**2 * WIDTH)
    flop["radii and membership"] *= 2
    flop["GEMM"] = 2 * SIDE**3
    progress(f"k-NN, {count:,} x {WIDTH}")
    found = in_turns(
        {
            "GEMM": lambda: square @ square,
            "product in blocks": lambda: [exact[i : i + ROWS] @ exact.T for i in range(0, count, ROWS)],
            "radii (k = 3)": lambda: ball_radii(x, (3,)),
            "radii and membership": lambda: insiders(x, x),
        },
        rounds,
    )
    case = f"k-NN, {count:,} x {WIDTH}, float64 product"
    yield Reading("metrics", case, "GEMM, GFLOP/s", flop["GEMM"] / min(found["GEMM"]) / 1e9)
    for name in list(found)[1:]:
        scale, spread = flop[name] / flop["GEMM"], ratio(found, "GEMM", name)
        goal = None if name.startswith("product") else GEMM_SHARE
        share = {key: scale * value for key, value in spread.items()}
        yield Reading("metrics", case, f"{name}: share of GEMM", goal=goal, **share)


def measure(options: argparse.Namespace) -> Iterator[Row]:
    quick = options.quick
    yield Note("metrics", "One thread, CPU time, contenders in turns.")
    yield from frechet(256 if quick else WIDTH, 2 if quick else 3)
    yield from neighbours(1000 if quick else POINTS, 2 if quick else 4)


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
    if "--memory" in sys.argv:
        torch.set_num_threads(1)
        return 0 if memory() else 1
    how = {"action": "store_true", "help": "only the peak memory of a large search"}
    return command("metrics", __doc__, measure, [("--memory", how)])


if __name__ == "__main__":
    sys.exit(main())
