"""How fast the laboratory samples its mixture, as ratios to two peers in one run.

    python -m benchmarks.gmm                 the table; exit code 1 where a goal is missed
    python -m benchmarks.gmm --memory        peak memory of ten million samples, the whole process

200,000 samples, 50 Euler steps, 8 components of which three are given, CFG(3) | Cap(1.1), float32, 1 thread.

    naive           the formulas as one writes them down at first, with tensors of shape (n, K, 2)
    flow_matching   Meta's ODESolver over a field that is already written with care
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

from meancap import CFG, Cap, uniform
from meancap.lab.sampler import flow
from meancap.lab.scenes import STD, TRIPLE

SCALE, GAMMA, STEPS, SAMPLES = 3.0, 1.1, 50, 200_000
RULE = CFG(SCALE) | Cap(GAMMA)
CONDITION = TRIPLE.condition()
MU = CONDITION.mixture.means.float()
LOG_W = CONDITION.mixture.weights.float().log()
MEMBERS = list(TRIPLE.members)
WITH_ONE = torch.cat([MU, torch.ones(len(MU), 1)], 1)
GOALS = {("torch", "naive"): 25.0, ("torch", "flow_matching"): 4.0, ("numba", "naive"): 90.0}


def capped(m_c: Tensor, m_u: Tensor) -> Tensor:
    """The paper's closed form, as both peers use it."""
    delta = m_c - m_u
    a, b, q = (delta * delta).sum(-1), (m_c * delta).sum(-1), (m_c * m_c).sum(-1)
    root = (b * b + (GAMMA**2 - 1) * a * q).sqrt()
    outward, inward = (GAMMA**2 - 1) * q / (b + root).clamp_min(1e-30), (root - b) / a.clamp_min(1e-30)
    return m_c + torch.where(b >= 0, outward, inward).clamp_max(SCALE - 1)[:, None] * delta


def naive(x: Tensor) -> Tensor:
    """Densities, responsibilities and posterior means of all components, broadcast over (n, K, 2)."""
    for i in range(STEPS):
        t = i / STEPS
        c = (1 - t) ** 2 + t**2 * STD**2
        offset = x[:, None, :] - t * MU
        logits = LOG_W - (offset**2).sum(-1) / (2 * c)
        means = MU + t * STD**2 / c * offset
        m_u = (logits.softmax(-1)[..., None] * means).sum(1)
        m_c = (logits[:, MEMBERS].softmax(-1)[..., None] * means[:, MEMBERS]).sum(1)
        x = x + (capped(m_c, m_u) - x) / (1 - t) / STEPS
    return x


def careful_velocity(x: Tensor, t: Tensor) -> Tensor:
    """The same field with care: matrix products, one exponential for both means, no underflow."""
    c = (1 - t) ** 2 + t**2 * STD**2
    logits = torch.addmm(LOG_W - t * t / (2 * c) * (MU**2).sum(1), x, (t / c * MU).T)
    mass = (logits - logits.amax(1, keepdim=True)).clamp_min_(-80).exp_()
    sums, members = mass @ WITH_ONE, mass[:, : len(MEMBERS)] @ WITH_ONE[: len(MEMBERS)]
    pull, slope = (1 - t) ** 2 / c, t * STD**2 / c
    m_u = slope * x + pull * (sums[:, :2] / sums[:, 2:])
    m_c = slope * x + pull * (members[:, :2] / members[:, 2:])
    return (capped(m_c, m_u) - x) / (1 - t)


def flow_matching_solver() -> Callable[[Tensor], Tensor]:
    from flow_matching.solver import ODESolver
    from flow_matching.utils import ModelWrapper

    class Field(ModelWrapper):
        def __init__(self) -> None:
            super().__init__(torch.nn.Identity())

        def forward(self, x: Tensor, t: Tensor, **extras: object) -> Tensor:
            return careful_velocity(x, t)

    solver = ODESolver(velocity_model=Field())
    grid = torch.tensor(uniform(STEPS))
    return lambda x: solver.sample(x_init=x, step_size=None, method="euler", time_grid=grid)


def ours(engine: str, steps: int = STEPS) -> Callable[[Tensor], Tensor]:
    return lambda x: flow(CONDITION, RULE, x, uniform(steps), engine=engine)


def noise(samples: int) -> Tensor:
    return torch.randn(samples, 2, generator=torch.Generator().manual_seed(0))


def compare(rounds: int) -> dict[str, float]:
    """Seconds of every contender, with the median distance of its samples from those of `naive`."""
    x = noise(SAMPLES)
    contenders = {"naive": naive, "flow_matching": flow_matching_solver(), "torch": ours("torch")}
    if find_spec("numba"):
        contenders["numba"] = ours("numba")
    ends = {name: run(x[:4096]) for name, run in contenders.items()}
    seconds = interleaved({name: lambda run=run: run(x) for name, run in contenders.items()}, rounds)
    print(
        f"{SAMPLES:,} samples x {STEPS} steps x {len(MU)} components, {RULE}, one thread, {rounds} rounds\n"
    )
    print(f"{'':15}{'ms':>9}{'ns/(sample step)':>19}{'x naive':>10}{'x flow_matching':>17}{'apart':>11}")
    for name, value in seconds.items():
        each, apart = 1e9 * value / (SAMPLES * STEPS), (ends[name] - ends["naive"]).abs().amax(1).median()
        ratios = [seconds[peer] / value for peer in ("naive", "flow_matching")]
        print(f"{name:15}{1e3 * value:9.1f}{each:19.2f}{ratios[0]:10.1f}{ratios[1]:17.1f}{apart:11.0e}")
    return seconds


def growth(engine: str) -> None:
    """Twice the samples and twice the steps, over one of each."""
    x = noise(SAMPLES)
    jobs = {
        "one": lambda: ours(engine)(x[: SAMPLES // 2]),
        "samples": lambda: ours(engine)(x),
        "steps": lambda: ours(engine, 2 * STEPS)(x[: SAMPLES // 2]),
    }
    found = interleaved(jobs, 5)
    times = {name: found[name] / found["one"] for name in ("samples", "steps")}
    print(f"{engine}: twice the samples x {times['samples']:.2f}, twice the steps x {times['steps']:.2f}")


def memory(samples: int = 10_000_000) -> int:
    ours("numba" if find_spec("numba") else "torch")(torch.randn(samples, 2))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20  # kilobytes on Linux
    print(f"{samples:,} samples x {STEPS} steps: {peak:.2f} GB at most, the whole process (goal: below 2)")
    return int(peak >= 2)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--memory", action="store_true", help="ten million samples instead")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.memory:
        return memory()
    seconds = compare(options.rounds)
    print()
    for engine in seconds.keys() & {"torch", "numba"}:
        growth(engine)
    print()
    missed = 0
    for (engine, peer), goal in GOALS.items():
        if engine in seconds:
            ratio = seconds[peer] / seconds[engine]
            missed += ratio < goal
            print(
                f"{engine} over {peer}: {ratio:.1f}, goal {goal:.0f}, {'met' if ratio >= goal else 'missed'}"
            )
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
