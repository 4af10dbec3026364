"""Intervals for shares of pictures, which stay right near 0 and 1.

    share        Wilson's: the shares p for which |hits / n - p| is at most z sqrt(p (1 - p) / n)
    difference   of two shares on the same pictures: Agresti and Min's, half a picture added to each of the
                 four kinds (both, neither, lost, gained)

A bootstrap of 96 hits out of 96 has no width at all; these have. By hand, because the package does not need
scipy elsewhere; a test compares.
"""

from __future__ import annotations

import math

Z = 1.959964  # 95 %


def share_interval(hits: int, n: int) -> tuple[float, float]:
    """95 % interval of a share."""
    if not 0 <= hits <= n or n == 0:
        raise ValueError(f"a share needs hits between 0 and a positive n; got {hits} of {n}")
    p = hits / n
    centre = (p + Z**2 / (2 * n)) / (1 + Z**2 / n)
    half = Z / (1 + Z**2 / n) * math.sqrt(p * (1 - p) / n + Z**2 / (4 * n * n))
    low, high = max(0.0, centre - half), min(1.0, centre + half)
    return (0.0 if hits == 0 else low), (1.0 if hits == n else high)


def paired_interval(gained: int, lost: int, n: int) -> tuple[float, float]:
    """95 % interval of (gained - lost) / n on n pictures that both rules drew."""
    if min(gained, lost) < 0 or gained + lost > n or n == 0:
        raise ValueError(f"gained and lost are kinds of the n pictures; got {gained}, {lost} of {n}")
    more, b, c = n + 2, gained + 0.5, lost + 0.5
    centre = (b - c) / more
    half = Z * math.sqrt(b + c - (b - c) ** 2 / more) / more
    return max(-1.0, centre - half), min(1.0, centre + half)
