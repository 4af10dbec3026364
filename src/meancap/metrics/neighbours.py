"""Nearest neighbours among features: found in float32 blocks, decided in float64.

    |x - y|^2 = |x|^2 + |y|^2 - 2 <x, y>     one matrix product per block, after centring and scaling

The product's rounding error is bounded, so only the few pairs closer to a decision than that bound are
computed again, in float64 and from the differences. The answers are those of an exact computation, at the
speed of the matrix product, and they do not depend on the size of the blocks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .gaussian import need_features

ROWS, COLUMNS = 1024, 2048  # a block of 8 MB stays in the cache between the product and the search
_GROUP = 16
_UNIT = torch.finfo(torch.float32).eps / 2


@dataclass(frozen=True, eq=False)
class Points:
    """Features made ready for products: float32 copies in common units beside the originals."""

    exact: Tensor  # (n, d), as given
    unit: float  # exact = centre + unit * x
    x: Tensor  # (n, d) float32, centred, longest row of all sets near 1
    squares: Tensor  # |x|^2, float32
    slack: Tensor  # bound on the rounding error of |x - y|^2, half of it per point

    def __len__(self) -> int:
        return len(self.x)

    def between(self, rows: Tensor, other: Points, columns: Tensor) -> Tensor:
        """Squared distances of listed pairs in float64, in the units of x."""
        squares = torch.empty(len(rows), dtype=torch.float64)
        size = max(1, 2**17 // self.exact.shape[1])  # two megabytes of differences: the cache again
        for part, i, j in zip(
            torch.split(squares, size), torch.split(rows, size), torch.split(columns, size), strict=True
        ):
            apart = (self.exact[i].double() - other.exact[j].double()) / self.unit
            part.copy_(apart.square().sum(1))
        return squares


def points(*sets: Tensor) -> list[Points]:
    """All sets in the same units, so that distances between them can be taken."""
    need_features(*sets)
    sets = tuple(s.detach().cpu() for s in sets)
    centre = sets[0].double().mean(0) if len(sets[0]) < 65536 else sets[0][:65536].double().mean(0)
    longest = max(_longest(s, centre) for s in sets)
    if not longest < float("inf"):
        raise ValueError("features are too large: their distances leave the range of float64")
    # A power of two: dividing by it rounds nothing.
    unit = 2.0 ** torch.frexp(torch.tensor(longest, dtype=torch.float64)).exponent.item() if longest else 1.0
    return [_ready(s, centre, unit) for s in sets]


def _longest(features: Tensor, centre: Tensor) -> float:
    lengths = [(block.double() - centre).norm(dim=1).max() for block in torch.split(features, 4096)]
    return torch.stack(lengths).max().item()


def _ready(features: Tensor, centre: Tensor, unit: float) -> Points:
    x = torch.empty(features.shape, dtype=torch.float32)
    for part, block in zip(torch.split(x, 4096), torch.split(features, 4096), strict=True):
        part.copy_((block.double() - centre) / unit)
    squares = torch.cat([block.double().square().sum(1) for block in torch.split(x, 4096)])
    # An inner product of length d rounds by at most d units of |x||y|, and by fewer than 8 sqrt(d) but for
    # odds of 1e-13 (Higham & Mary 2019); squares, sums and the float32 copy add six.
    d = features.shape[1]
    slack = (min(d, 8 * d**0.5) + 6) * _UNIT * squares
    return Points(features, unit, x, squares.float(), slack.float())


@dataclass(frozen=True, eq=False)
class Neighbours:
    """For each point its nearest others, nearest first; squared distances in units of `Points.x`."""

    squares: Tensor  # (n, K) float64; exact in the columns that were asked for, the others to float32
    indices: Tensor  # (n, K)


def nearest(p: Points, ranks: Sequence[int], keep: int) -> Neighbours:
    """The `keep` nearest other points of each point; distances of the given ranks (1 = nearest) are exact."""
    if not 1 <= max(ranks) <= keep < len(p):
        raise ValueError(
            f"{max(ranks)} neighbours among {len(p)} points: at least {max(ranks) + 1} points are needed"
        )
    blocks = [_nearest_block(p, start, ranks, keep) for start in range(0, len(p), ROWS)]
    return Neighbours(torch.cat([f.squares for f in blocks]), torch.cat([f.indices for f in blocks]))


def _nearest_block(p: Points, start: int, ranks: Sequence[int], keep: int) -> Neighbours:
    x = p.x[start : start + ROWS]
    values, indices = [], []
    for left in range(0, len(p), COLUMNS):
        block = torch.addmm(p.squares[left : left + COLUMNS], x, p.x[left : left + COLUMNS].T, alpha=-2)
        first, end = max(start, left), min(start + len(x), left + block.shape[1])
        if first < end:  # a point is not its own neighbour
            own = torch.arange(first, end)
            block[own - start, own - left] = torch.inf
        v, i = _smallest(block, min(keep, block.shape[1]))
        values.append(v)
        indices.append(i + left)
    least, order = torch.cat(values, 1).topk(keep, 1, largest=False)
    chosen = torch.cat(indices, 1).gather(1, order)
    squares = (least + p.squares[start : start + ROWS, None]).double().clamp(min=0)
    return _settled(p, start, squares, chosen, ranks)


def _settled(p: Points, start: int, squares: Tensor, chosen: Tensor, ranks: Sequence[int]) -> Neighbours:
    """Some distances made exact: all candidates that rounding could have put there are computed again."""
    rows = torch.arange(start, start + len(squares))
    slack = 2 * (p.slack[rows, None] + p.slack[chosen]).double().amax(1, keepdim=True)
    near = torch.zeros_like(squares, dtype=torch.bool)
    for k in ranks:
        near |= (squares - squares[:, k - 1 : k]).abs() <= slack
    i, j = near.nonzero(as_tuple=True)
    squares[i, j] = p.between(rows[i], p, chosen[i, j])
    doubtful = near[:, -1] if squares.shape[1] < len(p) - 1 else torch.zeros(0)
    for row in doubtful.nonzero().flatten().tolist():
        # The candidates may go on beyond those kept (repeated images do that): look at the whole row.
        every = torch.arange(len(p))
        exact = p.between(rows[row].expand(len(p)), p, every)
        exact[rows[row]] = torch.inf
        squares[row], chosen[row] = exact.topk(squares.shape[1], largest=False)
    squares, order = squares.sort(dim=1, stable=True)
    return Neighbours(squares, chosen.gather(1, order))


def _smallest(block: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k smallest of each row: they lie in the k groups with the smallest minima."""
    rows, columns = block.shape
    if columns % _GROUP or columns // _GROUP < 2 * k:
        smallest = block.topk(k, 1, largest=False)
        return smallest.values, smallest.indices
    groups = block.view(rows, columns // _GROUP, _GROUP)
    best = groups.amin(2).topk(k, 1, largest=False).indices
    members = (best[:, :, None] * _GROUP + torch.arange(_GROUP)).flatten(1)
    values, order = block.gather(1, members).topk(k, 1, largest=False)
    return values, members.gather(1, order)


def within(p: Points, balls: Points, radii: Tensor, reach: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Pairs (point, ball, squared distance) no farther apart than `reach`, block by block.

    `radii` and `reach` are squared and one per ball, reach >= radii; every pair that rounding could have
    put on the wrong side of its radius comes with its float64 distance.
    """
    reach32 = (reach * (1 + 4 * _UNIT)).float()
    for start in range(0, len(p), ROWS):
        x = p.x[start : start + ROWS]
        bound = p.slack[start : start + ROWS] - p.squares[start : start + ROWS]
        for left in range(0, len(balls), COLUMNS):
            part = slice(left, left + COLUMNS)
            offset = balls.squares[part] - reach32[part] - balls.slack[part]
            block = torch.addmm(offset, x, balls.x[part].T, alpha=-2)
            i, j = (block <= bound[:, None]).nonzero(as_tuple=True)
            if not len(i):
                continue
            squares = (block[i, j] - offset[j] + balls.squares[part][j] + p.squares[start + i]).double()
            rows, columns = start + i, left + j
            doubt = p.slack[rows].double() + balls.slack[columns].double() + 4 * _UNIT * radii[columns]
            unsure = (squares - radii[columns]).abs() <= 2 * doubt
            squares[unsure] = p.between(rows[unsure], balls, columns[unsure])
            keep = squares <= reach[columns]
            yield rows[keep], columns[keep], squares[keep]
