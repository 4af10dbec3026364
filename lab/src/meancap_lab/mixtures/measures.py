"""How far samples are from the truth: sliced 2-Wasserstein against exact quantiles, and KL(q | p).

    x          samples (..., n, d): leading axes are further sets of n samples, each measured by itself
    q_i        mean of the truth's quantiles from (i - 1) / n to i / n along a direction
    y_i        the i-th smallest of the samples' coordinates along it

    sw2        root of the mean over directions of  W2^2 = mean (y_i - q_i)^2 + E[Y^2] - mean q_i^2
    alignment  mean of p(A | x) under the whole mixture

Both are exact as functions of the samples, but for the directions: equal angles in 2-D, a sample of all
directions elsewhere. That there are only n samples is a floor: even exact samples do not have sw2 = 0, and
`Ruler.floor` measures it.

The exact density of what a sampler produces, for any rule, is Liouville's formula on the discrete flow:

    x_0 -> x_1   the sampler's own map, all steps of it, with whatever the rule remembers on the way
    J            its gradient, by central differences of whole runs from x_0 + h e_i and x_0 - h e_i
    q            law of the samples,  log q(x_1) = log N(x_0) - log|det J|
    KL(q | p)    mean of log q(x_1) - log p(x_1)

In continuous time log|det J| is the integral of the divergence (`theory.pushforward`); here it belongs to the
steps that are taken, so that the loss of Euler's method is counted too. Where steps fold two starts on one
end, q is the density of one sheet of two, and the mean is a lower bound. In d dimensions a sample costs 2 d
runs more; they are independent samples to a rule, so all of them go in one batch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from importlib.util import find_spec

import torch
from torch import Tensor

from .condition import Condition
from .mixture import Mixture

_STEP = 1e-6  # h, in double precision: the error is about h^2 on one side and 1e-16 / h on the other


@dataclass(frozen=True, eq=False)
class Lines:
    """A mixture seen along L directions: one-dimensional mixtures with known distribution functions."""

    weights: Tensor  # (K,)
    means: Tensor  # (L, 1, K)
    stds: Tensor  # (L, 1, K)

    @classmethod
    def of(cls, law: Mixture, directions: Tensor) -> Lines:
        """The laws of <direction, x> for directions (L, d)."""
        axes = law.axes
        turned = directions[:, None] if axes is None else torch.einsum("kde,ld->lke", axes, directions)
        stds = (law.variances * turned**2).sum(-1).sqrt()
        return cls(law.weights, (directions @ law.means.T)[:, None], stds[:, None])

    def below(self, y: Tensor) -> Tensor:
        """P(Y <= y) for y (L, m)."""
        below: Tensor = self.weights * torch.special.ndtr((y[..., None] - self.means) / self.stds)
        return below.sum(-1)

    def first_moment(self, y: Tensor) -> Tensor:
        """E[Y; Y <= y]."""
        z = (y[..., None] - self.means) / self.stds
        density = (-0.5 * z * z).exp() / math.sqrt(2 * math.pi)
        parts: Tensor = self.weights * (self.means * torch.special.ndtr(z) - self.stds * density)
        return parts.sum(-1)

    def second_moment(self) -> Tensor:
        """E[Y^2], (L,)."""
        return (self.weights * (self.means**2 + self.stds**2)).sum(-1)[:, 0]

    def quantile(self, u: Tensor) -> Tensor:
        """y with P(Y <= y) = u, 0 < u < 1, by bisection to rounding, (L, m)."""
        low = (self.means - 40 * self.stds).amin(-1).expand(-1, len(u)).clone()
        high = (self.means + 40 * self.stds).amax(-1).expand(-1, len(u)).clone()
        for _ in range(64):
            middle = (low + high) / 2
            left = self.below(middle) < u
            low, high = torch.where(left, middle, low), torch.where(left, high, middle)
        return (low + high) / 2


def fan(d: int, count: int) -> Tensor:
    """Unit vectors to slice along: equal angles over half a turn in 2-D, random orthonormal frames beyond."""
    if d == 2:
        angles = math.pi * (torch.arange(count, dtype=torch.float64) + 0.5) / count
        return torch.stack([angles.cos(), angles.sin()], 1)
    draw = torch.Generator().manual_seed(0)
    frames = [
        torch.linalg.qr(torch.randn(d, d, generator=draw, dtype=torch.float64))[0].T
        for _ in range(-(-count // d))
    ]
    return torch.cat(frames)[:count]


def _sort_rows(y: Tensor) -> Tensor:
    """Every row in ascending order; numpy sorts rows of some hundreds fifty times as fast as torch."""
    if y.requires_grad or y.device.type != "cpu" or find_spec("numpy") is None:
        return y.sort(-1).values
    y = y.clone(memory_format=torch.contiguous_format)
    y.numpy().sort(-1)
    return y


@dataclass(frozen=True, eq=False)
class Ruler:
    """Both measures against one condition, with everything that depends on the truth worked out once."""

    condition: Condition
    n: int
    slices: int = 16
    directions: Tensor = field(init=False, repr=False)  # (L, d)
    quantiles: Tensor = field(init=False, repr=False)  # q_i, (L, n)
    excess: Tensor = field(init=False, repr=False)  # E[Y^2] - mean q_i^2, (L,)

    def __post_init__(self) -> None:
        law = self.condition.conditional
        directions = fan(law.means.shape[1], self.slices)
        lines = Lines.of(law, directions)
        inner = lines.first_moment(
            lines.quantile(torch.arange(1, self.n, dtype=torch.float64) / self.n)
        )  # E[Y; Y <= quantile(i / n)]
        whole = (directions @ law.mean)[:, None]
        quantiles = self.n * torch.cat([torch.zeros_like(whole), inner, whole], 1).diff()
        object.__setattr__(self, "directions", directions)
        object.__setattr__(self, "quantiles", quantiles)
        object.__setattr__(self, "excess", lines.second_moment() - quantiles.square().mean(1))

    def sw2(self, x: Tensor) -> Tensor:
        """The sliced distance, (...)."""
        y = _sort_rows((x @ self.directions.to(x).T).mT)  # (..., L, n)
        squares = (y - self.quantiles.to(x)).square().mean(-1).double() + self.excess
        return squares.clamp_min(0).mean(-1).sqrt()

    def alignment(self, x: Tensor) -> Tensor:
        """Mean of p(A | x), (...)."""
        return self.condition.log_posterior(x.double(), 1.0).exp().mean(-1)

    def read(self, x: Tensor) -> dict[str, Tensor]:
        """Both measures of samples (..., n, d), (...) each."""
        return {"sw2": self.sw2(x.double()), "alignment": self.alignment(x)}

    def floor(self, seed: int = 0) -> dict[str, float]:
        """The same of n independent exact samples: the values that a perfect sampler would have."""
        x = self.condition.conditional.sample(self.n, torch.Generator().manual_seed(seed))
        return {name: float(v) for name, v in self.read(x).items()}


def displaced(x: Tensor) -> Tensor:
    """The starts that `log_volumes` needs, (2 d n, d): every x plus and minus _STEP along each axis."""
    moves = _STEP * torch.eye(x.shape[1], dtype=x.dtype)
    return (x[:, None, None, :] + torch.stack([moves, -moves])).flatten(0, 2)


def log_volumes(ends: Tensor) -> Tensor:
    """log|det J| for each sample, (n,), from where the displaced starts ended."""
    d = ends.shape[1]
    plus, minus = ends.reshape(-1, 2, d, d).unbind(1)
    volumes: Tensor = torch.linalg.slogdet((plus - minus) / (2 * _STEP)).logabsdet
    return volumes


def kl_terms(start: Tensor, end: Tensor, log_volume: Tensor, truth: Mixture) -> Tensor:
    """log q(x_1) - log p(x_1) for each sample, (n,); their mean estimates KL(q | p)."""
    log_normal = -0.5 * ((start**2).sum(1) + start.shape[1] * math.log(2 * math.pi))
    return log_normal - log_volume - truth.log_density(end, 1.0)
