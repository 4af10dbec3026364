"""What a rule does to one gap, as a small vector drawing.

The plane of the drawing is spanned by m_c and the gap m_c - m_u, in units of |m_c|: m_c lies at (1, 0), the
unconditional mean below it on the ray of guidance, and the mean of CFG above it on the same ray. The circle
has the radius 1.1 round the origin, the ball of the paper's cap. A rule that leaves the plane is drawn by its
projection, and the length of what is left over stands beside it. What a rule may look at and avoid, n, lies
in the plane as well: at the end of the gap, turned into the direction of m_c.

Every rule sees the same three steps, of which the third is drawn: a rule with memory has then something to
remember. The means are images of 4 x 16 x 16 with coarse and fine parts, so that rules for images have their
axes; the gap is 0.35 times as long as m_c and at 60 degrees to it.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ..prediction import Prediction
from ..rules import CFG, Entry, Rule, guide

SCALE = 4.0  # of the drawn CFG, and of most rules
GAMMA = 1.1
_STEPS = ((0.2, 0.3), (0.3, 0.4), (0.4, 0.5))
_GAP, _ANGLE = 0.35, math.pi / 3
_UNIT, _LEFT, _TOP, _WIDTH, _HEIGHT = 90.0, 14.0, 112.0, 200, 184
_EDGE = 6.0


class Point(NamedTuple):
    """A mean in the plane, in units of |m_c|, and how far it lies off the plane."""

    x: float
    y: float
    off: float = 0.0


def predictions() -> list[Prediction]:
    """The three steps that every rule is drawn on."""
    draw = torch.Generator().manual_seed(0)

    def image() -> Tensor:
        fine, coarse = (torch.randn(1, 4, n, n, generator=draw, dtype=torch.float64) for n in (16, 4))
        return fine + 2 * F.interpolate(coarse, scale_factor=4.0, mode="bilinear")

    noise, mean, across = image(), image(), image()
    found = []
    for t, s in _STEPS:
        m_c = mean + 0.1 * image()
        along = m_c / m_c.norm()
        side = across + 0.1 * image()
        side = side - (side * along).sum() * along
        gap = math.cos(_ANGLE) * along + math.sin(_ANGLE) * side / side.norm()
        m_u = m_c - _GAP * m_c.norm() * gap
        p = Prediction.from_mean((1 - t) * noise + t * m_c, t, m_c, m_u)
        found.append(p.beside(negative=m_u + _GAP * m_c.norm() * along).until(s))
    return found


def drawn_mean(rule: Rule) -> Point:
    """Where the guided mean of the third step lies."""
    state = rule.init()
    for p in (steps := predictions()):
        m, state = guide(rule, p, state)
    p = steps[-1]
    size = p.m_c.norm()
    along = p.m_c / size
    side = p.delta - (p.delta * along).sum() * along
    side = side / side.norm()
    x, y = (round(float((m * axis).sum() / size), 6) + 0.0 for axis in (along, side))  # no -0
    return Point(x, y, float((m / size - x * along - y * side).norm()))


def drawing(entry: Entry) -> str:
    """The drawing of a rule as the text of an SVG file."""
    mean, fixed = drawn_mean(entry.rule()), drawn_mean(CFG(SCALE))
    start = Point(1 - _GAP * math.cos(_ANGLE), -_GAP * math.sin(_ANGLE))
    inside = _within(mean)
    said = [f"{mean.off:.2f} off the plane"] if mean.off >= 0.005 else []
    said += [] if inside[:2] == mean[:2] else ["outside the frame"]
    own = f"scale {entry.scale:g}: " if "{scale}" in entry.call and entry.scale != SCALE else ""
    rows = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{_HEIGHT}" '
        f'viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif" font-size="10">',
        f"<title>{entry.name} on one gap</title>",
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#fff"/>',
        f'<circle cx="{_LEFT:g}" cy="{_TOP:g}" r="{GAMMA * _UNIT:g}" fill="#eef4fb" stroke="#7aa6d8"/>',
        _line(Point(0, 0), Point(1, 0), "#bbb"),
        _line(start, fixed, "#999", dashed=True),
        _line(Point(1, 0), inside, "#c0392b"),
        _dot(start, "#fff", "u", "#555"),
        _dot(Point(1, 0), "#333", "c", "#333"),
        *([_dot(Point(start.x + _GAP, start.y), "#fff", "n", "#555")] if entry.needs else []),
        _dot(fixed, "#fff", "CFG", "#999"),
        _dot(inside, "#c0392b", "", "#c0392b"),
        f'<text x="4" y="{_HEIGHT - 17}" fill="#c0392b">{own}{mean.x:.2f}, {mean.y:.2f}</text>',
        f'<text x="4" y="{_HEIGHT - 5}" fill="#c0392b">{", ".join(said)}</text>',
        "</svg>",
    ]
    return "\n".join(rows) + "\n"


def _within(p: Point) -> Point:
    """The point, or the last one of the way to it from m_c that the frame shows."""
    across = ((_EDGE - _LEFT) / _UNIT, (_WIDTH - _EDGE - _LEFT) / _UNIT)
    upward = ((_TOP - _HEIGHT + 28) / _UNIT, (_TOP - _EDGE) / _UNIT)
    share = 1.0
    for start, end, (low, high) in ((1.0, p.x, across), (0.0, p.y, upward)):
        if not low <= end <= high:
            share = min(share, ((high if end > high else low) - start) / (end - start))
    return Point(1 + share * (p.x - 1), share * p.y) if share < 1 else p


def _at(p: Point) -> tuple[str, str]:
    return f"{_LEFT + _UNIT * p.x:.1f}", f"{_TOP - _UNIT * p.y:.1f}"


def _line(a: Point, b: Point, colour: str, dashed: bool = False) -> str:
    (x1, y1), (x2, y2) = _at(a), _at(b)
    dashes = ' stroke-dasharray="3 3"' if dashed else ""
    return f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="{colour}"{dashes}/>'


def _dot(p: Point, fill: str, name: str, colour: str) -> str:
    x, y = _at(p)
    label = (
        f'<text x="{float(x) + 6:.1f}" y="{float(y) + 10:.1f}" fill="{colour}">{name}</text>' if name else ""
    )
    return f'<circle cx="{x}" cy="{y}" r="3.5" fill="{fill}" stroke="{colour}"/>{label}'
