"""The picture of a run, drawn with Pillow: ComfyUI brings Pillow, but no plotting library.

above  effective CFG per model call, one line per sample; dots where the cap acted; dashed what was asked
below  |m| / |m_c|, the length of the guided mean in units of the conditional one; dashed gamma
"""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import wrap
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from ...rules import Cap
from .run import HookRun

if TYPE_CHECKING:
    from PIL.ImageDraw import ImageDraw

_SIZE = (768, 600)
_FINER = 3  # drawn larger and reduced, since Pillow draws lines without smoothing
_INK, _FAINT, _GREY = "#222222", "#e4e4e4", "#8a8a8a"
_COLOURS = ("#0b6fb8", "#d1495b", "#2e8b57", "#8e5ea2", "#c78000", "#3aa6a6", "#7a5c3e", "#5560c8")


class _Panel(NamedTuple):
    """A rectangle in which call 1..n and values lo..hi have places."""

    left: float
    top: float
    right: float
    bottom: float
    calls: int
    lo: float
    hi: float

    def x(self, call: int) -> float:
        return self.left + (call + 0.5) / self.calls * (self.right - self.left)

    def y(self, value: float) -> float:
        return self.bottom - (value - self.lo) / (self.hi - self.lo) * (self.bottom - self.top)


def image(run: HookRun) -> Tensor:
    """The picture as ComfyUI holds images: (1, height, width, 3) in [0, 1]."""
    try:
        from PIL import Image, ImageDraw
    except ImportError:
        raise ImportError("the picture of a run needs `pip install pillow`") from None
    picture = Image.new("RGB", (_SIZE[0] * _FINER, _SIZE[1] * _FINER), "white")
    _paint(ImageDraw.Draw(picture), run)
    reduced = picture.resize(_SIZE, Image.Resampling.LANCZOS)
    values = torch.frombuffer(bytearray(reduced.tobytes()), dtype=torch.uint8)
    return values.reshape(1, _SIZE[1], _SIZE[0], 3).float() / 255


def _paint(draw: ImageDraw, run: HookRun) -> None:
    _write(draw, (24, 18), run.headline(), 23)
    _write(draw, (24, 50), _shorter(str(run.rule), 78), 17, _GREY)
    if len(run.outside) == len(run.record):
        remarks = [part for line in run.text().splitlines()[1:] for part in wrap(line, 80)]
        for i, line in enumerate(remarks):
            _write(draw, (24, 100 + 28 * i), line, 17)
        return
    s = run.record.stacked()
    n = s["scale"].shape[0]
    asked = [float(v) for v in s["asked"].mean(1)]
    bounds = [cap.gamma for cap in run.rule.parts if type(cap) is Cap and isinstance(cap.gamma, float)]
    bound = [g for g in bounds if g < 100]
    upper = _panel(76, 112, n, [*s["scale"].flatten().tolist(), *asked])
    lower = _panel(352, 388, n, [*s["ratio"].flatten().tolist(), 1.0, *bound])
    _axes(draw, upper, "effective CFG", "dots: capped, dashes: asked for", run)
    _axes(draw, lower, "|m| / |m_c|", "dots: capped" + ", dashes: gamma" * bool(bound), run)
    _dashed(draw, upper, asked)
    for g in bound:
        _dashed(draw, lower, [g] * n)
    for panel, values in ((upper, s["scale"]), (lower, s["ratio"])):
        _lines(draw, panel, values, s["active"])


def _panel(label: float, top: float, calls: int, values: Sequence[float]) -> _Panel:
    finite = [v for v in values if abs(v) < 1e9] or [0.0]
    lo, hi = min(finite), max(finite)
    room = 0.08 * (hi - lo) or 0.1 * max(abs(hi), 1.0)
    return _Panel(84, top, _SIZE[0] - 24, label + 220, calls, lo - room, hi + room)


def _axes(draw: ImageDraw, panel: _Panel, name: str, key: str, run: HookRun) -> None:
    _write(draw, (24, panel.top - 30), name, 17)
    _write(draw, (panel.right, panel.top - 22), key, 15, _GREY, "rm")
    for value in _ticks(panel.lo, panel.hi):
        _line(draw, [(panel.left, panel.y(value)), (panel.right, panel.y(value))], _FAINT, 1)
        _write(draw, (panel.left - 10, panel.y(value)), f"{value:g}", 15, _GREY, "rm")
    every = max(1, -(-panel.calls // 12))
    for call in range(0, panel.calls, every):
        _write(draw, (panel.x(call), panel.bottom + 14), str(run.at[call]), 15, _GREY, "mm")
    _write(draw, (24, panel.bottom + 14), run.unit.split()[-1].removesuffix("s"), 15, _GREY, "lm")
    _line(draw, [(panel.left, panel.bottom), (panel.right, panel.bottom)], _GREY, 1)


def _lines(draw: ImageDraw, panel: _Panel, values: Tensor, active: Tensor) -> None:
    for j in range(values.shape[1]):
        colour = _COLOURS[j % len(_COLOURS)]
        points = [(panel.x(i), panel.y(float(v))) for i, v in enumerate(values[:, j]) if abs(float(v)) < 1e9]
        _line(draw, points, colour, 2)
        for i in active[:, j].nonzero().flatten().tolist():
            _dot(draw, panel.x(i), panel.y(float(values[i, j])), colour)


def _dashed(draw: ImageDraw, panel: _Panel, values: Sequence[float]) -> None:
    for i, value in enumerate(values):
        half = 0.3 * (panel.right - panel.left) / panel.calls
        if abs(value) < 1e9:
            _line(draw, [(panel.x(i) - half, panel.y(value)), (panel.x(i) + half, panel.y(value))], _GREY, 2)


def _ticks(lo: float, hi: float) -> list[float]:
    """Four or so round values."""
    rough = torch.tensor((hi - lo) / 4, dtype=torch.float64)
    unit = 10.0 ** int(torch.floor(torch.log10(rough)))
    step = next(k * unit for k in (1, 2, 5, 10) if k * unit >= float(rough) * 0.999)
    first = int(-(-lo // step))
    return [round(k * step, 10) for k in range(first, int(hi // step) + 1)]


def _line(draw: ImageDraw, points: Sequence[tuple[float, float]], colour: str, width: int) -> None:
    if len(points) > 1:
        scaled = [(x * _FINER, y * _FINER) for x, y in points]
        draw.line(scaled, fill=colour, width=width * _FINER, joint="curve")


def _dot(draw: ImageDraw, x: float, y: float, colour: str) -> None:
    r = 5
    draw.ellipse([v * _FINER for v in (x - r, y - r, x + r, y + r)], fill=colour)


def _write(
    draw: ImageDraw, at: tuple[float, float], text: str, size: int, colour: str = _INK, anchor: str = "la"
) -> None:
    from PIL import ImageFont

    font = ImageFont.load_default(size * _FINER)
    draw.text((at[0] * _FINER, at[1] * _FINER), text, fill=colour, font=font, anchor=anchor)


def _shorter(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 3] + "..."
