"""How far samples are from the truth, each number exact or with its error stated.

    x       samples (..., n, d): leading axes are further sets of n samples, each measured by itself
    p       the truth, a mixture with members k of weight w_k, mean mu_k and covariance S_k
    r_k     p(k | x) under p; for exact samples  E r_k = w_k  and  E r_k (x - mu_k)(x - mu_k)^T = w_k S_k
    e_k     unit vector from the mean of all data to mu_k: radial; everything across it is tangential

    sw2         sliced 2-Wasserstein distance; error: the directions (see `Ruler.directions`)
    w2_axis     2-Wasserstein distance of the projection on E[x | A] - E[x], where guidance pushes; exact
    occupancy   total variation between the mean of r_k and w_k; exact, also where members overlap
    mean_error  |mean x - E[x | A]|; exact
    radial      variance within members along e_k over the true one; tangential the same across; exact
    alignment   mean of p(A | x) under the whole mixture; exact
    coverage    share of p's mass in cells that hold a quarter of their due, else in proportion; error: CELLS
    kl          mean of log q(x) - log p(x), see `kl_terms`

"Exact" is as a function of the samples. That there are only n of them is the Monte-Carlo error, which several
independent sets show, and a floor: even exact samples do not have sw2 = 0. `Ruler.floor` measures it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from .condition import Condition
from .mixture import Mixture

LOWER_IS_BETTER = ("sw2", "w2_axis", "occupancy", "mean_error", "kl")
MEASURES = (*LOWER_IS_BETTER, "radial", "tangential", "alignment", "coverage")
CELLS = (
    4  # per direction of the plane of each member; their true masses come from 2^17 draws, 0.3 % at 16 cells
)
_DUE = 0.25
_DRAWS = 2**17


@dataclass(frozen=True, eq=False)
class Line:
    """A mixture seen along one direction: a one-dimensional mixture with known distribution function."""

    weights: Tensor
    means: Tensor
    stds: Tensor

    def below(self, y: Tensor) -> Tensor:
        """P(Y <= y)."""
        z = (y[..., None] - self.means) / self.stds
        below: Tensor = self.weights * torch.special.ndtr(z)
        return below.sum(-1)

    def first_moment(self, y: Tensor) -> Tensor:
        """E[Y; Y <= y]."""
        z = (y[..., None] - self.means) / self.stds
        density = (-0.5 * z * z).exp() / math.sqrt(2 * math.pi)
        parts: Tensor = self.weights * (self.means * torch.special.ndtr(z) - self.stds * density)
        return parts.sum(-1)

    def second_moment(self) -> Tensor:
        return (self.weights * (self.means**2 + self.stds**2)).sum()

    def quantile(self, u: Tensor) -> Tensor:
        """y with P(Y <= y) = u, 0 < u < 1, by bisection to rounding."""
        low = (self.means - 40 * self.stds).min().expand_as(u).clone()
        high = (self.means + 40 * self.stds).max().expand_as(u).clone()
        for _ in range(64):
            middle = (low + high) / 2
            left = self.below(middle) < u
            low, high = torch.where(left, middle, low), torch.where(left, high, middle)
        return (low + high) / 2


def line(law: Mixture, direction: Tensor) -> Line:
    """The law of <direction, x>."""
    turned = direction if law.axes is None else torch.einsum("kde,d->ke", law.axes, direction)
    return Line(law.weights, law.means @ direction, (law.variances * turned**2).sum(1).sqrt())


class Projected:
    """Exact W2^2 along fixed directions between n samples and the law.

    W2^2 = E_x[y^2] + E_p[y^2] - 2 sum_i y_(i) (M(i / n) - M((i - 1) / n)),  M(u) = E_p[Y; Y <= quantile(u)],
    y_(i) being the i-th smallest sample. M is worked out only once.
    """

    def __init__(self, law: Mixture, directions: Tensor, n: int) -> None:
        self.directions, self.n = directions, n
        grid = torch.arange(1, n, dtype=torch.float64) / n
        lines = [line(law, one) for one in directions]
        ends = [torch.stack([torch.zeros((), dtype=torch.float64), one.weights @ one.means]) for one in lines]
        moments = [
            torch.cat([e[:1], one.first_moment(one.quantile(grid)), e[1:]])
            for one, e in zip(lines, ends, strict=True)
        ]
        self.shares = torch.stack(moments).diff()  # (L, n)
        self.squares = torch.stack([one.second_moment() for one in lines])

    def distances(self, x: Tensor) -> Tensor:
        """W2 along each direction, (..., L), of samples (..., n, d)."""
        y = (x @ self.directions.T).mT.sort(-1).values  # (..., L, n)
        own, shared = (y * y).mean(-1), (y * self.shares).sum(-1)
        return (own + self.squares - 2 * shared).clamp_min(0).sqrt()


def fan(d: int, count: int, seed: int = 0) -> Tensor:
    """Unit vectors to slice along: equal angles over half a turn in 2-D, random orthonormal frames beyond."""
    if d == 2:
        angles = math.pi * (torch.arange(count, dtype=torch.float64) + 0.5) / count
        return torch.stack([angles.cos(), angles.sin()], 1)
    draw = torch.Generator().manual_seed(seed)
    frames = [
        torch.linalg.qr(torch.randn(d, d, generator=draw, dtype=torch.float64))[0].T
        for _ in range(-(-count // d))
    ]
    return torch.cat(frames)[:count]


@dataclass(frozen=True, eq=False)
class Ruler:
    """All measures against one condition, with everything that depends on the truth worked out once."""

    condition: Condition
    n: int
    slices: int = 16
    projected: Projected = field(init=False, repr=False)
    radial_axes: Tensor = field(init=False, repr=False)  # e_k, (members, d)
    planes: tuple[Tensor, Tensor] = field(init=False, repr=False)  # whitened e_k and one direction across it
    due: Tensor = field(init=False, repr=False)  # mass of each cell under the truth

    def __post_init__(self) -> None:
        law, centre = self.condition.conditional, self.condition.mixture.mean
        d = law.means.shape[1]
        axis = law.mean - centre
        directions = torch.cat([(axis / axis.norm())[None], fan(d, self.slices)])
        object.__setattr__(self, "projected", Projected(law, directions, self.n))
        e = law.means - centre
        object.__setattr__(self, "radial_axes", e / e.norm(dim=1, keepdim=True))
        object.__setattr__(self, "planes", _planes(law, self.radial_axes))
        draws = law.sample(_DRAWS, torch.Generator().manual_seed(1))
        cells = torch.cat([self._cells(part) for part in torch.split(draws, 2**14)])
        object.__setattr__(self, "due", torch.bincount(cells, minlength=self._count).double() / _DRAWS)

    @property
    def directions(self) -> Tensor:
        """What `sw2` averages over: an equal-angle rule in 2-D, elsewhere a sample of all directions."""
        return self.projected.directions[1:]

    @property
    def _count(self) -> int:
        return len(self.condition.members) * CELLS**2

    def sw2(self, x: Tensor) -> Tensor:
        """The sliced distance alone, (...)."""
        return self.projected.distances(x.double())[..., 1:].square().mean(-1).sqrt()

    def alignment(self, x: Tensor) -> Tensor:
        """Mean of p(A | x), (...)."""
        return self.condition.log_posterior(x.double(), 1.0).exp().mean(-1)

    def read(self, x: Tensor) -> dict[str, Tensor]:
        """Every measure but kl of samples (..., n, d), (...) each."""
        x, law = x.double(), self.condition.conditional
        along = self.projected.distances(x)
        parts = law.components(x, 1.0).pi  # r_k, (..., n, members)
        share = parts.mean(-2)
        return {
            "sw2": along[..., 1:].square().mean(-1).sqrt(),
            "w2_axis": along[..., 0],
            "occupancy": (share - law.weights).abs().sum(-1) / 2,
            "mean_error": (x.mean(-2) - law.mean).norm(dim=-1),
            **self._spread(x, parts, share),
            "alignment": self.alignment(x),
            "coverage": self._coverage(x),
        }

    def slice_error(self, x: Tensor) -> float:
        """What the directions may change sw2 by: in 2-D against half as many, else the standard error."""
        squares = self.projected.distances(x.double())[1:].square()
        value = squares.mean().sqrt()
        if x.shape[1] == 2:
            return float((squares[::2].mean().sqrt() - value).abs())
        return float(squares.std() / math.sqrt(len(squares)) / (2 * value))

    def floor(self, seed: int = 0) -> dict[str, float]:
        """The same measures of n independent exact samples: the values that a perfect sampler would have."""
        x = self.condition.conditional.sample(self.n, torch.Generator().manual_seed(seed))
        return {name: float(v) for name, v in self.read(x).items()}

    def _spread(self, x: Tensor, parts: Tensor, share: Tensor) -> dict[str, Tensor]:
        law, e = self.condition.conditional, self.radial_axes
        offset = x[..., None, :] - law.means  # (..., n, k, d)
        radial = (offset * e).sum(-1)
        total = (offset * offset).sum(-1)
        # Within a member: second moments round mu_k less the square of the shift of its mean.
        first = (parts[..., None] * offset).mean(-3) / share[..., None]
        both, along = (parts * total).mean(-2), (parts * radial * radial).mean(-2)
        both = both - share * (first**2).sum(-1)
        along = along - share * ((first * e).sum(-1)) ** 2
        turned = e if law.axes is None else torch.einsum("kde,kd->ke", law.axes, e)
        along_due, both_due = (law.variances * turned**2).sum(1), law.variances.sum(1)
        return {
            "radial": along.sum(-1) / (share * along_due).sum(-1),
            "tangential": (both - along).sum(-1) / (share * (both_due - along_due)).sum(-1),
        }

    def _coverage(self, x: Tensor) -> Tensor:
        held = torch.nn.functional.one_hot(self._cells(x), self._count).double().mean(-2)
        return torch.minimum(held / _DUE, self.due).sum(-1)

    def _cells(self, x: Tensor) -> Tensor:
        """Each sample's likeliest member and its place in that member's plane, in quarters of the mass."""
        law = self.condition.conditional
        member = law.components(x, 1.0).log_joint.argmax(-1)
        offset = x - law.means[member]
        places = [
            (torch.special.ndtr((offset * plane[member]).sum(-1)) * CELLS).long().clamp(0, CELLS - 1)
            for plane in self.planes
        ]
        cells: Tensor = (member * CELLS + places[0]) * CELLS + places[1]
        return cells


def _planes(law: Mixture, e: Tensor) -> tuple[Tensor, Tensor]:
    """Two vectors for each member whose products with x - mu_k are independent and standard normal."""
    axes = torch.eye(e.shape[1], dtype=e.dtype).expand(len(e), -1, -1) if law.axes is None else law.axes
    cov = (axes * law.variances[:, None, :]) @ axes.mT
    across = torch.stack([_across(one) for one in e])
    first = e / torch.einsum("kd,kde,ke->k", e, cov, e).sqrt()[:, None]
    second = across - torch.einsum("kd,kde,ke->k", across, cov, first)[:, None] * first
    return first, second / torch.einsum("kd,kde,ke->k", second, cov, second).sqrt()[:, None]


def _across(e: Tensor) -> Tensor:
    """A unit vector orthogonal to e, the nearest to the coordinate axis along which e is shortest."""
    axis = torch.zeros_like(e)
    axis[e.abs().argmin()] = 1
    rest = axis - (axis @ e) * e
    unit: Tensor = rest / rest.norm()
    return unit
