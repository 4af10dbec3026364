"""The mechanism in a figure: what the two means and the gap do, and how much guidance is left.

norms    |m_c| and |m_u|            thin lines: samples
gap      |m_c - m_u|                thick line: their mean
scale    effective scale, and the nominal one dashed
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..runs.folder import Run
from .style import AMBER, BLUE, GREEN, GREY, PAGE, PURPLE, SKY, VERMILION

_COLOURS = (BLUE, VERMILION, GREEN, PURPLE, AMBER, SKY)
Array = npt.NDArray[np.float64]


def mean_lengths(meter: Mapping[str, Array]) -> tuple[Array, Array]:
    """|m_c| and |m_u|, from the ratio, the gap and the angle that the meter keeps."""
    m_c = meter["length"] / meter["ratio"]
    squared = m_c**2 - 2 * m_c * meter["gap"] * meter["cosine"] + meter["gap"] ** 2
    return m_c, np.sqrt(np.maximum(squared, 0))


def mechanism(runs: Sequence[Run], titles: Sequence[str] = (), samples: int = 30) -> Figure:
    """Three panels over time for each run: norms of the means, gap, effective scale."""
    figure = Figure(figsize=(PAGE, 0.4 + 1.7 * len(runs)), layout="constrained")
    axes: Any = figure.subplots(len(runs), 3, squeeze=False, sharex=True, sharey="col")
    for row, run, k in zip(axes, runs, range(len(runs)), strict=True):
        meter = run.meter
        t = meter["t"][:, 0]
        m_c, m_u = mean_lengths(meter)
        bundle(row[0], t, m_c, BLUE, samples, "conditional")
        bundle(row[0], t, m_u, GREY, samples, "unconditional")
        bundle(row[1], t, meter["gap"], PURPLE, samples)
        bundle(row[2], t, meter["scale"], GREEN, samples, "effective")
        row[2].plot(
            t, meter["asked"].mean(1), color=VERMILION, linestyle="--", linewidth=0.9, label="nominal"
        )
        row[0].set_ylabel(titles[k] if titles else run.rule)
        if k == 0:
            row[0].legend(loc="best")
            row[2].legend(loc="best")
    for place, title in zip(
        axes[0], ("length of the means", "gap |m_c − m_u|", "guidance scale"), strict=True
    ):
        place.set_title(title)
    for place in axes[-1]:
        place.set_xlabel("t (noise at 0, data at 1)")
    return figure


def meters(runs: Sequence[Run], titles: Sequence[str] = ()) -> Figure:
    """The guidance meter of several runs: effective scale, ratio and share capped, means over samples."""
    figure = Figure(figsize=(PAGE, 2.1), layout="constrained")
    axes: Any = figure.subplots(1, 3)
    for k, run in enumerate(runs):
        meter, colour = run.meter, _COLOURS[k % len(_COLOURS)]
        t = meter["t"][:, 0]
        name = titles[k] if titles else run.rule
        for place, values in zip(
            axes, (meter["scale"], meter["ratio"], meter["active"].astype(float)), strict=True
        ):
            place.plot(t, values.mean(1), color=colour, linewidth=1.5, label=name)
    for place, title in zip(axes, ("effective scale", "ratio |m| / |m_c|", "share capped"), strict=True):
        place.set_title(title)
        place.set_xlabel("t")
    axes[2].set_ylim(-0.03, 1.03)
    axes[1].legend(loc="upper right")  # ratios fall to 1 from the left: that corner is free
    return figure


def bundle(axes: Axes, t: Array, values: Array, colour: str, samples: int, label: str = "") -> None:
    """Thin lines for some samples, a thick one for the mean of all."""
    axes.plot(t, values[:, :samples], color=colour, alpha=0.22, linewidth=0.5)
    axes.plot(t, values.mean(1), color=colour, linewidth=2.0, label=label or None)
