"""What a flow does to volume, and with it the exact likelihood of guided samples.

    J       gradient of the flow map,  dJ/dt = H J,  J = I at the start, H the gradient of the velocity
    log|J|  its log determinant,  d/dt log|det J| = div v
    q_1     law of the samples,  log q_1(x_1) = log p_0(x_0) - log|det J|,  p_0 standard normal

All integrals are classical Runge-Kutta steps over the times given, forwards or backwards: of fourth order,
but of second where a cap sets in or releases, for there the field has a kink.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Protocol

import torch
from torch import Tensor

from ..components import trace


class Field(Protocol):
    """A velocity and its gradient at (x, t): `Mixture`, `Guided`, or anything else that can state both."""

    def linearise(self, x: Tensor, t: float, /) -> tuple[Tensor, Tensor]: ...


State = tuple[Tensor, Tensor]


def graded_times(n: int, std: float) -> Tensor:
    """2 n steps from 0 to 1: n times equal in t joined with n equal in the angle atan(t std / (1 - t))."""
    angle = torch.linspace(0, math.pi / 2, n + 1, dtype=torch.float64)[1:-1]
    turning = angle.sin() / (std * angle.cos() + angle.sin())
    shifted = (torch.arange(n, dtype=torch.float64) + 0.5) / n
    ends = torch.tensor([0.0, 1.0], dtype=torch.float64)
    return torch.cat([ends, turning, shifted]).sort().values


def transport(field: Field, x: Tensor, times: Tensor) -> State:
    """End of the flow through `times` from x (..., d), and log|det J| of the map, (...)."""

    def rate(t: float, x: Tensor, _: Tensor) -> State:
        v, gradient = field.linearise(x, t)
        return v, trace(gradient)

    return _runge_kutta(rate, (x, torch.zeros_like(x[..., 0])), times)


def transport_jacobian(field: Field, x: Tensor, times: Tensor) -> State:
    """End of the flow through `times` from x (..., d), and the gradient J of the map, (..., d, d)."""

    def rate(t: float, x: Tensor, j: Tensor) -> State:
        v, gradient = field.linearise(x, t)
        return v, gradient @ j

    eye = torch.eye(x.shape[-1], dtype=x.dtype, device=x.device).expand(*x.shape, -1)
    return _runge_kutta(rate, (x, eye), times)


def pushforward(field: Field, noise: Tensor, times: Tensor) -> State:
    """Samples x_1 from noise x_0, and log q_1(x_1) of the law they have, (...); times from 0 to 1."""
    x, log_volume = transport(field, noise, times)
    return x, _log_normal(noise) - log_volume


def log_likelihood(field: Field, x: Tensor, times: Tensor) -> Tensor:
    """log q_1(x) of any point x, by running the flow back to the noise it comes from; times from 0 to 1."""
    noise, log_volume = transport(field, x, times.flip(0))
    return _log_normal(noise) + log_volume


def _log_normal(x: Tensor) -> Tensor:
    return -0.5 * ((x**2).sum(-1) + x.shape[-1] * math.log(2 * math.pi))


def _runge_kutta(rate: Callable[[float, Tensor, Tensor], State], state: State, times: Tensor) -> State:
    x, y = state
    grid = times.tolist()
    for t, s in pairwise(grid):
        h, middle = s - t, t + (s - t) / 2
        k1 = rate(t, x, y)
        k2 = rate(middle, x + h / 2 * k1[0], y + h / 2 * k1[1])
        k3 = rate(middle, x + h / 2 * k2[0], y + h / 2 * k2[1])
        k4 = rate(s, x + h * k3[0], y + h * k3[1])
        x, y = (
            v + h / 6 * (a + 2 * b + 2 * c + d) for v, a, b, c, d in zip((x, y), k1, k2, k3, k4, strict=True)
        )
    return x, y
