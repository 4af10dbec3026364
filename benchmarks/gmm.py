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
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from time import process_time

import torch
from torch import Tensor

from benchmarks import limits
from benchmarks.records import Curve, Note, Reading, Row, command, progress
from benchmarks.timing import in_turns, interleaved, ratio
from meancap import CFG, Cap, uniform
from meancap_lab.mixtures.branches import branches
from meancap_lab.mixtures.condition import STD, TRIPLE, Condition, circle
from meancap_lab.mixtures.mixture import Mixture
from meancap_lab.mixtures.sampler import engine_for, flow

SCALE, GAMMA, STEPS, SAMPLES = 3.0, 1.1, 50, 200_000
RULE = CFG(SCALE) | Cap(GAMMA)
CONDITION = TRIPLE.condition()
MU = CONDITION.mixture.means.float()
LOG_W = CONDITION.mixture.weights.float().log()
MEMBERS = list(TRIPLE.members)
WITH_ONE = torch.cat([MU, torch.ones(len(MU), 1)], 1)
GOALS = {
    ("numba", "naive"): 100.0,
    ("numba", "flow_matching"): 15.0,
}


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


def ours(engine: str, steps: int = STEPS, condition: Condition = CONDITION) -> Callable[[Tensor], Tensor]:
    return lambda x: flow(condition, RULE, x, uniform(steps), engine=engine)


def engines() -> list[str]:
    return ["numba"] if find_spec("numba") else ["library"]


def noise(samples: int) -> Tensor:
    return torch.randn(samples, 2, generator=torch.Generator().manual_seed(0))


def measure(options: argparse.Namespace) -> Iterator[Row]:
    samples, rounds = (20_000, 2) if options.quick else (SAMPLES, 4)
    x = noise(samples)
    solver = flow_matching_solver()
    contenders: dict[str, Callable[[Tensor], Tensor]] = {engine: ours(engine) for engine in engines()}
    contenders |= {"flow_matching": solver, "naive": naive}
    yield Note("gmm", f"{samples:,} samples, {STEPS} steps, {len(MU)} components, `{RULE}`; {rounds} rounds.")
    progress("naive, flow_matching and our engines in turns")
    ends = {name: run(x[:4096]) for name, run in contenders.items()}
    runs = {name: lambda run=run: run(x) for name, run in contenders.items()}
    found = in_turns(runs, rounds, seconds=process_time)
    for name in contenders:
        seconds, apart = min(found[name]), (ends[name] - ends["naive"]).abs().amax(1).median()
        yield Reading("gmm", name, "ns/(sample step)", 1e9 * seconds / (samples * STEPS))
        yield Reading("gmm", name, "median distance from naive", float(apart))
        goal = 0.0 if name in engines() else None
        yield Reading("gmm", name, "NaN", int(ends[name].isnan().sum()), goal=goal, at_most=True)
        for peer in ("naive", "flow_matching"):
            if peer != name:
                goal = GOALS.get((name, peer))
                yield Reading("gmm", name, f"x {peer}", goal=goal, **ratio(found, peer, name))
    yield from statistics_agree(samples)
    progress("exponentials")
    least = len(MU) / limits.exp()
    for name in engines():
        yield Reading("gmm", name, "share of the exp roofline", least * samples * STEPS / min(found[name]))
    yield from curves(options.quick)


def statistics_agree(samples: int) -> Iterator[Row]:
    """Occupancies and variance ratios of each engine's samples, beside those of the naive loop."""
    x = noise(min(samples, 50_000))
    expected = branches(CONDITION, naive(x))
    for engine in engines():
        found = branches(CONDITION, ours(engine)(x))
        for what in ("occupancy", "variance_ratio"):
            apart = (getattr(found, what) - getattr(expected, what)).abs().max()
            name = f"{what.replace('_', ' ')}: largest difference"
            yield Reading("gmm", engine, name, float(apart), goal=1e-3, at_most=True)


def ring(components: int) -> Condition:
    """Equal components on the paper's circle, the first quarter of them given."""
    return Condition(Mixture(circle(components), std=STD), range(max(1, components // 4)))


def curves(quick: bool) -> Iterator[Row]:
    base = 4096 if quick else 32768
    axes: dict[str, tuple[float, ...]] = {
        "samples": (256, 4096, 16384) if quick else (256, 1024, 4096, 16384, 65536, 262144),
        "steps": (10, 25, 50) if quick else (10, 20, 50, 100, 200),
        "components": (2, 4, 8, 12, 16) if quick else (2, 4, 8, 12, 16, 32, 64),
    }
    for axis, points in axes.items():
        progress(f"cost against {axis}")
        for engine in engines():
            line = [(at, nanoseconds(engine, axis, int(at), base, 2 if quick else 3)) for at in points]
            known = [pair for pair in line if pair[1] is not None]
            at, value = zip(*known, strict=True)
            yield Curve("gmm", f"Cost against {axis}", engine, axis, "ns/(sample step)", at, value)


def nanoseconds(engine: str, axis: str, at: int, base: int, rounds: int) -> float | None:
    """Of one sample and step; None where the engine cannot run it."""
    samples, steps = (at if axis == "samples" else base), (at if axis == "steps" else 20)
    condition = ring(at if axis == "components" else 8)
    x, run = noise(samples), ours(engine, steps, condition)
    if engine == "numba" and engine_for(condition, RULE, x, uniform(steps)) != "numba":
        return None
    return 1e9 * interleaved({"": lambda: run(x)}, rounds, process_time)[""] / (samples * steps)


def memory(samples: int = 10_000_000) -> int:
    ours(engines()[0])(torch.randn(samples, 2))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20  # kilobytes on Linux
    print(f"{samples:,} samples x {STEPS} steps: {peak:.2f} GB at most, the whole process (goal: below 2)")
    return int(peak >= 2)


def main() -> int:
    if "--memory" in sys.argv:
        torch.set_num_threads(1)
        return memory()
    return command(
        "gmm",
        __doc__,
        measure,
        [("--memory", {"action": "store_true", "help": "ten million samples instead"})],
    )


if __name__ == "__main__":
    sys.exit(main())
