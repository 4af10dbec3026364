"""Guidance as optimal control (Azangulov et al. 2025), on a mixture where everything is known.

    w(t, x)    the scale: 1 + softplus of a small network of t and x
    reward     log p(condition | x_1), the classifier's confidence at the end
    cost       (w - 1)^2 |v_c - v_u|^2 t / (1 - t), the rate at which the guided law departs from the unguided
               one: their Kullback-Leibler divergence by Girsanov's theorem, for the diffusion of strength
               2 (1 - t) / t that has the flow's marginals

The paper trains on the diffusion with reweighted paths. Here the fields are known and smooth, so the policy
is trained by the exact gradient through Euler rollouts of the flow, which is what it is then used on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from meancap.prediction import Prediction
from meancap.rules import Displacement, Factor, Values
from meancap.sampling import Predict, trajectory
from meancap.tensors import Number

from ..mixtures.condition import Condition

_SAMPLES = 128  # of a round
Weights = tuple[Tensor, Tensor, Tensor, Tensor]


@dataclass(frozen=True)
class Policy(Factor):
    """CFG with the scale 1 + softplus(bias + outer . tanh(inner [x, t] + shift)).

    `parse` reads it with extra={'Policy': Policy}.
    """

    sets_scale = True

    inner: Values
    shift: Values
    outer: Values
    bias: Values

    def __post_init__(self) -> None:
        for name in ("inner", "shift", "outer", "bias"):
            value = getattr(self, name)
            object.__setattr__(self, name, value if isinstance(value, Values) else Values(value))

    def factor(self, g: Displacement, p: Prediction) -> Number:
        x = p.x.flatten(1).double()
        weights = tuple(v.tensor(x) for v in (self.inner, self.shift, self.outer, self.bias))
        return gain(weights, x, p.t)  # type: ignore[arg-type]


@dataclass(frozen=True)
class _Trained(Factor):
    """The policy while its weights still move."""

    sets_scale = True

    weights: Weights

    def factor(self, g: Displacement, p: Prediction) -> Number:
        return gain(self.weights, p.x.flatten(1), p.t)


def gain(weights: Weights, x: Tensor, t: Number) -> Tensor:
    """w - 1 for each sample."""
    inner, shift, outer, bias = weights
    time = t[:, None].to(x) if isinstance(t, Tensor) else x.new_full((x.shape[0], 1), t)
    hidden = torch.tanh(torch.cat([x, time], 1) @ inner.T + shift)
    return F.softplus(hidden @ outer + bias)


def train_policy(
    condition: Condition,
    predict: Predict,
    times: Sequence[float],
    *,
    cost: float = 1.0,
    hidden: int = 8,
    rounds: int = 40,
    rate: float = 0.03,
) -> Policy:
    """A policy that raises the mean reward less `cost` times the cost; every round has fresh noise."""
    like = condition.mixture.means
    generator = torch.Generator().manual_seed(0)
    size = like.shape[1]

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=like.dtype)

    weights: Weights = (
        draw(hidden, size + 1) / (size + 1) ** 0.5,
        torch.zeros(hidden, dtype=like.dtype),
        draw(hidden) * 0.1,
        torch.zeros((), dtype=like.dtype),
    )
    for w in weights:
        w.requires_grad_()
    optimiser = torch.optim.Adam(weights, lr=rate)
    for _ in range(rounds):
        x, spent = draw(_SAMPLES, size), torch.zeros(_SAMPLES, dtype=like.dtype)
        for step in trajectory(predict, _Trained(weights), x, times):
            t, g, x = step.t, step.m - step.prediction.m_c, step.x_next
            spent = spent + (step.t_next - t) * t / (1 - t) ** 3 * g.square().sum(1)
        loss = (cost * spent - condition.log_posterior(x, times[-1])).mean()
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    return Policy(*(Values(w.detach()) for w in weights))
