"""One guided step under the posterior-mean cap, as a kernel of the Hub."""

from __future__ import annotations

from torch import Tensor

from .operation import cuda, reference
from .operation.fraction import margin_of
from .operation.request import Request

__all__ = ["capped_step"]


def capped_step(
    x: Tensor,
    out_c: Tensor,
    out_u: Tensor,
    *,
    a: float,
    k: float,
    scale: float,
    gamma: float,
    ball: bool = True,
) -> Tensor:
    """out_c + s (scale - 1) (out_c - out_u), with the largest s in [0, 1] that the cap leaves a sample.

    x       state; out_c, out_u are what the network said with and without the condition
    a, k    numbers that state the posterior mean, m = a x + k out; a = 1, k = -sigma for a flow to noise
    gamma   |m| <= gamma |m_c|; with ball=False |m - m_c| <= (gamma - 1) |m_c|
    """
    numbers = (float(a), float(k), float(scale) - 1.0, float(gamma), 0.0)
    request = Request(x, out_c, out_u, numbers, ball, margin_of(out_c.dtype), dtype=out_c.dtype)
    fast = x.is_cuda and cuda.ready(x.device.index)
    result: Tensor = (cuda if fast else reference).run(request)[0]
    return result
