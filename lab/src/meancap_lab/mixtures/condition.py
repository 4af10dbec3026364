"""A condition on a mixture: its components are in the set A, the others in the complement B; and the three
conditions of the paper.

    P_A   p(A | x),  P_B = 1 - P_A,  h = log P_A
    n_A   mean pull of the components in A (see mixture.py), n_B of those in B
    l     lead of the condition,  n_A - n = P_B (n_A - n_B)

    m_c - m_u  (1 - t)^2 l        v_c - v_u  (1 - t) l        grad h  t l

P_A and P_B come from two log-sum-exps and their difference, so the gap keeps its digits where P_B is tiny
(m_c - m_u computed by subtraction has none left) and grad h where P_A underflows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from meancap.prediction import Prediction

from .mixture import Components, Mixture


class Sides(NamedTuple):
    """The quantities of both sides of a condition at (x, t)."""

    m_in: Tensor  # posterior mean given A, (..., d)
    between: Tensor  # the same less that given B
    log_odds: Tensor  # log P_A - log P_B, (..., 1)


class _Split(NamedTuple):
    parts: Components
    pi_in: Tensor  # p(k | x, A), (..., K)
    pi_out: Tensor  # p(k | x, B), (..., K)
    log_odds: Tensor  # log P_A - log P_B, (...)

    @property
    def between(self) -> Tensor:
        return self.parts.pull(self.pi_in) - self.parts.pull(self.pi_out)

    @property
    def lead(self) -> Tensor:
        return self.log_odds.neg().sigmoid()[..., None] * self.between


@dataclass(frozen=True, eq=False)
class Condition:
    """The data come from these components of the mixture: both fields, and what guidance reads off them."""

    mixture: Mixture
    members: tuple[int, ...]
    conditional: Mixture = field(init=False, repr=False)  # the law of the data under the condition
    inside: Tensor = field(init=False, repr=False)  # which components are in A, (K,)

    def __post_init__(self) -> None:
        members = tuple(self.members)
        inside = torch.zeros(len(self.mixture.means), dtype=torch.bool, device=self.mixture.means.device)
        object.__setattr__(self, "members", members)
        object.__setattr__(self, "conditional", self.mixture.given(members))
        object.__setattr__(
            self, "inside", inside.index_fill(0, torch.tensor(members, device=inside.device), True)
        )
        if not self.mixture.weights[~self.inside].sum() > 0:
            raise ValueError(f"a condition needs a component with weight outside it; got {members}")

    @property
    def log_prior(self) -> Tensor:
        """log p(A)."""
        return self.mixture.weights[list(self.members)].sum().log()

    def means(self, x: Tensor, t: Tensor | float) -> tuple[Tensor, Tensor]:
        """Posterior means m_c, m_u, (..., d) each."""
        split = self._split(x, t)
        m_c = split.parts.mean(split.pi_in)
        return m_c, m_c - (1 - split.parts.t) ** 2 * split.lead

    def velocities(self, x: Tensor, t: Tensor | float) -> tuple[Tensor, Tensor]:
        """Velocities v_c, v_u, (..., d) each."""
        split = self._split(x, t)
        v_c = split.parts.velocity(split.pi_in)
        return v_c, v_c - (1 - split.parts.t) * split.lead

    def delta(self, x: Tensor, t: Tensor | float) -> Tensor:
        """m_c - m_u to full relative precision, (..., d)."""
        split = self._split(x, t)
        return (1 - split.parts.t) ** 2 * split.lead

    def force(self, x: Tensor, t: Tensor | float) -> Tensor:
        """v_c - v_u = (1 - t)/t grad h, (..., d); regular at t = 0 and t = 1."""
        split = self._split(x, t)
        return (1 - split.parts.t) * split.lead

    def log_posterior(self, x: Tensor, t: Tensor | float) -> Tensor:
        """h = log p(A | x), (...)."""
        return _log_sigmoid(self._split(x, t).log_odds)

    def log_complement(self, x: Tensor, t: Tensor | float) -> Tensor:
        """log(1 - p(A | x)), (...)."""
        return _log_sigmoid(-self._split(x, t).log_odds)

    def posterior_score(self, x: Tensor, t: Tensor | float) -> Tensor:
        """grad h, (..., d)."""
        split = self._split(x, t)
        return split.parts.t * split.lead

    def predict(self, x: Tensor, t: Tensor | float) -> Prediction:
        """The prediction of a perfect model at (x, t), x (n, d), for the samplers."""
        split = self._split(x, t)
        m_c, gap = split.parts.mean(split.pi_in), (1 - split.parts.t) ** 2 * split.lead
        return Prediction(x, t, m_c, m_c - gap, gap=gap)

    def sides(self, x: Tensor, t: Tensor | float) -> Sides:
        """The means given A and given B, and the odds, for models that weigh them in another way."""
        split = self._split(x, t)
        m_in, between = split.parts.mean(split.pi_in), (1 - split.parts.t) ** 2 * split.between
        return Sides(m_in, between, split.log_odds[..., None])

    def _split(self, x: Tensor, t: Tensor | float) -> _Split:
        parts = self.mixture.components(x, t)
        inside = parts.log_joint.masked_fill(~self.inside, -torch.inf)
        outside = parts.log_joint.masked_fill(self.inside, -torch.inf)
        mass_in, mass_out = inside.logsumexp(-1, keepdim=True), outside.logsumexp(-1, keepdim=True)
        log_odds = (mass_in - mass_out)[..., 0]
        return _Split(parts, (inside - mass_in).exp(), (outside - mass_out).exp(), log_odds)


def _log_sigmoid(odds: Tensor) -> Tensor:
    # torch's own logsigmoid warns when it is differentiated under vmap.
    return -torch.logaddexp(torch.zeros_like(odds), -odds)


COUNT = 8  # components of the paper's mixture
STD = 0.03  # of each


def circle(count: int = COUNT) -> Tensor:
    """Means on the unit circle, (count, 2): the first on top, the others clockwise."""
    angles = math.pi / 2 - 2 * math.pi * torch.arange(count, dtype=torch.float64) / count
    return torch.stack([angles.cos(), angles.sin()], 1)


@dataclass(frozen=True)
class Scene:
    """A condition of Peng & Ma's eight-point experiment: its components, and the weights of all eight."""

    members: tuple[int, ...]
    weights: tuple[float, ...] = (1 / COUNT,) * COUNT

    def mixture(self) -> Mixture:
        """All eight components."""
        return Mixture(circle(), self.weights, std=STD)

    def condition(self) -> Condition:
        """The mixture, conditioned on the members."""
        return Condition(self.mixture(), self.members)

    def __str__(self) -> str:
        return "{" + ",".join(map(str, self.members)) + "}"


SINGLE = Scene((0,))
PAIR = Scene((0, 1), (0.17, 0.08) + (0.125,) * 6)  # imbalanced on purpose: 68 % to 32 %
TRIPLE = Scene((0, 1, 2))
SCENES = (SINGLE, PAIR, TRIPLE)
