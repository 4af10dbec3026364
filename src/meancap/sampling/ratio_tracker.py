"""Following log R = log p(x | condition) - log p(x) along a run, for rules that need it.

    v, s, m    velocity, score and posterior mean, of the condition (c) or without it (u); D = m_c - m_u
    w          the velocity with which a sample really moved, guidance, caps and all
    tr         trace of the gradient of D, sum_i dD_i / dx_i

**On an ODE** d log p_t(x) / dt = -div v + (w - v) . s  for each of both densities, whatever w is. With
v = (m - x) / (1 - t) and s = (t m - x) / (1 - t)^2 the difference is

    d log R / dt = -tr / (1 - t) + D . (t (1 - t) w - t (m_c + m_u) + (1 + t) x) / (1 - t)^3

The mean of its values at both ends of a step, w being the step's own, is of second order and costs nothing:
both predictions are made anyway. The trace is not known from one prediction. z . (D(x + h z) - D(x)) / h with
random signs z has it as its mean (Hutchinson); one more evaluation of the pair.

**On a memoryless step** nothing is missing. Both models have a law for the next state, N(r y + (1 - r) m,
s^2) in y = x / t (see `stochastic`), and log R grows by the log ratio of what they gave to the y' that came:

    log R += (1 - r) D . (y' - r y - (1 - r)(m_c + m_u) / 2) / s^2

Under unguided steps of the model without the condition, the mean of R stays exactly 1 for any grid.

**Between** (0 < eta < 1) by Ito's formula a share 1 - eta^2 of the trace remains:

    log R += h F(x, t; w = (x' - x) / h), left end only, with (1 - eta^2) tr in the place of tr.

The signs z come from the bits of the sample's own start, so that no result depends on the batch.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..prediction import Predict, Prediction, evaluate
from ..rules import DensityFeedback, Rule
from ..tensors import scalar_dtype
from .grids import kept_variance


def ratio_part(rule: Rule) -> DensityFeedback | None:
    """The part of a chain that needs log R, if there is one."""
    wanting = [part for part in rule.parts if isinstance(part, DensityFeedback)]
    if len(wanting) > 1:
        raise ValueError(f"a chain may have one density feedback; got {len(wanting)} in {rule}")
    return wanting[0] if wanting else None


class RatioTracker:
    """`predict` with log R beside each prediction: `first` at a step's first evaluation, `later` after it."""

    def __init__(self, predict: Predict, rule: DensityFeedback, x: Tensor, eta: float) -> None:
        self.predict, self.rule, self.eta = predict, rule, eta
        self._keys = keys(x)
        self._log_ratio = torch.zeros(len(x), dtype=scalar_dtype(x.device), device=x.device)
        self._trace = torch.zeros_like(self._log_ratio)
        self._last: Prediction | None = None
        self._index = 0

    def first(self, x: Tensor, t: float) -> Prediction:
        """The prediction at the state of a step, with log R there."""
        p = evaluate(self.predict, x, t)
        following = self._last is None or float(self._last.t) < self.rule.until
        if following:
            before = self._trace
            if self.eta < 1:
                self._trace = self._probed(p)
            if self._last is not None:
                gained = self._gained(self._last, p, before, self._trace)
                self._log_ratio = (self._log_ratio + gained).clamp(min=self.rule.lowest)
            self._last = p
        self._index += 1
        return p.beside(log_ratio=self._log_ratio)

    def later(self, x: Tensor, t: float) -> Prediction:
        """A later prediction within the step: the ratio of a step holds for all its evaluations."""
        return evaluate(self.predict, x, t, compare=False).beside(log_ratio=self._log_ratio)

    def _gained(self, last: Prediction, p: Prediction, before: Tensor, after: Tensor) -> Tensor:
        t, t_next = float(last.t), float(p.t)
        if self.eta == 1:
            return memoryless_gain(last, p)
        w = (p.x - last.x) / (t_next - t)
        left = (t_next - t) * log_ratio_rate(last, w, (1 - self.eta**2) * before)
        return (left + (t_next - t) * log_ratio_rate(p, w, after)) / 2 if self.eta == 0 else left

    def _probed(self, p: Prediction) -> Tensor:
        if self.rule.probe == "none" or float(p.t) == 0:  # at t = 0 a mean does not depend on x
            return torch.zeros_like(self._trace)
        if self._index % self.rule.every and self._index > 1:
            return self._trace
        z = signs(self._keys, self._index, p.x)
        return trace_estimate(self.predict, p, z).to(self._trace)


def log_ratio_rate(p: Prediction, w: Tensor, trace: Tensor) -> Tensor:
    """d log R / dt of samples at p that move with velocity w, (n,); t < 1."""
    t = float(p.t)
    toward = t * (1 - t) * w - t * (p.m_c + p.m_u) + (1 + t) * p.x
    return _dot(p.delta, toward) / (1 - t) ** 3 - trace / (1 - t)


def memoryless_gain(last: Prediction, p: Prediction) -> Tensor:
    """What log R gains in a memoryless step from the state of `last` to that of p, (n,)."""
    t, t_next = float(last.t), float(p.t)
    r, later = kept_variance(t, t_next), (1 - t_next) / t_next
    kept = later**2 * t / (1 - t) ** 2  # r / t, regular at t = 0
    off = p.x / t_next - kept * last.x - (1 - r) * (last.m_c + last.m_u) / 2
    return _dot(last.delta, off) / later**2


def trace_estimate(predict: Predict, p: Prediction, z: Tensor) -> Tensor:
    """z . grad D z at the state of p, (n,): the trace, on average over random signs z."""
    t, x = float(p.t), p.state
    z = z.to(x.dtype)
    h: float = torch.finfo(p.dtype).eps ** 0.4
    return _dot(predict(x + h * z, t).delta - p.delta, z) / h


def _dot(a: Tensor, b: Tensor) -> Tensor:
    return (a.flatten(1).double() * b.flatten(1).double()).sum(1)


# Multipliers of splitmix64, as signed integers; products wrap.
_STEP, _FIRST, _SECOND = -7046029254386353131, -4658895280553007687, -7723592293110705685


def keys(x: Tensor) -> Tensor:
    """One 64-bit number per sample, from the bits of its start."""
    bits = x.detach().cpu().float().flatten(1).contiguous().view(torch.int32).long()
    places = torch.arange(1, bits.shape[1] + 1)
    return _mixed(_mixed(bits + places * _STEP).sum(1)).to(x.device)


def signs(keys: Tensor, index: int, like: Tensor) -> Tensor:
    """Random signs shaped like `like`, which depend on each sample's key and on the step alone."""
    places = torch.arange(like.shape[1:].numel(), device=keys.device)
    seeds = _mixed(keys + (index + 1) * 0x632BE59B)[:, None] + places * _STEP
    return (1 - 2 * (_mixed(seeds) & 1)).to(like.dtype).reshape(like.shape)


def _mixed(v: Tensor) -> Tensor:
    v = (v ^ ((v >> 30) & (2**34 - 1))) * _FIRST
    v = (v ^ ((v >> 27) & (2**37 - 1))) * _SECOND
    return v ^ ((v >> 31) & (2**33 - 1))
