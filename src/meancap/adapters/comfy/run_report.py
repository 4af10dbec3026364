"""One sampling run as a hook saw it: its summary in words, and its picture.

    calls   evaluations of the model; a step of a higher-order sampler makes several
    capped  an evaluation in which the cap shortened the displacement
    scale   the effective CFG scale: the one at which plain CFG would move m_c as far along the gap

The picture is drawn with Pillow, since ComfyUI brings Pillow but no plotting library.

    above   effective CFG per model call, one line per sample; dots where the cap acted; dashed what was asked
    below   |m| / |m_c|, the length of the guided mean in units of the conditional one; dashed gamma
"""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import wrap
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from ...record import Measure, span
from ...rules import Cap, Rule
from ..session import RunRecord

if TYPE_CHECKING:
    from PIL.ImageDraw import ImageDraw

_MARKS = 256  # values of the result by which a run is recognised


class HookRun:
    """The record of one run, how many calls the hook left unchanged, and a mark of its result."""

    def __init__(self, rule: Rule) -> None:
        self.rule = rule
        self.record = RunRecord()
        self.calls = 0
        self.idle = 0  # calls at cfg 1 or without a negative
        self.at: list[int] = []  # which call each evaluation of the record was, from 1
        self.outside: list[int] = []  # places in the record of the calls before start and after end
        self.later: list[str] = []  # functions of other nodes that change the result after this one
        self.steps: int | None = None
        self._mark: Tensor | None = None

    def made(self, latent: Tensor) -> None:
        """Notes the latent that the host produced."""
        self._mark = _mark(latent)

    def acted(self) -> None:
        """Notes that this call is guided and will be the next entry of the record."""
        self.at.append(self.calls)

    def left_alone(self, measure: Measure) -> None:
        """Notes what the workflow made in a call before start or after end."""
        self.outside.append(len(self.record))
        self.at.append(self.calls)
        self.record.note(measure)

    def is_of(self, latent: Tensor) -> bool:
        """Whether this run made the latent."""
        mark = _mark(latent)
        return self._mark is not None and mark is not None and torch.equal(mark, self._mark)

    @property
    def unit(self) -> str:
        one = "step" if self.steps in (None, self.calls) else "model call"
        return one if self.calls == 1 else f"{one}s"

    def headline(self) -> str:
        """One line, such as: capped 6/20 steps, effective CFG 2.1 to 7.0."""
        if len(self.outside) == len(self.record):
            return f"did nothing in {self.calls} {self.unit}"
        s = self.record.stacked()
        capped = [int(n) for n in s["active"].sum(0)]
        low, high = min(capped), max(capped)
        times = f"{low}" if low == high else f"{low} to {high}"
        many = "" if len(capped) == 1 else f" ({len(capped)} samples)"
        return f"capped {times}/{self.calls} {self.unit}, effective CFG {span(s['scale'])}{many}"

    def text(self) -> str:
        """The headline, and what a user should know about it."""
        return "\n".join([f"{self.rule}: {self.headline()}", *self._remarks()])

    def _remarks(self) -> list[str]:
        if not self.calls:
            return ["This model has not been sampled yet: feed the report from the sampler that uses it."]
        if self.idle == self.calls:
            return [
                "The sampler's cfg is 1 or it has no negative, so there is no guidance here to work on.",
                "Distilled models (Flux dev or schnell, Turbo, Lightning) run at cfg 1: nothing to cap.",
            ]
        s = self.record.stacked()
        inside = torch.ones(len(self.record), dtype=torch.bool)
        inside[self.outside] = False
        lines = self._limits(s, inside) + self._others()
        if not bool(inside.any()):
            return ["No step lay between start and end.", *lines]
        ratio = float(s["ratio"][inside].max())
        lines.insert(0, f"asked for CFG {span(s['asked'][inside])}; largest |m|/|m_c| {ratio:.3f}")
        if self.rule.caps and not bool(s["active"].any()):
            lines.append("Nothing exceeded the bound: the result is the workflow's own, bit for bit.")
        elif self.rule.caps and len(self.record) == self.calls and bool(s["active"].all()):
            lines.append("Capped throughout: a higher cfg changes nothing; raise gamma for more guidance.")
        if s["scale"].shape[1] > 1:
            lines += [
                f"sample {j + 1}: capped {int(s['active'][:, j].sum())}/{self.calls} {self.unit}, "
                f"effective CFG {span(s['scale'][:, j])}"
                for j in range(s["scale"].shape[1])
            ]
        return lines

    def _limits(self, s: dict[str, Tensor], inside: Tensor) -> list[str]:
        """What the sampler used before start and after end."""
        if not self.outside:
            return []
        acted = [call for call, one in zip(self.at, inside.tolist(), strict=True) if one]
        where = f"It acted on {self.unit} {acted[0]} to {acted[-1]}; outside" if acted else "There"
        ratio = float(s["ratio"][~inside].max())
        return [
            f"{where}, the workflow's own result was used: CFG {span(s['scale'][~inside])}, "
            f"largest |m|/|m_c| {ratio:.3f}."
        ]

    def _others(self) -> list[str]:
        if not self.later:
            return []
        return [
            f"Acting after this node: {', '.join(self.later)}. The sampler used what they made of it, and "
            "the numbers here are not theirs; put this node last."
        ]

    def about(self) -> dict[str, Any]:
        """What the rows of the record belong to, for its file."""
        return {
            "rule": str(self.rule),
            "headline": self.headline(),
            "model_calls": self.calls,
            "steps": self.steps,
            "calls_without_guidance": self.idle,
            "calls": self.at,
            "outside_start_and_end": [self.at[i] for i in self.outside],
            "acting_after": self.later,
        }


def _mark(latent: Tensor) -> Tensor | None:
    if latent.is_nested or not latent.numel():  # several tensors in one: audio and video
        return None
    stride = max(1, latent.numel() // _MARKS)
    shape = torch.tensor(latent.shape, dtype=torch.float32)
    return torch.cat([shape, latent.detach().flatten()[::stride].float().cpu()])


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


def draw_run(run: HookRun) -> Tensor:
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
