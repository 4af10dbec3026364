"""The density ratio of a model with a leak, exactly: what density-ratio feedback follows.

    R       p(x | label) / p(x) as the model has them, at (x, t)
    e       share of the label's data from outside A (`Problem.leak`);  w_A = p(A),  w_B = 1 - w_A
    pi      1 - e / w_B, for which  (1 - e) p(x | A) + e p(x | B)  =  pi p(x | A) + (1 - pi) p(x)

With P_A = p(A | x) and P_B = 1 - P_A,  R = (1 - e)/w_A P_A + e/w_B P_B,  which lies between 1 - pi and
1 - pi + pi/w_A, and lambda* = R / (R - (1 - pi)) leads to the true conditional mean at every state.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..problems import Model


def trusted_share(model: Model) -> float:
    """pi, the share of the label's data that is drawn from A and not from everything."""
    return 1 - model.leak / (1 - math.exp(float(model.condition.log_prior)))


def log_ratio(model: Model, x: Tensor, t: float) -> Tensor:
    """log R at each state, (n,); of the leaking label, without under-conditioning."""
    odds = model.sides(x, t).log_odds[:, 0]
    prior = float(model.condition.log_prior)
    inside = math.log1p(-model.leak) - prior - _softplus(-odds)
    if not model.leak:
        return inside
    outside = math.log(model.leak) - math.log1p(-math.exp(prior)) - _softplus(odds)
    return torch.logaddexp(inside, outside)


def _softplus(v: Tensor) -> Tensor:
    return torch.logaddexp(torch.zeros_like(v), v)
