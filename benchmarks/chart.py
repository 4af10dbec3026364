"""A cost against something, as a small SVG for light and dark pages alike; both axes are logarithmic."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape

from benchmarks.records import Curve, number

WIDTH, HEIGHT = 460, 270
LEFT, RIGHT, TOP, BOTTOM = 58, 16, 34, 42
_STYLE = """<style>
.chart text { font: 11px system-ui, sans-serif; fill: #444; }
.chart .grid { stroke: #8883; } .chart .axis { stroke: #888; }
.chart .c0 { stroke: #0072b2; fill: #0072b2; } .chart .c1 { stroke: #d55e00; fill: #d55e00; }
.chart .c2 { stroke: #009e73; fill: #009e73; } .chart .c3 { stroke: #cc79a7; fill: #cc79a7; }
.chart polyline.line { fill: none; stroke-width: 2; }
@media (prefers-color-scheme: dark) { .chart text { fill: #bbb; }
.chart .c0 { stroke: #56b4e9; fill: #56b4e9; } }
</style>"""


def chart(curves: Sequence[Curve]) -> str:
    """All curves in one frame; they share title, axis and unit."""
    first = curves[0]
    across = _scale([v for c in curves for v in c.at], LEFT, WIDTH - RIGHT)
    upward = _scale([v for c in curves for v in c.value], HEIGHT - BOTTOM, TOP)
    parts = [
        f'<svg class="chart" xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'width="{WIDTH}" role="img" aria-label="{escape(first.title, quote=True)}">{_STYLE}',
    ]
    for v in _ticks([v for c in curves for v in c.value]):
        y = upward(v)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{number(v)}</text>')
    low = HEIGHT - BOTTOM
    parts.append(f'<line class="axis" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{low}" y2="{low}"/>')
    for v in sorted({v for c in curves for v in c.at}):
        parts.append(f'<text x="{across(v):.1f}" y="{low + 16}" text-anchor="middle">{number(v)}</text>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(f'<text x="{middle}" y="{HEIGHT - 8}" text-anchor="middle">{escape(first.axis)}</text>')
    place = LEFT
    for i, curve in enumerate(curves):
        points = [(across(x), upward(y)) for x, y in zip(curve.at, curve.value, strict=True)]
        parts.append(
            f'<polyline class="line c{i % 4}" points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in points)}"/>'
        )
        parts += [f'<circle class="c{i % 4}" cx="{x:.1f}" cy="{y:.1f}" r="2.5"/>' for x, y in points]
        parts.append(f'<rect class="c{i % 4}" x="{place}" y="10" width="10" height="3"/>')
        parts.append(f'<text x="{place + 14}" y="16">{escape(curve.line)}</text>')
        place += 30 + 6.2 * len(curve.line)
    return "".join(parts) + "</svg>"


def _scale(values: Sequence[float], start: float, stop: float) -> Callable[[float], float]:
    """From a value to its place, logarithmic, with a little room at both ends."""
    low, high = math.log(min(values)), math.log(max(values))
    room = 0.06 * (high - low) or 0.5
    low, high = low - room, high + room
    return lambda v: start + (stop - start) * (math.log(v) - low) / (high - low)


def _ticks(values: Sequence[float]) -> list[float]:
    """1, 2 and 5 times powers of ten within the range; only the powers where these would be many."""
    low, high = min(values), max(values)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    found = [m * 10.0**p for p in powers for m in (1, 2, 5) if low <= m * 10.0**p <= high]
    return [v for v in found if math.log10(v).is_integer()] if len(found) > 8 else found
