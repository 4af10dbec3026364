"""The guided mean of many samples at once in plain PyTorch; samples are columns, x (d, n).

    logits   gain @ x + bias, members first, so that A and B are contiguous rows
    sums     one matrix product gives the weight of A and of B and both sums of means

Each group is taken from its own maximum, so neither P_A nor P_B is ever 0/0. Exponents are floored well
above the smallest normal number: smaller terms are lost in the sums, and denormal numbers are slow. Early
in the flow no logit can be large, for Euler steps keep |x| below a bound that is known beforehand; then the
maxima are not needed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from ..operation import margin_of
from ..sampling import StepMethod, euler
from .plan import Plan, Stage

_FLOOR = {torch.float32: -100.0, torch.float64: -900.0}  # as powers of 2
_TINY = 1e-30


def near(d: int) -> float:
    """The largest |x| to start from: Gaussian noise is longer once in 10^12 samples."""
    return math.sqrt(d) + 7


class Coefficients(NamedTuple):
    """A stage as tensors in the working precision."""

    stage: Stage
    gain: Tensor
    bias: Tensor  # (K, 1)
    summing: Tensor  # (2 + 2 d, K)
    growth: float  # logits and the logarithms of their sums stay within growth |x| + offset
    offset: float


class Columns:
    """Buffers for a block of samples and the coefficients of every time that was asked for."""

    def __init__(self, plan: Plan, like: Tensor) -> None:
        self.plan, self.like = plan, like
        self.k, self.d = plan.means.shape
        self.radius = float(plan.means.norm(dim=1).max())
        self.stages: dict[float, Coefficients] = {}
        self.floor = _FLOOR[like.dtype]
        self.shrink = 1 - margin_of(like.dtype)
        self._buffers(0)

    def flow(self, x: Tensor, times: Sequence[float], step: StepMethod) -> Tensor:
        """The end of the flow through `times` from x (d, n), which is overwritten; |x| <= near(d)."""
        if x.shape[1] != self.room.shape[0]:
            self._buffers(x.shape[1])
        bound = near(self.d)
        for t, s in pairwise(times):
            if step is not euler:
                x = step(lambda x, t: self._mean(x, t, math.inf).clone(), x, t, s)
            elif s == 1:
                x.copy_(self._mean(x, t, bound))
            else:  # the library's Euler step in place, which keeps one block within the cache
                way = (s - t) / (1 - t)
                x.lerp_(self._mean(x, t, bound), way)
                bound = (1 - way) * bound + way * self._longest(t, bound)
        return x

    def _mean(self, x: Tensor, t: float, bound: float) -> Tensor:
        """m_c + g at (x, t), |x| <= bound, in a buffer that the next call overwrites."""
        stage, gain, bias, summing, growth, offset = self._stage(t)
        if stage.nominal == 0:
            return self._conditional(x, stage, gain, bias, summing)
        torch.addmm(bias, gain, x, out=self.logits)
        if representable := growth * bound + offset <= -self.floor:
            torch.mm(summing, self.logits.exp2_(), out=self.sums)
        else:
            self.logits_a.sub_(torch.amax(self.logits_a, 0, out=self.top_a))
            self.logits_b.sub_(torch.amax(self.logits_b, 0, out=self.top_b))
            torch.mm(summing, self.logits.clamp_(min=self.floor).exp2_(), out=self.sums)
        m_c, u = self.m_c.div_(self.in_a), self.u.div_(self.in_b)
        torch.sub(m_c, u, out=u)
        m_c.add_(x, alpha=stage.slope)
        odds = self.in_b
        if not representable:
            odds = self.top_b.sub_(self.top_a).clamp_(self.floor, -self.floor).exp2_().mul_(self.in_b)
        share = odds.div_(self.in_a.add_(odds)).mul_(abs(stage.nominal) / self.shrink)
        if stage.ball is not None or stage.displacement is not None:
            self._cap(stage, share)
        return m_c.addcmul_(u, share, value=math.copysign(self.shrink, stage.nominal))

    def _cap(self, stage: Stage, share: Tensor) -> None:
        """Lowers `share` of u to what the caps leave."""
        torch.mul(self.vectors, self.vectors, out=self.squares)
        q, per_length = _total(self.m_c_squares), _total(self.u_squares).add_(_TINY).rsqrt_()
        if stage.displacement is not None:
            torch.sqrt(q, out=self.room).mul_(per_length).mul_(stage.displacement)
            torch.minimum(share, self.room, out=share)
        if stage.ball is not None:
            w = _total(torch.mul(self.m_c, self.u, out=self.products)).mul_(per_length)
            # Where w > 0 the difference cancels by a unit of |m_c|: no more than adding g rounds off.
            torch.addcmul(q.mul_(stage.ball), w, w, out=self.room).sqrt_()
            self.room.sub_(w, alpha=math.copysign(1.0, stage.nominal)).mul_(per_length)
            torch.minimum(share, self.room, out=share)

    def _conditional(self, x: Tensor, stage: Stage, gain: Tensor, bias: Tensor, summing: Tensor) -> Tensor:
        n = self.plan.inside
        torch.addmm(bias[:n], gain[:n], x, out=self.logits_a)
        self.logits_a.sub_(torch.amax(self.logits_a, 0, out=self.top_a)).clamp_(min=self.floor).exp2_()
        torch.mm(summing[:, :n], self.logits_a, out=self.sums)
        return self.m_c.div_(self.in_a).add_(x, alpha=stage.slope)

    def _longest(self, t: float, bound: float) -> float:
        """A bound on |m_c + g| where |x| <= bound."""
        stage = self._stage(t).stage
        m_c = stage.slope * bound + stage.pull * self.radius
        longest = m_c + abs(stage.nominal) * 2 * stage.pull * self.radius
        if stage.ball is not None:
            longest = min(longest, math.sqrt(1 + stage.ball) * m_c)
        if stage.displacement is not None:
            longest = min(longest, (1 + stage.displacement) * m_c)
        return longest

    def _stage(self, t: float) -> Coefficients:
        if t not in self.stages:
            stage, n, d = self.plan.stage(t), self.plan.inside, self.d
            summing = torch.zeros(2 + 2 * d, self.k, dtype=torch.float64)
            summing[0, :n] = summing[1, n:] = 1
            summing[2 : 2 + d, :n] = stage.pull * self.plan.means[:n].T
            summing[2 + d :, n:] = stage.pull * self.plan.means[n:].T
            gain, bias, summing = (v.to(self.like) for v in (stage.gain, stage.bias[:, None], summing))
            headroom = math.log2(1 + self.k * self.radius)  # the sums grow beyond their largest term
            growth, offset = float(stage.gain.norm(dim=1).max()), float(stage.bias.abs().max()) + headroom
            self.stages[t] = Coefficients(stage, gain, bias, summing, growth, offset)
        return self.stages[t]

    def _buffers(self, size: int) -> None:
        """Scratch for `size` samples and views into it; making those at every step would cost a tenth."""
        n, d, new = self.plan.inside, self.d, self.like.new_empty
        self.logits = new(self.k, size)
        self.logits_a, self.logits_b = self.logits[:n], self.logits[n:]
        self.top_a, self.top_b, self.room = new(3, size)
        self.sums = new(2 + 2 * d, size)
        self.in_a, self.in_b, self.vectors = self.sums[0], self.sums[1], self.sums[2:]
        self.m_c, self.u = self.vectors[:d], self.vectors[d:]
        self.squares, self.products = new(2 * d, size), new(d, size)
        self.m_c_squares, self.u_squares = self.squares[:d], self.squares[d:]


def _total(rows: Tensor) -> Tensor:
    """The sum of the rows, kept in the first of them; for two rows an addition is faster than a reduction."""
    return rows[0].add_(rows[1]) if len(rows) == 2 else rows[0].copy_(rows.sum(0))
