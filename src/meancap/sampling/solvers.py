"""Time grids, and one step of a solver from posterior means: x at t, to x at s.

    mean(x, t)  the guided posterior mean at one evaluation
    a           (s - t) / (1 - t), the share of the way from x to m that Euler goes

Every step here is linear in x and in the means it evaluates, so `weights` can read its coefficients off.
Nothing is evaluated at t = 1, where a mean does not determine a velocity: the last step uses a lower order.
A grid is an increasing tuple of times from noise (0) to data (1): n steps have n + 1 times and cost n
evaluations with Euler.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from numbers import Integral, Real

import torch
from torch import Tensor

from ..notation import described

Mean = Callable[[Tensor, float], Tensor]
StepMethod = Callable[[Mean, Tensor, float, float], Tensor]


def euler(mean: Mean, x: Tensor, t: float, s: float) -> Tensor:
    """x + (s - t) v, which is a blend of x and m; it lands on m exactly when s = 1."""
    m = mean(x, t)
    return m if s == 1 else torch.lerp(x, m, (s - t) / (1 - t))


def heun(mean: Mean, x: Tensor, t: float, s: float) -> Tensor:
    """The trapezoid rule; Euler where the step ends at 1."""
    if s == 1:
        return euler(mean, x, t, s)
    v = _velocity(mean, x, t)
    return x + (s - t) / 2 * (v + _velocity(mean, x + (s - t) * v, s))


def midpoint(mean: Mean, x: Tensor, t: float, s: float) -> Tensor:
    """Euler to the middle, then a full step with the velocity found there."""
    half = (t + s) / 2
    return x + (s - t) * _velocity(mean, euler(mean, x, t, half), half)


def rk4(mean: Mean, x: Tensor, t: float, s: float) -> Tensor:
    """The classical fourth-order step; midpoint where the step ends at 1."""
    if s == 1:
        return midpoint(mean, x, t, s)
    h, half = s - t, (t + s) / 2
    v1 = _velocity(mean, x, t)
    v2 = _velocity(mean, x + h / 2 * v1, half)
    v3 = _velocity(mean, x + h / 2 * v2, half)
    v4 = _velocity(mean, x + h * v3, s)
    return x + h / 6 * (v1 + 2 * v2 + 2 * v3 + v4)


def weights(step: StepMethod, t: float, s: float) -> tuple[float, ...]:
    """Coefficients w with x_next = w[0] x + w[1] m_1 + w[2] m_2 + ...; a convex step has none below 0."""
    basis = torch.eye(8, dtype=torch.float64)
    seen = iter(range(1, 8))
    used = [0]

    def mean(x: Tensor, t: float) -> Tensor:
        used.append(next(seen))
        return basis[used[-1]]

    coefficients = step(mean, basis[0], t, s)
    return tuple(coefficients[: len(used)].tolist())


def _velocity(mean: Mean, x: Tensor, t: float) -> Tensor:
    return (mean(x, t) - x) / (1 - t)


Times = tuple[float, ...]


def uniform(steps: int) -> Times:
    """`steps` equal steps from 0 to 1."""
    if isinstance(steps, bool) or not isinstance(steps, Integral) or steps < 1:
        raise ValueError(f"a grid needs a whole number of steps, at least 1; got {steps}")
    return tuple(i / int(steps) for i in range(int(steps) + 1))


def shifted(steps: int, shift: float = 3.0) -> Times:
    """Equal steps in u, with sigma = 1 - t = shift (1 - u) / (1 + (shift - 1)(1 - u)), as SD3 and Flux do."""
    if not (shift > 0 and math.isfinite(shift)):
        raise ValueError(f"shifted needs a finite shift above 0 (1 is uniform); got {shift}")
    noise = [1 - u for u in uniform(steps)]
    return tuple(1 - shift * s / (1 + (shift - 1) * s) for s in noise)


def graded(steps: int, power: float = 2.0) -> Times:
    """t = 1 - (1 - u)^power: short steps near the data for power > 1."""
    if not (power > 0 and math.isfinite(power)):
        raise ValueError(f"graded needs a finite power above 0 (1 is uniform); got {power}")
    return tuple(1 - (1 - u) ** power for u in uniform(steps))


def from_sigmas(sigmas: Sequence[float]) -> Times:
    """t = 1 - sigma, for grids that count noise downwards from at most 1, such as a flow scheduler's.

    The noise levels of EDM and k-diffusion start far above 1; `from_karras` makes their grid.
    """
    if len(sigmas) and max(sigmas) > 1:
        raise ValueError(
            f"from_sigmas takes noise shares of at most 1, t = 1 - sigma; {max(sigmas):.4g} is the noise of "
            "x = data + sigma noise, whose time is t = 1 / (1 + sigma): use from_karras(sigmas)"
        )
    return checked([1 - float(s) for s in sigmas])


def checked(times: Sequence[float]) -> Times:
    """The grid, if it is one: two times or more, in [0, 1], increasing."""
    if isinstance(times, Real):
        raise TypeError(f"times is a grid from noise to data, such as uniform({times}); got {times}")
    if isinstance(times, Tensor) and times.dim() != 1:
        raise TypeError(f"times is a grid from noise to data, such as uniform(50); got {described(times)}")
    grid = tuple(float(t) for t in times)
    if len(grid) < 2:
        raise ValueError(f"a grid needs at least two times; got {list(grid)}")
    if grid[0] < 0 or grid[-1] > 1 or any(not b > a for a, b in pairwise(grid)):
        short = ", ".join(f"{t:.6g}" for t in grid[:8]) + (", ..." if len(grid) > 8 else "")
        raise ValueError(f"a grid must increase within [0, 1] (noise at 0, data at 1); got {short}")
    return grid
