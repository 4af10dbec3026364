"""The cap as the paper's appendix prints it, to compare `meancap.Cap` with."""

from __future__ import annotations

import torch
from torch import Tensor

from meancap import Prediction
from meancap.rules import Displacement, Factor, register
from meancap.rules.spaces import part
from meancap.tensors import Number, per_sample, vector


@register
@part("1 <= gamma", "0 <= tiny")
class LiteralCap(Factor):
    """The printed steps, operation by operation; use `Cap` unless you compare.

        a = |d|^2, b = <m_c, d>, q = |m_c|^2, sums of squares in the precision of the prediction
        1  keep the nominal coefficient if |m_c + c d| <= gamma |m_c|
        2  otherwise 0 if a <= tiny, the paper's epsilon_a; its value is that of ppposition/pmc @ b27a9640
        3  otherwise the smaller of c and the root, D = max(0, b^2 + (gamma^2 - 1) a q):
               (gamma^2 - 1) q / (b + sqrt D)   for b >= 0, and 0 if b + sqrt D is 0
               (-b + sqrt D) / a                for b < 0, also at gamma 1, where both steps apply

    See docs/theory.md for the differences from `Cap`.
    """

    gamma: float
    tiny: float = 1e-8

    caps = True
    reads_m_u = False

    def factor(self, g: Displacement, p: Prediction) -> Number:
        m, d = g.p.m_c, g.toward
        c = vector(g.coefficient, p.state).to(m.dtype)
        a, b, q = _sum(d * d), _sum(m * d), _sum(m * m)
        nominal = m + per_sample(c, m) * d
        fits = _sum(nominal * nominal).sqrt() <= self.gamma * q.sqrt()
        growth = self.gamma**2 - 1
        root = (b * b + growth * a * q).clamp(min=0).sqrt()
        outward = torch.where(b + root == 0, 0.0, growth * q / (b + root))
        cap = torch.where(b >= 0, outward, (root - b) / a)
        capped = torch.where(a <= self.tiny, 0.0, torch.minimum(c, cap))
        return torch.where(fits | (c == 0), 1.0, capped / c)


def _sum(v: Tensor) -> Tensor:
    return v.flatten(1).sum(1)
