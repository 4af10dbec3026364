"""How two sets of features cover each other, by balls that reach each point's k-th neighbour.

    precision   share of generated images inside a ball of a real one
    recall      share of real images inside a ball of a generated one
    density     balls of real images round a generated one, over k, on average   (not bounded by 1)
    coverage    share of real balls with a generated image inside

Improved precision and recall (Kynkaanniemi et al. 2019) have k = 3 and closed balls, as ADM's evaluator
counts them; density and coverage (Naeem et al. 2020) have k = 5.

_Neighbours are found in float32 blocks and decided in float64:

    |x - y|^2 = |x|^2 + |y|^2 - 2 <x, y>     one matrix product per block, after centring and scaling

The product's rounding error is bounded, so only the few pairs closer to a decision than that bound are
computed again, in float64 and from the differences. The answers are those of an exact computation, at the
speed of the matrix product, and they do not depend on the size of the blocks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from .extractor import need_features
from .score import Estimate, mean_estimate

_GROUPS = 50
_SPARE = 7  # neighbours kept beyond the k-th: for close calls, and to know the k-th without a group of images
ROWS, COLUMNS = 1024, 2048  # a block of 8 MB stays in the cache between the product and the search
_GROUP = 16
_UNIT = torch.finfo(torch.float32).eps / 2


class PrecisionRecall(NamedTuple):
    """Shares of generated images near real ones, and of real ones near generated ones."""

    precision: float
    recall: float


class DensityCoverage(NamedTuple):
    """How densely generated images lie among real ones, and how many real ones they reach."""

    density: float
    coverage: float


def precision_recall(real: Tensor, generated: Tensor, k: int = 3) -> PrecisionRecall:
    """Improved precision and recall of (n, d) features; the two sets may differ in size."""
    r, g = points(real, generated)
    precision, recall = _inside(g, r, _radii(r, k)), _inside(r, g, _radii(g, k))
    return PrecisionRecall(precision.double().mean().item(), recall.double().mean().item())


def recall_at(real: Tensor, generated: Tensor, k: int = 3) -> float:
    """The recall alone; with k = 3 and Clean-FID features it is the paper's Recall@3."""
    return insiders(real, generated, k).double().mean().item()


def insiders(queries: Tensor, support: Tensor, k: int = 3) -> Tensor:
    """Which queries lie in a closed ball of the support, each ball reaching its k-th other support point."""
    s, q = points(support, queries)
    return _inside(q, s, _radii(s, k))


def density_coverage(real: Tensor, generated: Tensor, k: int = 5) -> DensityCoverage:
    """Density and coverage of (n, d) features."""
    r, g = points(real, generated)
    counts, hits = _ball_counts(r, g, _radii(r, k))
    return DensityCoverage(counts.double().mean().item() / k, (hits > 0).double().mean().item())


def ball_radii(features: Tensor, ranks: Sequence[int] = (3, 5)) -> dict[int, Tensor]:
    """Squared distances to the k-th other point, for each k: the balls of a set, to be used again."""
    (p,) = points(features)
    neighbours = nearest(p, ranks, min(max(ranks) + _SPARE, len(p) - 1))
    return {k: neighbours.squares[:, k - 1] * p.unit**2 for k in ranks}


def manifold_estimates(
    real: Tensor, generated: Tensor, radii: dict[int, Tensor] | None = None, k: int = 3, k_density: int = 5
) -> list[Estimate]:
    """All four with their errors; `radii` are the real images' `ball_radii`, if they are at hand.

    Recall and coverage get one part per group of generated images left out: image i belongs to group i mod
    50, so that groups agree between runs of the same seeds.
    """
    radii = ball_radii(real, (k, k_density)) if radii is None else radii
    r, g = points(real, generated)
    inner, outer = (radii[rank] / r.unit**2 for rank in (k, k_density))
    counts, hits = _ball_counts(r, g, outer, _groups_of(len(g)))
    every = hits.sum(1, keepdim=True)
    return [
        mean_estimate("precision", _inside(g, r, inner)),
        recall_estimate(r, g, k),
        mean_estimate("density", counts.double() / k_density),
        _left_out("coverage", every[:, 0] > 0, every - hits > 0, len(g)),
    ]


def recall_estimate(r: Points, g: Points, k: int = 3, name: str = "recall") -> Estimate:
    """Recall with one part per group of generated images."""
    group = _groups_of(len(g))
    neighbours = nearest(g, (k,), min(k + _SPARE, len(g) - 1))
    radii = neighbours.squares[:, k - 1].contiguous()
    without = _radii_without(neighbours, group, k)
    covered = torch.zeros(len(r), dtype=torch.bool)
    still = torch.zeros(len(r), without.shape[1], dtype=torch.bool)
    for i, j, squares in within(r, g, radii, torch.maximum(radii, without.amax(1))):
        covered[i[squares <= radii[j]]] = True
        inside = squares[:, None] <= without[j]
        inside[torch.arange(len(j)), group[j]] = False  # a ball goes with its image
        row, left_out = inside.nonzero(as_tuple=True)
        still[i[row], left_out] = True
    return _left_out(name, covered, still, len(g))


def _groups_of(n: int) -> Tensor:
    """The group that each of n images is left out with, (n,)."""
    return torch.arange(n) % min(_GROUPS, n)


def _radii(p: Points, k: int) -> Tensor:
    return nearest(p, (k,), min(k + _SPARE, len(p) - 1)).squares[:, k - 1].contiguous()


def _inside(q: Points, s: Points, radii: Tensor) -> Tensor:
    inside = torch.zeros(len(q), dtype=torch.bool)
    for i, j, squares in within(q, s, radii, radii):
        inside[i[squares <= radii[j]]] = True
    return inside


def _ball_counts(r: Points, g: Points, radii: Tensor, groups: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Real balls round each generated image, and generated images (per group) in each real ball."""
    groups = torch.zeros(len(g), dtype=torch.long) if groups is None else groups
    counts = torch.zeros(len(g), dtype=torch.long)
    hits = torch.zeros(len(r), int(groups.max()) + 1, dtype=torch.long)
    for i, j, squares in within(g, r, radii, radii):
        inside = squares <= radii[j]
        i, j = i[inside], j[inside]
        counts.index_add_(0, i, torch.ones_like(i))
        hits.index_put_((j, groups[i]), torch.ones_like(i), accumulate=True)
    return counts, hits


def _radii_without(neighbours: _Neighbours, group: Tensor, k: int) -> Tensor:
    """Squared radius of each point's ball when each group in turn is left out, (n, groups)."""
    count = int(group.max()) + 1
    columns = []
    for left_out in range(count):
        stays = (group[neighbours.indices] != left_out).cumsum(1)
        # Where fewer than k stay among those kept, the last one is a lower bound; this does not happen at
        # random.
        place = (stays < k).sum(1).clamp(max=neighbours.squares.shape[1] - 1)
        columns.append(neighbours.squares.gather(1, place[:, None]))
    return torch.cat(columns, 1)


def _left_out(name: str, full: Tensor, without: Tensor, n: int) -> Estimate:
    """From the share with all groups and with each group left out: jackknife pseudo-values."""
    value, count = full.double().mean(), without.shape[1]
    if count < 2:
        return Estimate(name, value.item(), n)
    parts = count * value - (count - 1) * without.double().mean(0)
    return Estimate(name, value.item(), n, parts)


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
class _Neighbours:
    """For each point its nearest others, nearest first; squared distances in units of `Points.x`."""

    squares: Tensor  # (n, K) float64; exact in the columns that were asked for, the others to float32
    indices: Tensor  # (n, K)


def nearest(p: Points, ranks: Sequence[int], keep: int) -> _Neighbours:
    """The `keep` nearest other points of each point; distances of the given ranks (1 = nearest) are exact."""
    if not 1 <= max(ranks) <= keep < len(p):
        raise ValueError(
            f"{max(ranks)} neighbours among {len(p)} points: at least {max(ranks) + 1} points are needed"
        )
    blocks = [_nearest_block(p, start, ranks, keep) for start in range(0, len(p), ROWS)]
    return _Neighbours(torch.cat([f.squares for f in blocks]), torch.cat([f.indices for f in blocks]))


def _nearest_block(p: Points, start: int, ranks: Sequence[int], keep: int) -> _Neighbours:
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


def _settled(p: Points, start: int, squares: Tensor, chosen: Tensor, ranks: Sequence[int]) -> _Neighbours:
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
    return _Neighbours(squares, chosen.gather(1, order))


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
