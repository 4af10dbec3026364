"""How fast pictures are made on the shipped SiT, against a plain loop of two calls in the same run.

    python -m benchmarks.generation

    two calls   ten lines: the network with the class, the network without, the rule, the step
    meancap     what `meancap generate` does: `sample` over `ClassModel.predict`

The same noise, labels, rule, precision and one thread; the pictures must be the same bytes. The forward pass
is mostly matrix products, gelu and attention, which no way of calling it makes cheaper, so a rule that always
acts gains little; a rule that is idle for part of the way saves half the network there.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks import limits
from benchmarks.records import Curve, Note, Reading, Row, command, progress
from benchmarks.timing import in_turns, ratio
from meancap import CFG, Cap, Interval, Prediction, guide, noise, sample, uniform
from meancap.rules import Phases, Rule
from meancap_lab.models import fashion
from meancap_lab.models.classes import ClassModel
from meancap_lab.models.sit import SiT, SiTConfig, pieces

GOAL = 1.3
RULES: dict[str, Rule] = {
    "always active": CFG(4) | Cap(1.1),
    "interval": CFG(4) | Interval(0.2, 0.8) | Cap(1.1),
    "first steps conditional": Phases(4, CFG(1), CFG(4) | Cap(1.1)),
    "scale 1": CFG(1),
}


@torch.no_grad()
def two_calls(network: SiT, rule: Rule, x: Tensor, labels: Tensor, times: tuple[float, ...]) -> Tensor:
    """The peer: as one writes it down, with the rule's own function for the guided mean."""
    none, state = torch.full_like(labels, network.config.classes), None
    for t, s in pairwise(times):
        now = torch.full((len(x),), t)
        v_c, v_u = network(x, now, labels), network(x, now, none)
        m, state = guide(rule, Prediction.from_velocity(x, t, v_c, v_u), state)
        x = m if s == 1 else torch.lerp(x, m, (s - t) / (1 - t))
    return x


def ours(
    model: ClassModel, rule: Rule, x: Tensor, labels: Tensor, times: tuple[float, ...]
) -> Callable[[], Tensor]:
    return lambda: sample(model.predict(labels), rule, x, times)


def case(model: ClassModel, batch: int) -> tuple[Tensor, Tensor]:
    return noise(range(batch), model.shape), torch.arange(batch) % model.classes


def operations(c: SiTConfig) -> int:
    """Floating-point operations of the matrix products of one sample's forward pass, attention included."""
    block = 2 * c.tokens * 12 * c.width**2 + 4 * c.tokens**2 * c.width + 12 * c.width**2
    return c.depth * block + 4 * c.tokens * c.width * c.patch**2 * c.channels


def floor(network: SiT, batch: int) -> Callable[[], object]:
    """The products, gelu and attention of both forward passes alone, in the pieces in which we make them."""
    c, cut = network.config, pieces(2 * batch, network.config.tokens)
    h, wide = (torch.randn(2 * batch, c.tokens, width) for width in (c.width, 4 * c.width))
    q = h.view(2 * batch, c.tokens, c.heads, c.width // c.heads).transpose(1, 2)

    def run() -> None:
        for piece in cut:
            for block in network.blocks:
                block.attn.qkv(h[piece])
                F.scaled_dot_product_attention(q[piece], q[piece], q[piece])
                block.attn.proj(h[piece])
                F.gelu(block.mlp.fc1(h[piece]), approximate="tanh")
                block.mlp.fc2(wide[piece])

    return torch.no_grad()(run)


def measure(options: argparse.Namespace) -> Iterator[Row]:
    model, quick = fashion(), options.quick
    batch, steps, rounds = (20, 8, 2) if quick else (50, 10, 4)
    (x, labels), times = case(model, batch), uniform(steps)
    setting = f"{batch} pictures, {steps} steps"
    yield Note("generation", f"Each round makes {setting}, of all classes; one thread, {rounds} rounds.")
    for name, rule in RULES.items():
        progress(f"{name}: {rule}")
        contenders = {
            "two calls": lambda rule=rule: two_calls(model.network, rule, x, labels, times),
            "meancap": ours(model, rule, x, labels, times),
        }
        pictures = [model.decode(run()) for run in contenders.values()]
        found = in_turns(contenders, rounds)
        shown = f"{name}: `{rule}`"
        yield Reading("generation", shown, "pictures/s", batch / min(found["meancap"]))
        yield Reading("generation", shown, "two calls, pictures/s", batch / min(found["two calls"]))
        goal = {"goal": GOAL} if name in ("always active", "interval") else {}
        yield Reading(
            "generation", shown, "speed-up", unit="x", **ratio(found, "two calls", "meancap"), **goal
        )
        different = (pictures[0] != pictures[1]).sum().item()
        yield Reading("generation", shown, "bytes that differ", different, goal=0, at_most=True)
        if name == "always active":
            yield from bounds(model, batch, found["meancap"], found["two calls"], steps, rounds)
    yield from curves(model, quick)


def bounds(
    model: ClassModel, batch: int, mine: list[float], peer: list[float], steps: int, rounds: int
) -> Iterator[Row]:
    """How much of our time no way of calling the network could save, and our share of the GEMM roofline."""
    lowest = steps * min(in_turns({"floor": floor(model.network, batch)}, rounds)["floor"])
    shown = f"`{RULES['always active']}`"
    found = partial(Reading, "generation, bounds", shown)
    yield found("products, gelu, attention: share of our time", lowest / min(mine))
    yield found("speed-up if the rest were free", min(peer) / lowest, "x")
    done = 2 * steps * batch * operations(model.network.config)
    yield found("share of GEMM", done / min(mine) / limits.product())


def curves(model: ClassModel, quick: bool) -> Iterator[Row]:
    batches = (1, 8, 25) if quick else (1, 4, 16, 50, 100)
    lines: dict[str, list[float]] = {"two calls": [], "meancap": []}
    rule, times = RULES["always active"], uniform(2)
    for batch in batches:
        progress(f"batch {batch}")
        x, labels = case(model, batch)
        found = in_turns(
            {
                "two calls": lambda x=x, y=labels: two_calls(model.network, rule, x, y, times),
                "meancap": ours(model, rule, x, labels, times),
            },
            2 if quick else 4,
        )
        for name, line in lines.items():
            line.append(1e3 * min(found[name]) / (2 * batch))
    for name, line in lines.items():
        yield Curve(
            "generation", "One step against the batch", name, "batch", "ms per picture", batches, tuple(line)
        )


def main() -> int:
    return command("generation", __doc__, measure)


if __name__ == "__main__":
    sys.exit(main())
