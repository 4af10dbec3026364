"""Errors that no scale undoes: a smooth random field in both predictions, and a small trained network.

    on the ray     eta and leak of `problems.Model`: every gap points along m_A - m_B, so that at each state
                   some scale leads to the true mean
    off the ray    v_c and v_u each get a field of their own, rms `rough`; it does not vanish where the gap
                   does, so that a large scale multiplies it
    network        an MLP of (x, t, label) learns both velocities from data whose labels may leak; the label
                   is dropped in three of ten examples

A field is a sum of WAVES cosines of random direction, length and phase in (x, t): smooth, of the given root
mean square, and the same for the same seed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..prediction import Prediction
from .mixture import Mixture
from .problems import Problem

Predict = Callable[[Tensor, float], Prediction]
WAVES = 48
DROPPED = 0.3
_WIDTH, _BATCH, _RATE = 64, 128, 2e-3


@lru_cache(maxsize=8)
def predictor(problem: Problem) -> Predict:
    """What the network under test says, with all of the problem's errors."""
    if problem.network:
        return trained(problem)
    exact = problem.model()
    if not problem.rough:
        return exact.predict
    d = exact.condition.mixture.means.shape[1]
    return off_ray(exact.predict, *(Field.drawn(d, problem.rough, f"{problem.name} {w}") for w in "cu"))


def weaker(problem: Problem) -> Predict:
    """A model with the same errors, only larger, as autoguidance wants it: of a network, an early state."""
    if problem.network:
        return trained(replace(problem, network=max(1, problem.network // 8)))
    outside = 1 - float(problem.condition().log_prior.exp())
    return predictor(
        replace(
            problem,
            eta=(1 + problem.eta) / 2,
            leak=(problem.leak + outside) / 2 if problem.leak else 0.0,
            rough=2 * problem.rough,
        )
    )


@dataclass(frozen=True, eq=False)
class Field:
    """A smooth random vector field of (x, t)."""

    waves: Tensor  # (d + 1, WAVES)
    phases: Tensor  # (WAVES,)
    amplitudes: Tensor  # (WAVES, d)

    @classmethod
    def drawn(cls, d: int, rms: float, seed: str) -> Field:
        draw = torch.Generator().manual_seed(sum(ord(c) * 131**i for i, c in enumerate(seed)) % 2**31)

        def normal(*shape: int) -> Tensor:
            return torch.randn(shape, generator=draw, dtype=torch.float64)

        phases = 2 * math.pi * torch.rand(WAVES, generator=draw, dtype=torch.float64)
        # The length of the vector has the root mean square `rms`: each of d elements has rms / sqrt(d).
        return cls(normal(d + 1, WAVES), phases, rms * math.sqrt(2 / (WAVES * d)) * normal(WAVES, d))

    def __call__(self, x: Tensor, t: float) -> Tensor:
        return (x @ self.waves[:-1] + t * self.waves[-1] + self.phases).cos() @ self.amplitudes


def off_ray(predict: Predict, field_c: Field, field_u: Field) -> Predict:
    """`predict` with an error of its own in each of the two velocities."""

    def wrong(x: Tensor, t: float) -> Prediction:
        p = predict(x, t)
        e_c, e_u = ((1 - t) * field(x, t) for field in (field_c, field_u))
        return Prediction(x, t, p.m_c + e_c, p.m_u + e_u, gap=p.delta + e_c - e_u)

    return wrong


class VelocityNet(nn.Module):
    """Velocity of (x, t, label); label 2 is the dropped one."""

    def __init__(self, d: int, width: int = _WIDTH) -> None:
        super().__init__()
        self.d = d
        self.body = nn.Sequential(
            nn.Linear(d + 5 + 3, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, d),
        )  # fmt: skip

    def forward(self, x: Tensor, t: Tensor, label: Tensor) -> Tensor:
        angles = t * (math.pi * torch.tensor([0.5, 1.0]))
        seen = torch.cat([x, t, angles.sin(), angles.cos(), F.one_hot(label, 3).float()], 1)
        v: Tensor = self.body(seen)
        return v


@lru_cache(maxsize=16)
def trained(problem: Problem) -> Predict:
    """A network trained on the problem's data for `problem.network` steps, the same for the same problem."""
    condition = problem.condition()
    whole, inside = condition.mixture, condition.inside
    d = whole.means.shape[1]
    draw = torch.Generator().manual_seed(0)
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        torch.manual_seed(0)
        net = VelocityNet(d)
        optimiser = torch.optim.Adam(net.parameters(), lr=_RATE)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, max(1, problem.network))
        for _ in range(problem.network):
            data, label = _labelled(whole, inside, problem.leak, draw)
            t = torch.rand(_BATCH, 1, generator=draw)
            noise = torch.randn(_BATCH, d, generator=draw)
            loss = (net(torch.lerp(noise, data, t), t, label) - (data - noise)).square().mean()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
    net.requires_grad_(False)

    def predict(x: Tensor, t: float) -> Prediction:
        seen, time = x.float().repeat(2, 1), torch.full((2 * len(x), 1), float(t))
        label = torch.tensor([1, 2]).repeat_interleave(len(x))
        v_c, v_u = net(seen, time, label).to(x.dtype).chunk(2)
        return Prediction.from_velocity(x, t, v_c, v_u)

    return predict


def _labelled(whole: Mixture, inside: Tensor, leak: float, draw: torch.Generator) -> tuple[Tensor, Tensor]:
    """A batch of data and labels: 1 the condition, 0 the rest, 2 dropped; a share of label 1 has leaked."""
    k = torch.multinomial(whole.weights, _BATCH, replacement=True, generator=draw)
    label = inside[k].long()
    # Of the examples with label 1 a share `leak` comes from outside: outsiders get it at this rate.
    prior = float(whole.weights[inside].sum())
    rate = leak / (1 - leak) * prior / (1 - prior)
    label = torch.where(torch.rand(_BATCH, generator=draw) < rate, 1, label)
    z = torch.randn(_BATCH, whole.means.shape[1], generator=draw, dtype=torch.float64)
    z = z * whole.variances[k].sqrt()
    data = whole.means[k] + (z if whole.axes is None else torch.einsum("nde,ne->nd", whole.axes[k], z))
    label = torch.where(torch.rand(_BATCH, generator=draw) < DROPPED, 2, label)
    return data.float(), label
