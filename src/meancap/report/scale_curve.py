"""The figure of a scale that was learned from data: lambda over t with its interval, one curve per model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from ..runs.calibrate import LearnedScale, load_scale
from .style import BLUE, COLUMN, GREEN, GREY, PURPLE, VERMILION, look

_COLOURS = (BLUE, VERMILION, GREEN, PURPLE)


def scale_curve(learned: Sequence[LearnedScale]) -> Figure:
    """Curves and bands; the dashed line at 1 is a gap that is neither too short nor too long."""
    figure = Figure(figsize=(COLUMN, 2.2), layout="constrained")
    axes: Any = figure.subplots()
    axes.axhline(1, color=GREY, linestyle="--", linewidth=0.8)
    for k, one in enumerate(learned):
        colour = _COLOURS[k % len(_COLOURS)]
        axes.fill_between(one.times, one.low, one.high, color=colour, alpha=0.2, linewidth=0)
        axes.plot(one.times, one.values, color=colour, marker="o", markersize=2.5, label=one.model)
    axes.set_xlabel("t (noise at 0, data at 1)")
    axes.set_ylabel("scale that predicts data best")
    axes.legend(loc="best")
    return figure


def write_scale_curve(files: Sequence[str | Path], out: str | Path) -> Path:
    """The figure of some scale files."""
    out = Path(out)
    with look():
        scale_curve([load_scale(path) for path in files]).savefig(out)
    return out
