"""Figures of the results: endpoint samples and marginals of the nine settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Circle, Patch, Rectangle

from .. import style
from . import read

STD = 0.03  # of every component; the circle that is drawn holds 95 % of a target branch
_WIDE = 2.4477 * STD  # radius of that circle


def endpoints(folder: Path) -> Figure:
    """Samples at t = 1, all nine settings, with the numbers of the table in each panel."""
    data, table = read.arrays(folder, "endpoints"), read.table(folder)
    figure, axes = style.panels(3, 3, style.PAGE, style.PAGE * 1.12, sharex=True, sharey=True)
    for i, guidance in enumerate(read.GUIDANCE):
        for j, members in enumerate(read.SCENES):
            panel, row = axes[i, j], table[members, guidance]
            given = [int(k) for k in members.strip("{}").split(",")]
            x = data[f"{members} {guidance} samples"]
            _circle(panel, data["means"], given)
            _points(panel, x, guidance)
            style.square(panel, -0.5, 1.3)
            panel.set_ylim(-0.5, 1.62)  # room for the numbers above the circle
            _zoom(panel, x, data["means"], given, guidance)
            panel.text(
                0.98, 0.99, _numbers(row), transform=panel.transAxes, ha="right", va="top", fontsize=6.2
            )
            if i == 0:
                panel.set_title(f"$A$ = {members}")
            if j == 0:
                panel.set_ylabel(_name(row), color=style.GUIDANCE[guidance])
    return figure


def marginals(folder: Path) -> Figure:
    """Histograms of both coordinates, 101 bins, against the exact marginals of the target."""
    data, table = read.arrays(folder, "endpoints"), read.table(folder)
    figure, axes = style.panels(3, 6, style.PAGE, style.PAGE * 0.55)
    for j, members in enumerate(read.SCENES):
        for axis in (0, 1):
            column = axes[:, 2 * j + axis]
            edges, target = data[f"{members} edges {axis}"], data[f"{members} target {axis}"]
            densities = [_density(data, members, guidance, axis) for guidance in read.GUIDANCE]
            tallest = max(target.max(), *(density.max() for density in densities))
            column[0].set_title(f"{members}: $x_{axis + 1}$")
            for panel, guidance, density in zip(column, read.GUIDANCE, densities, strict=True):
                panel.stairs(density, edges, fill=True, color=style.GUIDANCE[guidance], alpha=0.6, lw=0)
                panel.plot(data[f"{members} fine {axis}"], target, color=style.INK, lw=0.8)
                panel.set_xlim(edges[0], edges[-1])
                panel.set_ylim(0, 1.04 * tallest)  # one scale in a column, so that heights compare
                panel.set_yticks([])
                panel.spines["left"].set_visible(False)
                panel.locator_params(axis="x", nbins=3)
                if panel is not column[-1]:
                    panel.set_xticklabels([])
                if j == axis == 0:
                    panel.set_ylabel(_name(table[members, guidance]), color=style.GUIDANCE[guidance])
    keys: list[Any] = [Line2D([], [], color=style.INK, lw=0.8, label="exact target")]
    keys += [Patch(color=c, alpha=0.6, lw=0, label=f"{name} samples") for name, c in style.GUIDANCE.items()]
    figure.legend(handles=keys, loc="outside lower center", ncols=4)
    return figure


def _density(data: dict[str, read.Array], members: str, guidance: str, axis: int) -> read.Array:
    counts, edges = data[f"{members} {guidance} histogram {axis}"], data[f"{members} edges {axis}"]
    density: read.Array = counts / (int(data["samples"]) * np.diff(edges))
    return density


def _name(row: read.Row) -> str:
    gamma = rf", $\Gamma={row['gamma']}$" if row["gamma"] else ""
    return f"{row['guidance']}\n" + rf"$\lambda={row['scale']}${gamma}"


def _numbers(row: read.Row) -> str:
    def few(cell: str, digits: int) -> str:
        return " / ".join(f"{v:.{digits}f}" for v in read.numbers(cell))

    return "\n".join(
        (
            f"occupancy {few(row['occupancy_percent'], 1)} %",
            f"variance ratio {few(row['variance_ratio'], 3)}",
            f"TV {few(row['tv'], 4)}",
            f"mean error {few(row['mean_error'], 4)}",
        )
    )


def _circle(panel: Axes, means: read.Array, given: list[int]) -> None:
    panel.add_patch(Circle((0, 0), 1, fill=False, ec=style.PALE, lw=0.7, zorder=0))
    others = np.delete(means, given, axis=0)
    panel.plot(*others.T, "o", ms=3, mfc="white", mec=style.GREY, mew=0.7, zorder=1)


def _points(panel: Axes, x: read.Array, guidance: str, size: float = 0.9) -> None:
    panel.plot(
        *x.T, ".", ms=size, mew=0, alpha=0.55, color=style.GUIDANCE[guidance], rasterized=True, zorder=2
    )


def _zoom(panel: Axes, x: read.Array, means: read.Array, given: list[int], guidance: str) -> None:
    """Component 0 enlarged, where the panel is empty, with the circle that holds 95 % of the target."""
    half, centre = 0.125, means[0]
    inset = panel.inset_axes((0.04, 0.04, 0.46, 0.46))
    _points(inset, x, guidance, 2.0)
    inset.add_patch(Circle(tuple(centre), _WIDE, fill=False, ec=style.INK, lw=0.8, ls=(0, (3, 2)), zorder=3))
    inset.plot(*centre, "D", ms=3, mfc="none", mec=style.INK, mew=0.8, zorder=4)
    inset.set(aspect="equal", xticks=[], yticks=[])
    inset.set_xlim(centre[0] - half, centre[0] + half)
    inset.set_ylim(centre[1] - half, centre[1] + half)
    for side in ("top", "right"):
        inset.spines[side].set_visible(True)
    corner = (centre[0] - half, centre[1] - half)
    panel.add_patch(Rectangle(corner, 2 * half, 2 * half, fill=False, ec=style.GREY, lw=0.6, zorder=3))
    panel.plot(*means[given].T, "D", ms=3, mfc="none", mec=style.INK, mew=0.8, zorder=4)
