"""A pilot in a host: unguided runs that keep only what a calibration needs.

    sums     of each channel of m_c (axis 1), for each evaluation and sample
    squares  |m_c|^2
    first    the channel means of m_u at the first evaluation, whose average is the anchor r

With an anchor per channel, |m_c - r|^2 = |m_c|^2 - 2 sum_k r_k sums_k + n sum_k r_k^2: the means themselves
need not be kept until r is known.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ..path import Affine
from ..prediction import Prediction
from ..rules import CFG
from ..rules.caps import Calibration, anchor_of, from_pilot
from .session import Session


class Pilot(Session):
    """A session that returns the conditional output, so that the calibration does not depend on guidance."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self._sums: list[list[Tensor]] = []  # by run, by evaluation: (samples, channels)
        self._squares: list[list[Tensor]] = []
        self._first: list[Tensor] = []
        self._size = 0
        super().__init__(CFG(1.0))

    def begin(self) -> None:
        """A new run; runs in which nothing was seen do not count."""
        super().begin()
        if not self._sums or self._sums[-1]:
            self._sums.append([])
            self._squares.append([])

    def guide(
        self,
        how: Affine,
        x: Tensor,
        c: Tensor,
        u: Tensor,
        nominal: Tensor,
        *,
        first: bool = True,
        others: Mapping[str, Tensor] | None = None,
    ) -> Tensor:
        p = Prediction.from_affine(x, c, u, how)
        m_c, m_u = (v.double().flatten(2) if v.dim() > 2 else v.double()[..., None] for v in (p.m_c, p.m_u))
        if not self._sums[-1]:
            self._first.append(m_u.mean(2).cpu())
        if len(self._sums) == 1:
            self.times.append(float(torch.as_tensor(how.t).flatten()[0]))
        self._size = m_c.shape[2]
        self._sums[-1].append(m_c.sum(2).cpu())
        self._squares[-1].append(m_c.square().sum((1, 2)).cpu())
        return c.to(nominal.dtype)

    @property
    def evaluations(self) -> int:
        """How many were seen, each of two predictions."""
        return sum(len(run) for run in self._sums)

    def calibration(self, model: str) -> Calibration:
        """The anchor per channel and the radii of all runs, which must have had the same steps."""
        runs = [run for run in self._sums if run]
        if not runs:
            raise ValueError("the pilot saw no step; call the pipeline inside it")
        if {len(run) for run in runs} != {len(self.times)}:
            raise ValueError("the runs of a pilot must have the same number of steps")
        anchor = anchor_of(torch.cat(self._first).mean(0)[:, None], "channel")
        r = anchor.tensor(self._first[0])
        columns = []
        for sums, squares in zip(runs, [run for run in self._squares if run], strict=True):
            away = [q - 2 * s @ r + self._size * r.square().sum() for s, q in zip(sums, squares, strict=True)]
            columns.append(torch.stack(away).clamp(min=0).sqrt())
        return from_pilot(anchor, self.times, torch.cat(columns, dim=1), model)
