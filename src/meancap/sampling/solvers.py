"""One step of a solver from posterior means: x at t, to x at t_next.

    mean(x, t)  the guided posterior mean at one evaluation
    a           (t_next - t) / (1 - t), the share of the way from x to m that Euler goes

Every step here is linear in x and in the means it evaluates, so `weights` can read its coefficients off.
Nothing is evaluated at t = 1, where a mean does not determine a velocity: the last step uses a lower order.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Mean = Callable[[Tensor, float], Tensor]
StepMethod = Callable[[Mean, Tensor, float, float], Tensor]


def euler(mean: Mean, x: Tensor, t: float, t_next: float) -> Tensor:
    """x + (t_next - t) v, which is a blend of x and m; it is m exactly if t_next = 1."""
    m = mean(x, t)
    return m if t_next == 1 else torch.lerp(x, m, (t_next - t) / (1 - t))


def heun(mean: Mean, x: Tensor, t: float, t_next: float) -> Tensor:
    """The trapezoid rule; Euler where the step ends at 1."""
    if t_next == 1:
        return euler(mean, x, t, t_next)
    v = _velocity(mean, x, t)
    return x + (t_next - t) / 2 * (v + _velocity(mean, x + (t_next - t) * v, t_next))


def midpoint(mean: Mean, x: Tensor, t: float, t_next: float) -> Tensor:
    """Euler to the middle, then a full step with the velocity found there."""
    half = (t + t_next) / 2
    return x + (t_next - t) * _velocity(mean, euler(mean, x, t, half), half)


def rk4(mean: Mean, x: Tensor, t: float, t_next: float) -> Tensor:
    """The classical fourth-order step; midpoint where the step ends at 1."""
    if t_next == 1:
        return midpoint(mean, x, t, t_next)
    h, half = t_next - t, (t + t_next) / 2
    v1 = _velocity(mean, x, t)
    v2 = _velocity(mean, x + h / 2 * v1, half)
    v3 = _velocity(mean, x + h / 2 * v2, half)
    v4 = _velocity(mean, x + h * v3, t_next)
    return x + h / 6 * (v1 + 2 * v2 + 2 * v3 + v4)


def weights(step: StepMethod, t: float, t_next: float) -> tuple[float, ...]:
    """Coefficients w with x_next = w[0] x + w[1] m_1 + w[2] m_2 + ...; a convex step has none below 0."""
    basis = torch.eye(8, dtype=torch.float64)
    seen = iter(range(1, 8))
    used = [0]

    def mean(x: Tensor, t: float) -> Tensor:
        used.append(next(seen))
        return basis[used[-1]]

    coefficients = step(mean, basis[0], t, t_next)
    return tuple(coefficients[: len(used)].tolist())


def _velocity(mean: Mean, x: Tensor, t: float) -> Tensor:
    return (mean(x, t) - x) / (1 - t)
