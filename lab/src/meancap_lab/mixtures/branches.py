"""What samples of a condition look like at the end: how many reach each member, how wide, how far off.

label      the member with the largest posterior at t = 1 under the conditional mixture (MAP)
occupancy  share of the samples with each label; w_k its target, the conditional weights
ratio      trace of the unbiased covariance within a label, over the trace of S_k; along mu_k, and across it
tv         half of the sum of |occupancy - w_k|
error      distance between the mean of all samples and E[data | A], before any label
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .condition import Condition

_CHUNK = 65536


class Branches(NamedTuple):
    """One entry per member, in the order of `condition.members`; float64."""

    occupancy: Tensor
    variance_ratio: Tensor  # nan for a label with fewer than two samples
    radial_ratio: Tensor  # the same for the part along mu_k; nan if mu_k = 0
    tangential_ratio: Tensor  # and for the mean of the other directions
    tv: float
    mean_error: float


def labels(condition: Condition, x: Tensor) -> Tensor:
    """The member that each sample belongs to, as a position in `condition.members`, (n,)."""
    law = condition.conditional
    parts = (law.components(part.to(law.means), 1.0).log_joint.argmax(-1) for part in torch.split(x, _CHUNK))
    return torch.cat(list(parts))


def branches(condition: Condition, x: Tensor) -> Branches:
    """Statistics of samples x (n, d), in float64 whatever the precision of x; memory is that of one chunk."""
    law = condition.conditional
    means, k = law.means.double(), len(law.means)
    count, first = means.new_zeros(k), torch.zeros_like(means)
    second = means.new_zeros(k, means.shape[1], means.shape[1])
    for part in torch.split(x, _CHUNK):
        label = labels(condition, part)
        # Offsets from mu_k are of the size of the spread, so that the squares do not cancel.
        offset = part.double() - means[label]
        count += torch.bincount(label, minlength=k)
        first.index_add_(0, label, offset)
        second.index_add_(0, label, offset[:, :, None] * offset[:, None, :])
    shift = first / count[:, None]
    covariance = (second - count[:, None, None] * shift[:, :, None] * shift[:, None, :]) / (count - 1)[
        :, None, None
    ]
    covariance[count < 2] = torch.nan
    widths, axis = law.variances.double(), means / means.norm(dim=1, keepdim=True)
    turned = axis if law.axes is None else torch.einsum("kde,kd->ke", law.axes.double(), axis)
    trace, along = (
        covariance.diagonal(dim1=1, dim2=2).sum(1),
        torch.einsum("ki,kij,kj->k", axis, covariance, axis),
    )
    total, along_target = widths.sum(1), (widths * turned**2).sum(1)
    occupancy = count / count.sum()
    mean = (first + count[:, None] * means).sum(0) / count.sum()
    return Branches(
        occupancy,
        trace / total,
        along / along_target,
        (trace - along) / (total - along_target),
        0.5 * float((occupancy - law.weights.double()).abs().sum()),
        float((mean - law.weights.double() @ means).norm()),
    )
