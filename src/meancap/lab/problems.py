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
from typing import NamedTuple

import torch
from torch import Tensor

from ..prediction import Prediction
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
    about: str
    layout: Circle | Cloud
    members: tuple[int, ...]
    eta: float = 0.0
    leak: float = 0.0

    def __post_init__(self) -> None:
        if not (0 <= self.eta < 1 and 0 <= self.leak < 1):
            raise ValueError(
                f"eta and leak are shares from 0 (no error) to below 1; got eta={self.eta}, leak={self.leak}"
            )

    @property
    def best_scale(self) -> float | None:
        """The fixed scale that makes the model exact; None where no fixed scale does."""
        return None if self.leak else 1 / (1 - self.eta)

    def condition(self) -> Condition:
        return Condition(self.layout.mixture(), self.members)

    def model(self) -> Model:
        """What the network under test says."""
        return Model(self.condition(), self.eta, self.leak)

    def labelled(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """Data that carry the label, the leaked ones among them, (n, d)."""
        condition = self.condition()
        whole, inside = condition.mixture, condition.inside
        shares = torch.where(inside, (1 - self.leak) * whole.weights, self.leak * whole.weights)
        sides = torch.where(inside, whole.weights[inside].sum(), whole.weights[~inside].sum())
        return Mixture(whole.means, shares / sides, cov=whole.cov).sample(n, generator)

    def exact(self) -> Problem:
        """The same truth with a model that is right."""
        return replace(self, eta=0.0, leak=0.0)


class Sides(NamedTuple):
    """What both sides of the condition say at (x, t)."""

    m_in: Tensor  # m_A, (n, d)
    between: Tensor  # m_A - m_B, (n, d)
    log_odds: Tensor  # log o, (n, 1)


@dataclass(frozen=True, eq=False)
class Model:
    """What the network under test says: both posterior means, wrong by `eta` and `leak`."""

    condition: Condition
    eta: float = 0.0
    leak: float = 0.0
    shift: float = field(init=False)  # log k; infinite without a leak
    ordered: Mixture = field(init=False, repr=False)  # the components of A first

    def __post_init__(self) -> None:
        prior = float(self.condition.log_prior)
        odds = prior - math.log1p(-math.exp(prior))
        shift = math.inf if self.leak == 0 else math.log1p(-self.leak) - math.log(self.leak) - odds
        if shift <= 0:
            raise ValueError(
                f"with a leak of {self.leak} the label does not favour the condition, whose prior is "
                f"{math.exp(prior):.3g}; use a leak below {1 - math.exp(prior):.3g}"
            )
        others = (~self.condition.inside).nonzero().flatten().tolist()
        object.__setattr__(self, "shift", shift)
        object.__setattr__(self, "ordered", self.condition.mixture.given([*self.condition.members, *others]))

    def predict(self, x: Tensor, t: float) -> Prediction:
        """The two means for the samplers; the gap is formed without subtracting them."""
        m_in, between, o = self.sides(x, t)
        gap = self._lead(o) * between
        m_c = m_in - ((1 - self.eta) * (-o - self.shift).sigmoid() + self.eta * (-o).sigmoid()) * between
        return Prediction(x, t, m_c, m_c - gap, gap=gap)

    def best_scale(self, x: Tensor, t: float) -> Tensor:
        """lambda*, the scale at which the guided mean is the true conditional mean, (n,); always finite."""
        o = self.sides(x, t).log_odds[:, 0]
        # (1 + k o) / ((k - 1) o) by logarithms: where the gap vanishes a quotient would be infinity times 0.
        grown = torch.logaddexp(torch.zeros_like(o), -o - self.shift).clamp(max=_LONGEST)
        return grown.exp() / (-math.expm1(-self.shift) * (1 - self.eta))

    def _lead(self, o: Tensor) -> Tensor:
        """The gap over m_A - m_B: what the model's condition adds to p(A | x)."""
        # sigmoid(a) - sigmoid(b) = sigmoid(a) sigmoid(-b) (1 - exp(b - a)) keeps its digits where both are 1.
        return (1 - self.eta) * -math.expm1(-self.shift) * (o + self.shift).sigmoid() * (-o).sigmoid()

    def sides(self, x: Tensor, t: float) -> Sides:
        if _common(self.condition.mixture):
            return _affine_sides(self.condition, x, t)
        parts, k = self.ordered.components(x, t), len(self.condition.members)
        log_in, log_out = parts.log_joint[:, :k], parts.log_joint[:, k:]
        mass_in, mass_out = (v.logsumexp(1, keepdim=True) for v in (log_in, log_out))
        pull_in = ((log_in - mass_in).exp()[:, None] @ parts.pulls[:, :k])[:, 0]
        pull_out = ((log_out - mass_out).exp()[:, None] @ parts.pulls[:, k:])[:, 0]
        rest = (1 - t) ** 2
        return Sides(
            t * parts.s / parts.c * x + rest * pull_in, rest * (pull_in - pull_out), mass_in - mass_out
        )


def _common(mixture: Mixture) -> bool:
    return mixture.cov.ndim in (0, 2)


def _affine_sides(condition: Condition, x: Tensor, t: float) -> Sides:
    """The same for one covariance S = Q diag(v) Q^T in all components, where logits are affine in x.

    In the coordinates of Q, with c = (1 - t)^2 + t^2 v, the mean given a side is (t v x + (1 - t)^2 mu) / c,
    mu being the average of its means under softmax(log w_k + t <x, mu_k / c> - t^2 <mu_k, mu_k / c> / 2).
    """
    mixture, inside = condition.mixture, condition.inside
    x = x.to(torch.promote_types(x.dtype, mixture.means.dtype))  # matrix products do not promote
    v, means, weights = (u.to(x) for u in (mixture.variances[0], mixture.means, mixture.weights))
    axes = None if mixture.axes is None else mixture.axes[0].to(x)
    y, mu = (x, means) if axes is None else (x @ axes, means @ axes)
    c = (1 - t) ** 2 + t * t * v
    logits = torch.addmm(weights.log() - t * t / 2 * (mu * mu / c).sum(1), y, (t * mu / c).T)
    log_in, log_out = logits[:, inside], logits[:, ~inside]
    pull = (1 - t) ** 2 * mu / c
    if axes is not None:
        pull = pull @ axes.T
    n_in, n_out = log_in.softmax(1) @ pull[inside], log_out.softmax(1) @ pull[~inside]
    own = y * (t * v / c)
    m_in = n_in + (own if axes is None else own @ axes.T)
    odds = log_in.logsumexp(1, keepdim=True) - log_out.logsumexp(1, keepdim=True)
    return Sides(m_in, n_in - n_out, odds)


_FAR = Cloud(8, spread=0.5)
_FAR64 = Cloud(64, spread=0.2, common=True, seed=1)
_WIDE = Circle(0.35)
_PAPER = Circle(0.03)

PROBLEMS = (
    Problem("single", "the paper's {0}: one of eight narrow modes, exact model", _PAPER, SINGLE.members),
    Problem(
        "pair", "the paper's {0,1}: two of eight, weights 68 to 32", Circle(0.03, PAIR.weights), PAIR.members
    ),
    Problem("triple", "the paper's {0,1,2}: three of eight narrow modes", _PAPER, TRIPLE.members),
    Problem("overlap-single", "one of eight modes so wide (0.35) that they overlap", _WIDE, SINGLE.members),
    Problem("overlap-triple", "three of eight overlapping modes", _WIDE, TRIPLE.members),
    Problem(
        "off-centre-8",
        "three of twelve long components round a point 4 from the origin, in 8-D",
        _FAR,
        (0, 1, 2),
    ),
    Problem("off-centre-64", "the same in 64-D, with one covariance for all", _FAR64, (0, 1, 2)),
    Problem(
        "under-single",
        "the paper's {0} with a model half-way to unconditional",
        _PAPER,
        SINGLE.members,
        eta=0.5,
    ),
    Problem("under-triple", "the paper's {0,1,2} with the same error", _PAPER, TRIPLE.members, eta=0.5),
    Problem("under-8", "the off-centre mixture in 8-D with the same error", _FAR, (0, 1, 2), eta=0.5),
    Problem(
        "leak-single", "the paper's {0}, 30 % of its label from other modes", _PAPER, SINGLE.members, leak=0.3
    ),
    Problem("leak-triple", "the paper's {0,1,2} with the same leak", _PAPER, TRIPLE.members, leak=0.3),
    Problem("leak-8", "the off-centre mixture in 8-D with the same leak", _FAR, (0, 1, 2), leak=0.3),
    Problem(
        "both-triple", "the paper's {0,1,2}: eta 0.3 and leak 0.2", _PAPER, TRIPLE.members, eta=0.3, leak=0.2
    ),
    Problem(
        "both-8", "the off-centre mixture in 8-D: eta 0.3 and leak 0.2", _FAR, (0, 1, 2), eta=0.3, leak=0.2
    ),
)


def problem(name: str) -> Problem:
    """One of `PROBLEMS` by its name."""
    for one in PROBLEMS:
        if one.name == name:
            return one
    raise ValueError(f"no problem is called {name!r}; there are {', '.join(p.name for p in PROBLEMS)}")
