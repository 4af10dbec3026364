"""Time grids: increasing tuples of times from noise (0) to data (1).

n steps have n + 1 times and cost n evaluations with Euler.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Integral, Real
from operator import lt

from torch import Tensor

from ..notation import described

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
    """t = 1 - sigma, for decreasing sigmas of at most 1, such as those of a flow scheduler.

    The noise levels of EDM and k-diffusion start far above 1; `from_karras` makes their grid.
    """
    if len(sigmas) and max(sigmas) > 1:
        raise ValueError(
            f"from_sigmas takes noise shares of at most 1, t = 1 - sigma; {max(sigmas):.4g} is the noise of "
            "x = data + sigma noise, whose time is t = 1 / (1 + sigma): use from_karras(sigmas)"
        )
    return checked([1 - float(s) for s in sigmas])


def from_karras(sigmas: Sequence[float]) -> Times:
    """t = 1 / (1 + sigma), for the falling noise levels of x = data + sigma noise in EDM and k-diffusion.

    The same state on the linear path is x / (1 + sigma), so a run starts at sigma / (1 + sigma) noise.
    """
    levels = [float(s) for s in sigmas]
    if not all(s >= 0 and math.isfinite(s) for s in levels):
        raise ValueError(f"noise levels are finite and at least 0; got {levels[:8]}")
    return checked([1 / (1 + s) for s in levels])


def checked(times: Sequence[float]) -> Times:
    """The grid, if it is one: two times or more, in [0, 1], increasing."""
    if isinstance(times, Real):
        raise TypeError(f"times is a grid from noise to data, such as uniform({times}); got {times}")
    if isinstance(times, Tensor) and times.dim() != 1:
        raise TypeError(f"times is a grid from noise to data, such as uniform(50); got {described(times)}")
    grid = tuple(map(float, times))
    if len(grid) < 2:
        raise ValueError(f"a grid needs at least two times; got {list(grid)}")
    if grid[0] < 0 or grid[-1] > 1 or not all(map(lt, grid, grid[1:])):
        short = ", ".join(f"{t:.6g}" for t in grid[:8]) + (", ..." if len(grid) > 8 else "")
        raise ValueError(f"a grid must increase within [0, 1] (noise at 0, data at 1); got {short}")
    return grid


def kept_variance(t: float, t_next: float) -> float:
    """r, the share of the noise's variance that a memoryless step t -> t_next keeps."""
    return ((1 - t_next) * t / (t_next * (1 - t))) ** 2
