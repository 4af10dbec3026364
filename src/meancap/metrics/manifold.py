"""How two sets of features cover each other, by balls that reach each point's k-th neighbour.

    precision   share of generated images inside a ball of a real one
    recall      share of real images inside a ball of a generated one
    density     balls of real images round a generated one, over k, on average   (not bounded by 1)
    coverage    share of real balls with a generated image inside

Improved precision and recall (Kynkaanniemi et al. 2019) have k = 3 and closed balls, as ADM's evaluator
counts them; density and coverage (Naeem et al. 2020) have k = 5.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from .neighbours import Neighbours, Points, nearest, points, within
from .score import Estimate, mean_estimate

GROUPS = 50
_SPARE = 7  # neighbours kept beyond the k-th: for close calls, and to know the k-th without a group of images


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
    counts, hits = _ball_counts(r, g, outer, groups_of(len(g)))
    every = hits.sum(1, keepdim=True)
    return [
        mean_estimate("precision", _inside(g, r, inner)),
        recall_estimate(r, g, k),
        mean_estimate("density", counts.double() / k_density),
        _left_out("coverage", every[:, 0] > 0, every - hits > 0, len(g)),
    ]


def recall_estimate(r: Points, g: Points, k: int = 3, name: str = "recall") -> Estimate:
    """Recall with one part per group of generated images."""
    group = groups_of(len(g))
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


def groups_of(n: int) -> Tensor:
    """The group that each of n images is left out with, (n,)."""
    return torch.arange(n) % min(GROUPS, n)


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


def _radii_without(neighbours: Neighbours, group: Tensor, k: int) -> Tensor:
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
