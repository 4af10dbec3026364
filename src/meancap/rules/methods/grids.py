"""A grid of times as some methods take it: the times themselves, or a number of equal steps."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

# More would not be sampled, and a schedule of them could not be written down and read again.
_MOST_STEPS = 10_000


def grid_of(times: int | float | Sequence[float]) -> tuple[float, ...]:
    """A grid from noise to data, or that many equal steps."""
    if isinstance(times, (int, float)):
        if not (1 <= times <= _MOST_STEPS and times % 1 == 0):
            raise ValueError(
                f"a grid is its times, or a whole number of equal steps up to {_MOST_STEPS}; got {times}"
            )
        return tuple(i / int(times) for i in range(int(times) + 1))
    grid = tuple(float(t) for t in times)
    if len(grid) < 2 or grid[0] < 0 or grid[-1] > 1 or any(not b > a for a, b in pairwise(grid)):
        raise ValueError(f"a grid is two times or more, increasing within [0, 1]; got {list(grid[:8])}")
    return grid
