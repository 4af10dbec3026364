"""The cap as the paper's appendix prints it, operation by operation: for comparison with `Cap`.

    a = |d|^2, b = <m_c, d>, q = |m_c|^2, sums of squares in the precision of the prediction
    1  keep the nominal coefficient where |m_c + c d| <= gamma |m_c|
    2  elsewhere 0 where a <= tiny, the paper's epsilon_a
    3  elsewhere the smaller of c and the root, D = max(0, b^2 + (gamma^2 - 1) a q):
           (gamma^2 - 1) q / (b + sqrt D)   for b >= 0, and 0 where b + sqrt D is 0
           (-b + sqrt D) / a                for b < 0

`Cap` solves the same inequality from lengths instead of squares, has no epsilon and gives up four units of
the last place to rounding; docs/theory.md says what that changes.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ...prediction import Prediction
from ...schedules import finite
from ...tensors import Number, per_sample, vector
from ..rule import Displacement, Factor


@dataclass(frozen=True)
class LiteralCap(Factor):
    """The paper's algorithm for the ball, with its epsilon; use `Cap` unless you compare."""

    gamma: float
    tiny: float = 1e-8

    caps = True

    def __post_init__(self) -> None:
        finite(self, "gamma", "tiny")
        if not (self.gamma >= 1 and self.tiny >= 0):
            raise ValueError(f"LiteralCap needs gamma >= 1 and tiny >= 0; got {self.gamma} and {self.tiny}")

    def factor(self, g: Displacement, p: Prediction) -> Number:
        m, d = g.p.m_c, g.toward
        c = vector(g.coefficient, p.shown).to(m.dtype)
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
