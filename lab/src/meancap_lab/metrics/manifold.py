"""How two sets of features cover each other, by balls that reach each point's k-th neighbour.

    precision   share of generated images inside a ball of a real one
    recall      share of real images inside a ball of a generated one
    density     balls of real images round a generated one, over k, on average   (not bounded by 1)
    coverage    share of real balls with a generated image inside

Improved precision and recall (Kynkaanniemi et al. 2019) have k = 3 and closed balls, as ADM's evaluator
counts them; density and coverage (Naeem et al. 2020) have k = 5.

Distances come from float64 matrix products of centred features, one block at a time:

    |x - y|^2 = |x|^2 + |y|^2 - 2 <x, y>

A pair whose distance equals the radius up to the rounding of that product is inside, so balls are closed
whatever the size of the blocks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from .extractor import need_features
from .score import Estimate, mean_estimate

_GROUPS = 50
_SPARE = 7  # neighbours kept beyond the k-th, to know the k-th without a group of images
ROWS, COLUMNS = 1024, 2048  # of a block
_EPS = torch.finfo(torch.float64).eps


class PrecisionRecall(NamedTuple):
    """Shares of generated images near real ones, and of real ones near generated ones."""

    precision: float
    recall: float


def precision_recall(real: Tensor, generated: Tensor, k: int = 3) -> PrecisionRecall:
    """Improved precision and recall of (n, d) features; the two sets may differ in size."""
    return PrecisionRecall(recall_at(generated, real, k), recall_at(real, generated, k))


def recall_at(real: Tensor, generated: Tensor, k: int = 3) -> float:
    """The recall alone; with k = 3 and Clean-FID features it is the paper's Recall@3."""
    return insiders(real, generated, k).double().mean().item()


def insiders(queries: Tensor, support: Tensor, k: int = 3) -> Tensor:
    """Which queries lie in a closed ball of the support, each ball reaching its k-th other support point."""
    s, q = _centred(support, queries)
    return _inside(q, s, _nearest(s, k)[0][:, -1])


def ball_radii(features: Tensor, ranks: Sequence[int] = (3, 5)) -> dict[int, Tensor]:
    """Squared distances to the k-th other point, for each k: the balls of a set, to be used again."""
    squares, _ = _nearest(_centred(features)[0], max(ranks))
    return {k: squares[:, k - 1] for k in ranks}


def manifold_estimates(
    real: Tensor, generated: Tensor, radii: dict[int, Tensor] | None = None, k: int = 3, k_density: int = 5
) -> list[Estimate]:
    """All four with their errors; `radii` are the real images' `ball_radii`, if they are at hand.

    Recall and coverage get one part per group of generated images left out: image i belongs to group i mod
    50, so that groups agree between runs of the same seeds.
    """
    radii = ball_radii(real, (k, k_density)) if radii is None else radii
    r, g = _centred(real, generated)
    group = _groups_of(len(generated))
    counts = torch.zeros(len(generated), dtype=torch.long)
    hits = torch.zeros(len(real), int(group.max()) + 1, dtype=torch.long)  # of each group in each ball
    for i, j, _ in _pairs_within(g, r, radii[k_density]):
        counts.index_add_(0, i, torch.ones_like(i))
        hits.index_put_((j, group[i]), torch.ones_like(i), accumulate=True)
    every = hits.sum(1, keepdim=True)
    return [
        mean_estimate("precision", _inside(g, r, radii[k])),
        recall_estimate(real, generated, k),
        mean_estimate("density", counts.double() / k_density),
        _left_out("coverage", every[:, 0] > 0, every - hits > 0, len(generated)),
    ]


def recall_estimate(real: Tensor, generated: Tensor, k: int = 3, name: str = "recall") -> Estimate:
    """Recall with one part per group of generated images."""
    r, g = _centred(real, generated)
    group = _groups_of(len(generated))
    squares, indices = _nearest(g, k, min(k + _SPARE, len(generated) - 1))
    radii, without = squares[:, k - 1], _radii_without(squares, indices, group, k)
    covered = torch.zeros(len(real), dtype=torch.bool)
    still = torch.zeros(len(real), without.shape[1], dtype=torch.bool)
    for i, j, apart in _pairs_within(r, g, torch.maximum(radii, without.amax(1))):
        covered[i[apart <= radii[j]]] = True
        inside = apart[:, None] <= without[j]
        inside[torch.arange(len(j)), group[j]] = False  # a ball goes with its image
        row, left_out = inside.nonzero(as_tuple=True)
        still[i[row], left_out] = True
    return _left_out(name, covered, still, len(generated))


def _groups_of(n: int) -> Tensor:
    """The group that each of n images is left out with, (n,)."""
    return torch.arange(n) % min(_GROUPS, n)


def _radii_without(squares: Tensor, indices: Tensor, group: Tensor, k: int) -> Tensor:
    """Squared radius of each point's ball when each group in turn is left out, (n, groups)."""
    columns = []
    for left_out in range(int(group.max()) + 1):
        stays = (group[indices] != left_out).cumsum(1)
        # If fewer than k of the neighbours stay, the last one is a lower bound; this does not happen at
        # random.
        place = (stays < k).sum(1).clamp(max=squares.shape[1] - 1)
        columns.append(squares.gather(1, place[:, None]))
    return torch.cat(columns, 1)


def _left_out(name: str, full: Tensor, without: Tensor, n: int) -> Estimate:
    """From the share with all groups and with each group left out: jackknife pseudo-values."""
    value, count = full.double().mean(), without.shape[1]
    if count < 2:
        return Estimate(name, value.item(), n)
    parts = count * value - (count - 1) * without.double().mean(0)
    return Estimate(name, value.item(), n, parts)


class _Points(NamedTuple):
    x: Tensor  # (n, d) float64, less the mean of the first set
    squares: Tensor  # |x|^2


def _centred(*sets: Tensor) -> list[_Points]:
    need_features(*sets)
    centre = sets[0].detach().cpu().double().mean(0)
    points = [s.detach().cpu().double().sub_(centre) for s in sets]
    squares = [x.norm(dim=1).square() for x in points]
    if not all(torch.isfinite(one).all() for one in squares):
        raise ValueError("features are too large: their distances leave the range of float64")
    return [_Points(*pair) for pair in zip(points, squares, strict=True)]


def _nearest(p: _Points, k: int, keep: int | None = None) -> tuple[Tensor, Tensor]:
    """Squared distances and indices of the `keep` (at least k) nearest other points, nearest first."""
    n, keep = len(p.x), keep or k
    if not 1 <= k <= keep < n:
        raise ValueError(f"{k} neighbours among {n} points: at least {k + 1} points are needed")
    squares, indices = [], []
    for start in range(0, n, ROWS):
        values, places = [], []
        for left in range(0, n, COLUMNS):
            block = _squared_distances(p, start, p, left)
            own = torch.arange(n)[start : start + ROWS, None] == torch.arange(n)[left : left + COLUMNS]
            block.masked_fill_(own, torch.inf)  # a point is not its own neighbour
            least = block.topk(min(keep, block.shape[1]), 1, largest=False)
            values.append(least.values)
            places.append(least.indices + left)
        least = torch.cat(values, 1).topk(keep, 1, largest=False)
        squares.append(least.values)
        indices.append(torch.cat(places, 1).gather(1, least.indices))
    return torch.cat(squares), torch.cat(indices)


def _inside(q: _Points, s: _Points, radii: Tensor) -> Tensor:
    inside = torch.zeros(len(q.x), dtype=torch.bool)
    for i, _, _ in _pairs_within(q, s, radii):
        inside[i] = True
    return inside


def _pairs_within(p: _Points, balls: _Points, radii: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Point, ball and least possible squared distance of the pairs inside, with squared radii, by blocks."""
    for start in range(0, len(p.x), ROWS):
        for left in range(0, len(balls.x), COLUMNS):
            block = _squared_distances(p, start, balls, left, slack=4 * p.x.shape[1] * _EPS)
            i, j = (block <= radii[left : left + COLUMNS]).nonzero(as_tuple=True)
            yield start + i, left + j, block[i, j]


def _squared_distances(p: _Points, start: int, q: _Points, left: int, slack: float = 0.0) -> Tensor:
    """Of one block of pairs, less the rounding error that `slack` allows for."""
    rows, columns = slice(start, start + ROWS), slice(left, left + COLUMNS)
    squares = p.squares[rows, None] + q.squares[columns]
    return squares.mul_(1 - slack).addmm_(p.x[rows], q.x[columns].T, alpha=-2)
