"""Named problems: a truth p(x | A) that is known, and a model that may be wrong in a known way.

    A, B    the components that the condition means, and all others; o = p(A | x) / p(B | x) their odds
    m_A     posterior mean of the data given A, m_B given B;  m_u = m_B + P_A (m_A - m_B),  P_A = o / (1 + o)
    leak    share e of the data with this label that come from B, so that the model's odds are k o,
            k = ((1 - e) / e) (w_B / w_A)
    eta     under-conditioning:  m_c = (1 - eta) m + eta m_u,  m the mean with the leak

Every gap points along m_A - m_B, so at each state some scale leads from the model's means to the true one:

    lambda*  =  (1 + k o) / ((k - 1) o (1 - eta)),   which is  1 / (1 - eta)  everywhere without a leak.

With a leak it grows without bound where the condition is unlikely: no fixed scale undoes a leak.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from meancap.prediction import Prediction

from .condition import COUNT, PAIR, SINGLE, TRIPLE, Condition, circle
from .mixture import Mixture

_LONGEST = 600.0  # the largest exponent of a scale: e^600 times a gap of e^-600 is still a number


@dataclass(frozen=True)
class Circle:
    """Eight equal components on the unit circle, the paper's arrangement, with any width."""

    std: float
    weights: tuple[float, ...] = (1 / COUNT,) * COUNT

    def mixture(self) -> Mixture:
        return Mixture(circle(), self.weights, std=self.std)


@dataclass(frozen=True)
class Cloud:
    """Components scattered round a point that is not the origin, longer in some directions than in others.

    Means are `offset` along the first diagonal plus `spread` times Gaussian draws. Standard deviations run
    from `least` to `most` in geometric steps along random axes, the same for all components if `common`.
    """

    dimensions: int
    components: int = 12
    offset: float = 4.0
    spread: float = 1.0
    least: float = 0.1
    most: float = 0.6
    common: bool = False
    seed: int = 0

    def mixture(self) -> Mixture:
        d, k = self.dimensions, self.components
        draw = torch.Generator().manual_seed(self.seed)
        means = self.offset / math.sqrt(d) + self.spread * torch.randn(
            k, d, generator=draw, dtype=torch.float64
        )
        turns, _ = torch.linalg.qr(torch.randn(k, d, d, generator=draw, dtype=torch.float64))
        widths = torch.logspace(math.log10(self.least), math.log10(self.most), d, dtype=torch.float64)
        weights = 0.5 + torch.rand(k, generator=draw, dtype=torch.float64)
        cov = (turns * widths**2) @ turns.mT
        cov = (cov + cov.mT) / 2
        return Mixture(means, weights, cov=cov[0] if self.common else cov)


@dataclass(frozen=True)
class Problem:
    """A truth, a condition, and the errors of the model that is to be guided."""

    name: str
    layout: Circle | Cloud
    members: tuple[int, ...]
    eta: float = 0.0
    leak: float = 0.0

    def __post_init__(self) -> None:
        if not (0 <= self.eta < 1 and 0 <= self.leak < 1):
            raise ValueError(
                f"eta and leak are shares from 0 (no error) to below 1; got eta={self.eta}, leak={self.leak}"
            )

    def condition(self) -> Condition:
        return Condition(self.layout.mixture(), self.members)

    def model(self) -> Model:
        """The prediction of the network under test."""
        return Model(self.condition(), self.eta, self.leak)

    def exact(self) -> Problem:
        """The same truth with a model that is right."""
        return replace(self, eta=0.0, leak=0.0)


@dataclass(frozen=True, eq=False)
class Model:
    """The network under test: both posterior means, wrong by `eta` and `leak`."""

    condition: Condition
    eta: float = 0.0
    leak: float = 0.0
    shift: float = field(init=False)  # log k; infinite without a leak

    def __post_init__(self) -> None:
        prior = float(self.condition.log_prior)
        odds = prior - math.log1p(-math.exp(prior))
        shift = math.inf if self.leak == 0 else math.log1p(-self.leak) - math.log(self.leak) - odds
        if shift <= 0:
            raise ValueError(
                f"with a leak of {self.leak} the label does not favour the condition, whose prior is "
                f"{math.exp(prior):.3g}; use a leak below {1 - math.exp(prior):.3g}"
            )
        object.__setattr__(self, "shift", shift)

    def predict(self, x: Tensor, t: float) -> Prediction:
        """The two means for the samplers; the gap is formed without subtracting them."""
        m_in, between, o = self.condition.sides(x, t)
        # sigmoid(a) - sigmoid(b) = sigmoid(a) sigmoid(-b) (1 - exp(b - a)) keeps its digits where both are 1.
        lead = (1 - self.eta) * -math.expm1(-self.shift) * (o + self.shift).sigmoid() * (-o).sigmoid()
        gap = lead * between
        m_c = m_in - ((1 - self.eta) * (-o - self.shift).sigmoid() + self.eta * (-o).sigmoid()) * between
        return Prediction(x, t, m_c, m_c - gap, gap=gap)

    def best_scale(self, x: Tensor, t: float) -> Tensor:
        """lambda*, the scale at which the guided mean is the true conditional mean, (n,); always finite."""
        o = self.condition.sides(x, t).log_odds[:, 0]
        # (1 + k o) / ((k - 1) o) by logarithms: where the gap vanishes a quotient would be infinity times 0.
        grown = torch.logaddexp(torch.zeros_like(o), -o - self.shift).clamp(max=_LONGEST)
        return grown.exp() / (-math.expm1(-self.shift) * (1 - self.eta))


_FAR = Cloud(8, spread=0.5)
_FAR64 = Cloud(64, spread=0.2, common=True, seed=1)  # one covariance for all
_WIDE = Circle(0.35)
_PAPER = Circle(0.03)

# The paper's three conditions, wider modes, long components round a point 4 from the origin, and models that
# are half-way to unconditional, have 30 % of their label from other modes, or both in part.
PROBLEMS = (
    Problem("single", _PAPER, SINGLE.members),
    Problem("pair", Circle(0.03, PAIR.weights), PAIR.members),
    Problem("triple", _PAPER, TRIPLE.members),
    Problem("overlap-single", _WIDE, SINGLE.members),
    Problem("overlap-triple", _WIDE, TRIPLE.members),
    Problem("off-centre-8", _FAR, (0, 1, 2)),
    Problem("off-centre-64", _FAR64, (0, 1, 2)),
    Problem("under-single", _PAPER, SINGLE.members, eta=0.5),
    Problem("under-triple", _PAPER, TRIPLE.members, eta=0.5),
    Problem("under-8", _FAR, (0, 1, 2), eta=0.5),
    Problem("leak-single", _PAPER, SINGLE.members, leak=0.3),
    Problem("leak-triple", _PAPER, TRIPLE.members, leak=0.3),
    Problem("leak-8", _FAR, (0, 1, 2), leak=0.3),
    Problem("both-triple", _PAPER, TRIPLE.members, eta=0.3, leak=0.2),
    Problem("both-8", _FAR, (0, 1, 2), eta=0.3, leak=0.2),
)


def problem(name: str) -> Problem:
    """One of `PROBLEMS` by its name."""
    for one in PROBLEMS:
        if one.name == name:
            return one
    raise ValueError(f"unknown problem {name!r}; known problems: {', '.join(p.name for p in PROBLEMS)}")
