"""One sampling run as a hook saw it: its summary in words, and its picture.

    calls   evaluations of the model; a step of a higher-order sampler makes several
    capped  an evaluation in which the cap shortened the displacement
    scale   the effective CFG scale: the one at which plain CFG would move m_c as far along the gap

The picture is drawn with Pillow, since ComfyUI brings Pillow but no plotting library.

    above   effective CFG per model call, one line per sample; dots where the cap acted; dashed what was asked
    below   |m| / |m_c|, the length of the guided mean in units of the conditional one; dashed gamma
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from textwrap import shorten, wrap
from typing import Any

import torch
from torch import Tensor

from ...extras import need
from ...record import Measure, span
from ...rules import Cap, Rule
from ..session import RunRecord

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
        asked = self.record.asked_span(s["asked"][inside])
        lines.insert(0, f"asked for CFG {asked}; largest |m|/|m_c| {ratio:.3f}")
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


_SIZE, _LEFT, _RIGHT = (768, 600), 84, 744
_FINER = 3  # drawn larger and reduced, since Pillow draws lines without smoothing
_INK, _FAINT, _GREY = "#222222", "#e4e4e4", "#8a8a8a"
_COLOURS = ("#0b6fb8", "#d1495b", "#2e8b57", "#8e5ea2", "#c78000", "#3aa6a6", "#7a5c3e", "#5560c8")


def draw_run(run: HookRun) -> Tensor:
    """The picture as ComfyUI holds images: (1, height, width, 3) in [0, 1]."""
    pillow = need("PIL.Image", "images")
    picture = pillow.new("RGB", (_SIZE[0] * _FINER, _SIZE[1] * _FINER), "white")
    pen = _Pen(need("PIL.ImageDraw", "images").Draw(picture))
    pen.write(24, 18, run.headline(), 23)
    pen.write(24, 50, shorten(str(run.rule), 78, placeholder=" ..."), 17, _GREY)
    if len(run.outside) == len(run.record):
        remarks = [part for line in run.text().splitlines()[1:] for part in wrap(line, 80)]
        for i, line in enumerate(remarks):
            pen.write(24, 100 + 28 * i, line, 17)
    else:
        s = run.record.stacked()
        bounds = [cap.gamma for cap in run.rule.parts if type(cap) is Cap and isinstance(cap.gamma, float)]
        bounds = [gamma for gamma in bounds if gamma < 100]
        asked, calls = s["asked"].mean(1).tolist(), len(s["scale"])
        _panel(pen, 112, run, s["scale"], s["active"], [asked], "effective CFG", ", dashes: asked for")
        key = ", dashes: gamma" * bool(bounds)
        _panel(pen, 388, run, s["ratio"], s["active"], [[g] * calls for g in bounds], "|m| / |m_c|", key)
    reduced = picture.resize(_SIZE, pillow.Resampling.LANCZOS)
    values = torch.frombuffer(bytearray(reduced.tobytes()), dtype=torch.uint8)
    return values.reshape(1, _SIZE[1], _SIZE[0], 3).float() / 255


class _Pen:
    """Pillow's drawing in the units of the picture, whatever the size that it is drawn in."""

    def __init__(self, draw: Any) -> None:
        self._draw, self._font = draw, need("PIL.ImageFont", "images").load_default

    def line(self, points: Sequence[tuple[float, float]], colour: str, width: int) -> None:
        if len(points) > 1:
            scaled = [(x * _FINER, y * _FINER) for x, y in points]
            self._draw.line(scaled, fill=colour, width=width * _FINER, joint="curve")

    def dot(self, x: float, y: float, colour: str) -> None:
        self._draw.ellipse([v * _FINER for v in (x - 5, y - 5, x + 5, y + 5)], fill=colour)

    def write(self, x: float, y: float, text: str, size: int, colour: str = _INK, anchor: str = "la") -> None:
        font = self._font(size * _FINER)
        self._draw.text((x * _FINER, y * _FINER), text, fill=colour, font=font, anchor=anchor)


def _panel(
    pen: _Pen, top: float, run: HookRun, values: Tensor, active: Tensor, dashes: list[list[float]], name: str,
    key: str,
) -> None:  # fmt: skip
    """One panel: values over calls, a line per sample, dots where the cap acted, and dashed lines."""
    bottom, calls = top + 184, len(values)
    shown = [*values.flatten().tolist(), *(v for one in dashes for v in one), *[1.0] * (name[0] == "|")]
    finite = [v for v in shown if abs(v) < 1e9] or [0.0]
    room = 0.08 * (max(finite) - min(finite)) or 0.1 * max(abs(max(finite)), 1.0)
    lo, hi = min(finite) - room, max(finite) + room

    def place(call: float, value: float) -> tuple[float, float]:
        x = _LEFT + (call + 0.5) / calls * (_RIGHT - _LEFT)
        return x, bottom - (value - lo) / (hi - lo) * (bottom - top)

    pen.write(24, top - 30, name, 17)
    pen.write(_RIGHT, top - 22, "dots: capped" + key, 15, _GREY, "rm")
    for value in _ticks(lo, hi):
        y = place(0, value)[1]
        pen.line([(_LEFT, y), (_RIGHT, y)], _FAINT, 1)
        pen.write(_LEFT - 10, y, f"{value:g}", 15, _GREY, "rm")
    for call in range(0, calls, max(1, -(-calls // 12))):
        pen.write(place(call, 0)[0], bottom + 14, str(run.at[call]), 15, _GREY, "mm")
    pen.write(24, bottom + 14, run.unit.split()[-1].removesuffix("s"), 15, _GREY, "lm")
    pen.line([(_LEFT, bottom), (_RIGHT, bottom)], _GREY, 1)
    for i, value in [(i, v) for one in dashes for i, v in enumerate(one) if abs(v) < 1e9]:
        pen.line([place(i - 0.3, value), place(i + 0.3, value)], _GREY, 2)
    for j, column in enumerate(values.T.tolist()):
        colour = _COLOURS[j % len(_COLOURS)]
        pen.line([place(i, v) for i, v in enumerate(column) if abs(v) < 1e9], colour, 2)
        for i in active[:, j].nonzero().flatten().tolist():
            pen.dot(*place(i, column[i]), colour)


def _ticks(lo: float, hi: float) -> list[float]:
    """Four or so round values."""
    rough = (hi - lo) / 4
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(k * unit for k in (1, 2, 5, 10) if k * unit >= rough * 0.999)
    return [round(k * step, 10) for k in range(math.ceil(lo / step), math.floor(hi / step) + 1)]
