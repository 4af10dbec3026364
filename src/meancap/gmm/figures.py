"""Figures of the mechanism: the landscape of p(A | x), the cap at one state, paths and their means."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import FuncNorm, LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Circle, FancyArrowPatch
from matplotlib.patheffects import withStroke

from .. import style
from . import read

_LOWEST = -12.0  # of log p(A | x); what lies below is drawn alike
_LEVELS = [-9, -6, -3, -1.5, -1, -0.5, -0.1]
_POINTS = {"m_u": style.GREY, "m_c": style.BLUE, "m": style.GREEN, "m_cfg": style.VERMILION}


def landscape(folder: Path) -> Figure:
    """log p(A | x) at five times: the posterior rises outward without end, and peaks on the middle ray."""
    data = read.arrays(folder, "landscape")
    figure, axes = style.panels(1, len(data["times"]), style.PAGE, 1.62, sharey=True)
    grid, members = data["axis"], data["members"]
    extent = (grid[0], grid[-1], grid[0], grid[-1])
    # The square root gives the top, where the three branches differ, most of the colours.
    norm = FuncNorm((lambda v: -np.sqrt(np.maximum(-v, 0)), lambda u: -(np.asarray(u) ** 2)), _LOWEST, 0)
    for panel, t, values in zip(axes[0], data["times"], data["log_posterior"], strict=True):
        image = panel.imshow(values, origin="lower", extent=extent, norm=norm, cmap=style.FIELD)
        if t < 1:  # there all levels fall on one line
            panel.contour(grid, grid, values, levels=_LEVELS, colors="white", linewidths=0.45, linestyles="-")
        centres = t * data["means"]
        panel.plot(*np.delete(centres, members, axis=0).T, "o", ms=2.4, mfc="white", mec=style.INK, mew=0.5)
        panel.plot(*centres[members].T, "D", ms=3, mfc=style.VERMILION, mec="white", mew=0.5)
        style.square(panel, -1.6, 1.6)
        panel.set_title(f"$t={t:g}$")
    bar = figure.colorbar(
        image, ax=list(axes[0]), ticks=[-12, -6, -3, -1, -0.1, 0], pad=0.01, aspect=18, shrink=0.9
    )
    bar.ax.set_yticklabels(["≤ −12", "−6", "−3", "−1", "−0.1", "0"])
    bar.set_label(r"$\log\,p(A\mid x_t)$")
    bar.outline.set_linewidth(0.4)
    return figure


def overview(folder: Path) -> Figure:
    """One real state: both posterior means, and where fixed CFG and the cap put the guided one."""
    data = read.arrays(folder, "overview")
    figure, axes = style.panels(1, 1, style.COLUMN, style.COLUMN * 0.86)
    panel, grid = axes[0, 0], data["axis"]
    every = np.stack([np.zeros(2), data["x"], *(data[name] for name in _POINTS)])
    centre, half = (every.min(0) + every.max(0)) / 2, 0.65 * float(np.ptp(every, axis=0).max())
    extent = (grid[0], grid[-1], grid[0], grid[-1])
    shade = LinearSegmentedColormap.from_list("amber", ["white", "#F6CF86"])
    image = panel.imshow(
        np.exp(data["log_posterior"]), origin="lower", extent=extent, cmap=shade, vmin=0, vmax=1, zorder=0
    )
    radius = float(data["gamma"]) * float(np.hypot(*data["m_c"]))
    panel.add_patch(Circle((0, 0), radius, fill=False, ec=style.GREEN, lw=1.0, ls=(0, (4, 2)), zorder=2))
    ray = np.stack([data["m_u"], data["m_cfg"]])
    ray = ray + np.outer([-0.05, 0.05], ray[1] - ray[0])
    panel.plot(*ray.T, color=style.GREY, lw=0.8, ls=(0, (4, 2)), zorder=2)
    for name, colour in _POINTS.items():
        ends = tuple(data["x"]), tuple(data[name])
        arrow = FancyArrowPatch(*ends, arrowstyle="-|>", mutation_scale=7, shrinkA=3, shrinkB=2.5)
        arrow.set(color=colour, linewidth=1.1, zorder=3)
        panel.add_patch(arrow)
        panel.plot(*data[name], "o", ms=4.6, color=colour, mec="white", mew=0.7, zorder=4)
    panel.plot(*data["x"], "o", ms=5, color=style.INK, mec="white", mew=0.7, zorder=4)
    panel.plot(0, 0, "+", ms=6, color=style.INK, mew=0.9, zorder=3)
    _label_points(panel, data)
    panel.set_aspect("equal")
    panel.set_xlim(centre[0] - half, centre[0] + half)
    panel.set_ylim(centre[1] - half, centre[1] + half)
    panel.locator_params(nbins=5)
    panel.set_title(
        rf"$A$ = {data['members']}, $t={float(data['t']):g}$, $\lambda={float(data['scale']):g}$, "
        rf"$\Gamma={float(data['gamma']):g}$"
    )
    bar = figure.colorbar(image, ax=panel, ticks=[0, 0.5, 1], shrink=0.75, aspect=24, pad=0.02)
    bar.set_label(r"$p(A\mid x_t)$")
    bar.outline.set_linewidth(0.4)
    return figure


def _label_points(panel: Axes, data: dict[str, read.Array]) -> None:
    names = {"m_u": r"$m^{\rm u}$", "m_c": r"$m^{\rm c}$", "m": r"$m^{\rm PMC}$", "m_cfg": r"$m^{\lambda}$"}
    along = data["m_cfg"] - data["m_u"]
    across = np.array([along[1], -along[0]]) / np.hypot(*along)
    across *= np.sign(across @ (data["m_c"] - data["x"]))  # away from the arrows
    away = data["x"] - data["m_c"]
    radius = float(data["gamma"]) * np.hypot(*data["m_c"])
    turn = np.arctan2(data["m"][1], data["m"][0]) + 0.75 * np.sign(
        data["m_c"][0] * along[1] - data["m_c"][1] * along[0]
    )
    texts = [(text, data[name], 6 * across, _POINTS[name], "left" if across[0] > 0 else "right")
             for name, text in names.items()]  # fmt: skip
    texts += [
        (r"$x_t$", data["x"], 10 * away / np.hypot(*away), style.INK, "center"),
        ("0", np.zeros(2), np.array([-7, -2]), style.INK, "center"),
        (r"$\Vert m\Vert=\Gamma\,\Vert m^{\rm c}\Vert$", radius * np.array([np.cos(turn), np.sin(turn)]),
         -6 * np.array([np.cos(turn), np.sin(turn)]), style.GREEN, "right" if np.cos(turn) > 0 else "left"),
    ]  # fmt: skip
    for text, place, offset, colour, side in texts:
        at = (float(place[0]), float(place[1]))
        shown = panel.annotate(text, at, xytext=offset, textcoords="offset points", color=colour, zorder=5)
        shown.set(ha=side, va="center", fontsize=8.5)
        shown.set_path_effects([withStroke(linewidth=1.8, foreground="#FBEBCB")])


def trajectories(folder: Path) -> Figure:
    """Paths from noise to data with the posterior means they follow; the same noise in a column."""
    data = read.arrays(folder, "trajectories")
    figure, axes = style.panels(3, 3, style.PAGE, style.PAGE * 1.02, sharex=True, sharey=True)
    for i, guidance in enumerate(read.GUIDANCE):
        colour = style.GUIDANCE[guidance]
        for j, members in enumerate(read.SCENES):
            panel, x = axes[i, j], data[f"{members} {guidance} x"]
            m = data[f"{members} {guidance} m"]
            panel.add_patch(Circle((0, 0), 1, fill=False, ec=style.PALE, lw=0.7, zorder=0))
            panel.plot(x[..., 0], x[..., 1], color=style.PALE, lw=0.4, alpha=0.6, zorder=1)
            panel.plot(*x[-1].T, "o", ms=2, color=style.GREY, mew=0, zorder=2)
            for path in _spread_out(x[0], 4):
                panel.plot(*x[:, path].T, color=style.INK, lw=0.9, zorder=3)
                panel.plot(*x[0, path], "o", ms=3, mfc="white", mec=style.INK, mew=0.8, zorder=4)
                panel.plot(
                    *data[f"{members} {guidance} m_u"][:, path].T, color=style.GREY, lw=0.8, ls=":", zorder=4
                )
                panel.plot(*m[:, path].T, color=colour, lw=1.5, zorder=5)
                panel.plot(*m[::5, path].T, "o", ms=3.6, color=colour, mec="white", mew=0.4, zorder=5)
            panel.set_aspect("equal")
            panel.set(xlim=(-1.75, 1.95), ylim=(-1.75, 1.95))  # the means; a few starts lie outside
            panel.locator_params(nbins=5)
            if i == 0:
                panel.set_title(f"$A$ = {members}")
            if j == 0:
                panel.set_ylabel(guidance, color=colour)
    keys = [
        Line2D([], [], color=style.INK, lw=0.9, marker="o", mfc="white", ms=3, label=r"state $x_t$"),
        Line2D([], [], color=style.PALE, lw=0.8, label="other paths"),
        Line2D([], [], color=style.GREY, lw=0.8, ls=":", label=r"unconditional mean $m_t^{\rm u}$"),
        *(Line2D([], [], color=c, lw=1.0, marker="o", ms=2.2, label=f"mean $m_t$ it follows, {name}")
          for name, c in style.GUIDANCE.items()),
    ]  # fmt: skip
    figure.legend(handles=keys, loc="outside lower center", ncols=3)
    return figure


def _spread_out(start: read.Array, count: int) -> list[int]:
    """Paths whose noise lies in `count` different directions, at a middling distance."""
    angle, length = np.arctan2(start[:, 1], start[:, 0]), np.hypot(*start.T)
    wanted = np.pi / 4 + 2 * np.pi * np.arange(count) / count
    turn = np.abs((angle[None] - wanted[:, None] + np.pi) % (2 * np.pi) - np.pi)
    return [int(i) for i in np.argmin(turn + np.abs(length - 1.6)[None], axis=1)]
