"""The knobs of a rule, and the settings that every rule is tried at: the same number for all.

u         a point of the unit cube, one number for each knob; `Knob.at` makes a value of it
spread    points that fill the cube evenly: a grid in one dimension, a lattice in more
around    points near the best of those, at distances that fill the gap to its neighbours
"""

from __future__ import annotations

import math
from dataclasses import dataclass

Place = tuple[float, ...]


@dataclass(frozen=True)
class Knob:
    """A number from `low` to `high`; the grid is even in log(value - origin), or in the value if None."""

    name: str
    low: float
    high: float
    origin: float | None = None

    def at(self, u: float) -> float:
        if self.origin is None:
            return self.low + u * (self.high - self.low)
        a, b = math.log(self.low - self.origin), math.log(self.high - self.origin)
        return self.origin + math.exp(a + u * (b - a))

    def place(self, value: float) -> float:
        """The u of a value."""
        if self.origin is None:
            return (value - self.low) / (self.high - self.low)
        a, b = math.log(self.low - self.origin), math.log(self.high - self.origin)
        return (math.log(value - self.origin) - a) / (b - a)


def spread(count: int, knobs: int) -> list[Place]:
    """`count` points; the first knob, mostly the scale, takes evenly spaced values whatever the others do."""
    # The root of x^(k+1) = x + 1 gives the additive recurrence that fills k dimensions most evenly.
    root = 2.0
    for _ in range(50):
        root = (1 + root) ** (1 / (knobs + 1))
    turns = [root ** -(j + 1) for j in range(1, knobs)]
    return [((i + 0.5) / count, *((0.5 + i * turn) % 1 for turn in turns)) for i in range(count)]


def around(best: Place, count: int) -> list[Place]:
    """Four points round the best of a spread of `count`, within the cube."""
    gap = 1 / count
    if len(best) == 1:
        moves: list[Place] = [(k * gap / 3,) for k in (-2, -1, 1, 2)]
    else:
        still = (0.0,) * (len(best) - 1)
        side = tuple(0.15 * (-1) ** j for j in range(len(best) - 1))
        moves = [(-gap / 2, *still), (gap / 2, *still), (0.0, *side), (0.0, *(-s for s in side))]
    return [tuple(min(1.0, max(0.0, u + v)) for u, v in zip(best, move, strict=True)) for move in moves]
