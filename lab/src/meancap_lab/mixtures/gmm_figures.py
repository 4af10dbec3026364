"""The figures of a `reproduce gmm` folder, drawn from its files alone, and the functions that read these.

overview, landscape, trajectories   the mechanism: the cap at one state, log p(A | x), paths and their means
endpoints, marginals                the results: samples of the nine settings
meter, contraction                  numbers: guidance over time, what Euler's steps take away
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.colors import FuncNorm, LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Circle, FancyArrowPatch, Patch, Rectangle
from matplotlib.patheffects import withStroke

from ..report import style
from ..runs.folder import Ledger, read_npz

Row = dict[str, str]
_Array = npt.NDArray[Any]

DIGITS = {"occupancy_percent": 2, "variance_ratio": 3, "tv": 5, "mean_error": 5}  # digits that are shown
SCENES = ("{0}", "{0,1}", "{0,1,2}")
_WIDE = 2.4477 * 0.03  # radius of the circle that holds 95 % of a target branch
_LOWEST = -12.0  # of log p(A | x); what lies below is drawn alike
_LEVELS = [-9, -6, -3, -1.5, -1, -0.5, -0.1]
_MEANS = {"m_u": style.GREY, "m_c": style.BLUE, "m": style.GREEN, "m_cfg": style.VERMILION}
_METER = {
    "scale": r"effective scale",
    "ratio": r"ratio $\Vert m\Vert/\Vert m^{\rm c}\Vert$",
    "gap": r"gap $\Vert m^{\rm c}-m^{\rm u}\Vert$",
    "active": "share capped",
}


def read_run(folder: Path) -> dict[str, Any]:
    """run.json of a finished run."""
    content = Ledger(folder, "gmm").read()
    if content is None or content["finished"] is None:
        raise ValueError(f"{folder} holds no finished `reproduce gmm` run; rerun its command to finish it")
    return content


def read_table(folder: Path) -> dict[tuple[str, str], Row]:
    """table.csv by members and guidance."""
    return {(row["members"], row["guidance"]): row for row in _rows(folder / "table.csv")}


def read_limits(folder: Path) -> dict[tuple[str, str, str], list[Row]]:
    """limits.csv by members, guidance and metric; one entry per position."""
    groups: dict[tuple[str, str, str], list[Row]] = {}
    for row in _rows(folder / "limits.csv"):
        groups.setdefault((row["members"], row["guidance"], row["metric"]), []).append(row)
    return groups


def cell_numbers(cell: str) -> list[float]:
    """The values of one cell of the table."""
    return [float(value) for value in cell.split("/")]


def cell_text(cell: str, digits: int, sign: str = "") -> str:
    """The values of one cell of the table, rounded for readers."""
    # + 0.0 turns a rounded -0.0 into 0.0
    values = (f"{round(v, digits) + 0.0:{sign}.{digits}f}" for v in cell_numbers(cell))
    return " / ".join(values).replace("-", "−")


def _rows(path: Path) -> list[Row]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def _landscape(folder: Path) -> Figure:
    """log p(A | x) at five times: the posterior rises outward without end, and peaks on the middle ray."""
    data = read_npz(folder / "data" / "landscape.npz")
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
    ticks = [-12, -6, -3, -1, -0.1, 0]
    bar = figure.colorbar(image, ax=list(axes[0]), ticks=ticks, pad=0.01, aspect=18, shrink=0.9)
    bar.ax.set_yticklabels(["≤ −12", "−6", "−3", "−1", "−0.1", "0"])
    bar.set_label(r"$\log\,p(A\mid x_t)$")
    bar.outline.set_linewidth(0.4)
    return figure


def _endpoints(folder: Path) -> Figure:
    """Samples at t = 1, all nine settings, with the numbers of the table in each panel."""
    data, table = read_npz(folder / "data" / "endpoints.npz"), read_table(folder)
    figure, axes = style.panels(3, 3, style.PAGE, style.PAGE * 1.12, sharex=True, sharey=True)
    for panel, members, guidance, colour in _nine(axes, table):
        row, means = table[members, guidance], data["means"]
        given = [int(k) for k in members.strip("{}").split(",")]
        x = data[f"{members} {guidance} samples"]
        others = np.delete(means, given, axis=0)
        panel.plot(*others.T, "o", ms=3, mfc="white", mec=style.GREY, mew=0.7, zorder=1)
        _points(panel, x, colour, 0.9)
        style.square(panel, -0.5, 1.3)
        panel.set_ylim(-0.5, 1.62)  # room for the numbers above the circle
        _zoom(panel, x, means[0], colour)
        panel.plot(*means[given].T, "D", ms=3, mfc="none", mec=style.INK, mew=0.8, zorder=4)
        numbers = (
            f"occupancy {cell_text(row['occupancy_percent'], 1)} %\n"
            f"variance ratio {cell_text(row['variance_ratio'], 3)}\n"
            f"TV {cell_text(row['tv'], 4)}\nmean error {cell_text(row['mean_error'], 4)}"
        )
        panel.text(0.98, 0.99, numbers, transform=panel.transAxes, ha="right", va="top", fontsize=6.2)
    return figure


def _nine(axes: Any, table: dict[tuple[str, str], Row]) -> Iterator[tuple[Axes, str, str, str]]:
    """The nine panels with members, guidance and colour; each has the unit circle and its names."""
    for i, (guidance, colour) in enumerate(style.GUIDANCE.items()):
        for j, members in enumerate(SCENES):
            panel = axes[i, j]
            panel.add_patch(Circle((0, 0), 1, fill=False, ec=style.PALE, lw=0.7, zorder=0))
            if i == 0:
                panel.set_title(f"$A$ = {members}")
            if j == 0:
                panel.set_ylabel(_setting_name(table[members, guidance]), color=colour)
            yield panel, members, guidance, colour


def _marginals(folder: Path) -> Figure:
    """Histograms of both coordinates, 101 bins, against the exact marginals of the target."""
    data, table = read_npz(folder / "data" / "endpoints.npz"), read_table(folder)
    figure, axes = style.panels(3, 6, style.PAGE, style.PAGE * 0.55)
    for j, members in enumerate(SCENES):
        for axis in (0, 1):
            column = axes[:, 2 * j + axis]
            edges, target = data[f"{members} edges {axis}"], data[f"{members} target {axis}"]
            per_bin = int(data["samples"]) * np.diff(edges)
            densities = [data[f"{members} {name} histogram {axis}"] / per_bin for name in style.GUIDANCE]
            tallest = max(target.max(), *(density.max() for density in densities))
            column[0].set_title(f"{members}: $x_{axis + 1}$")
            for panel, (guidance, colour), density in zip(
                column, style.GUIDANCE.items(), densities, strict=True
            ):
                panel.stairs(density, edges, fill=True, color=colour, alpha=0.6, lw=0)
                panel.plot(data[f"{members} fine {axis}"], target, color=style.INK, lw=0.8)
                panel.set_xlim(edges[0], edges[-1])
                panel.set_ylim(0, 1.04 * tallest)  # one scale in a column, so that heights compare
                panel.set_yticks([])
                panel.spines["left"].set_visible(False)
                panel.locator_params(axis="x", nbins=3)
                if panel is not column[-1]:
                    panel.set_xticklabels([])
                if j == axis == 0:
                    panel.set_ylabel(_setting_name(table[members, guidance]), color=colour)
    keys: list[Any] = [Line2D([], [], color=style.INK, lw=0.8, label="exact target")]
    keys += [Patch(color=c, alpha=0.6, lw=0, label=f"{name} samples") for name, c in style.GUIDANCE.items()]
    figure.legend(handles=keys, loc="outside lower center", ncols=4)
    return figure


def _setting_name(row: Row) -> str:
    gamma = rf", $\Gamma={row['gamma']}$" if row["gamma"] else ""
    return f"{row['guidance']}\n" + rf"$\lambda={row['scale']}${gamma}"


def _points(panel: Axes, x: _Array, colour: str, size: float) -> None:
    panel.plot(*x.T, ".", ms=size, mew=0, alpha=0.55, color=colour, rasterized=True, zorder=2)


def _zoom(panel: Axes, x: _Array, centre: _Array, colour: str) -> None:
    """Component 0 enlarged, where the panel is empty, with the circle that holds 95 % of the target."""
    half = 0.125
    inset = panel.inset_axes((0.04, 0.04, 0.46, 0.46))
    _points(inset, x, colour, 2.0)
    inset.add_patch(Circle(tuple(centre), _WIDE, fill=False, ec=style.INK, lw=0.8, ls=(0, (3, 2)), zorder=3))
    inset.plot(*centre, "D", ms=3, mfc="none", mec=style.INK, mew=0.8, zorder=4)
    inset.set(aspect="equal", xticks=[], yticks=[])
    inset.set_xlim(centre[0] - half, centre[0] + half)
    inset.set_ylim(centre[1] - half, centre[1] + half)
    for side in ("top", "right"):
        inset.spines[side].set_visible(True)
    corner = (centre[0] - half, centre[1] - half)
    panel.add_patch(Rectangle(corner, 2 * half, 2 * half, fill=False, ec=style.GREY, lw=0.6, zorder=3))


def _overview(folder: Path) -> Figure:
    """One real state: both posterior means, and where fixed CFG and the cap put the guided one."""
    data = read_npz(folder / "data" / "overview.npz")
    figure, axes = style.panels(1, 1, style.COLUMN, style.COLUMN * 0.86)
    panel, grid = axes[0, 0], data["axis"]
    every = np.stack([np.zeros(2), data["x"], *(data[name] for name in _MEANS)])
    centre, half = (every.min(0) + every.max(0)) / 2, 0.65 * float(np.ptp(every, axis=0).max())
    extent = (grid[0], grid[-1], grid[0], grid[-1])
    shade = LinearSegmentedColormap.from_list("amber", ["white", "#F6CF86"])
    posterior = np.exp(data["log_posterior"])
    image = panel.imshow(posterior, origin="lower", extent=extent, cmap=shade, vmin=0, vmax=1, zorder=0)
    radius = float(data["gamma"]) * float(np.hypot(*data["m_c"]))
    panel.add_patch(Circle((0, 0), radius, fill=False, ec=style.GREEN, lw=1.0, ls=(0, (4, 2)), zorder=2))
    ray = np.stack([data["m_u"], data["m_cfg"]])
    ray = ray + np.outer([-0.05, 0.05], ray[1] - ray[0])
    panel.plot(*ray.T, color=style.GREY, lw=0.8, ls=(0, (4, 2)), zorder=2)
    for name, colour in _MEANS.items():
        ends = tuple(data["x"]), tuple(data[name])
        arrow = FancyArrowPatch(*ends, arrowstyle="-|>", mutation_scale=7, shrinkA=3, shrinkB=2.5)
        arrow.set(color=colour, linewidth=1.1, zorder=3)
        panel.add_patch(arrow)
        panel.plot(*data[name], "o", ms=4.6, color=colour, mec="white", mew=0.7, zorder=4)
    panel.plot(*data["x"], "o", ms=5, color=style.INK, mec="white", mew=0.7, zorder=4)
    panel.plot(0, 0, "+", ms=6, color=style.INK, mew=0.9, zorder=3)
    _label_points(panel, data, radius)
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


def _label_points(panel: Axes, data: dict[str, _Array], radius: float) -> None:
    names = {"m_u": r"$m^{\rm u}$", "m_c": r"$m^{\rm c}$", "m": r"$m^{\rm PMC}$", "m_cfg": r"$m^{\lambda}$"}
    along, away, m_c = data["m_cfg"] - data["m_u"], data["x"] - data["m_c"], data["m_c"]
    across = np.array([along[1], -along[0]]) / np.hypot(*along)
    across *= np.sign(across @ (m_c - data["x"]))  # away from the arrows
    side = np.sign(m_c[0] * along[1] - m_c[1] * along[0])
    turn = np.arctan2(data["m"][1], data["m"][0]) + 0.75 * side
    outward = np.array([np.cos(turn), np.sin(turn)])
    beside = "left" if across[0] > 0 else "right"
    texts = [(text, data[name], 6 * across, _MEANS[name], beside) for name, text in names.items()]
    texts += [
        (r"$x_t$", data["x"], 10 * away / np.hypot(*away), style.INK, "center"),
        ("0", np.zeros(2), np.array([-7, -2]), style.INK, "center"),
    ]
    bound = r"$\Vert m\Vert=\Gamma\,\Vert m^{\rm c}\Vert$"
    beside = "right" if outward[0] > 0 else "left"
    texts.append((bound, radius * outward, -6 * outward, style.GREEN, beside))
    for text, place, offset, colour, beside in texts:
        at = (float(place[0]), float(place[1]))
        shown = panel.annotate(text, at, xytext=offset, textcoords="offset points", color=colour, zorder=5)
        shown.set(ha=beside, va="center", fontsize=8.5)
        shown.set_path_effects([withStroke(linewidth=1.8, foreground="#FBEBCB")])


def _meter(folder: Path) -> Figure:
    """What guidance did over time, capped and at the fixed scale: mean, middle half, 90 % of the samples."""
    figure, axes = style.panels(4, 3, style.PAGE, style.PAGE * 0.92, sharex=True, sharey="row")
    rows, table = _rows(folder / "data" / "meter.csv"), read_table(folder)
    colours = {name: style.GUIDANCE[name] for name in ("Fixed CFG", "PMC-CFG")}
    for j, members in enumerate(SCENES):
        axes[0, j].set_title(f"$A$ = {members}")
        axes[-1, j].set_xlabel("$t$")
        for i, (quantity, label) in enumerate(_METER.items()):
            panel = axes[i, j]
            for guidance, colour in colours.items():
                key = (members, guidance, quantity)
                points = [r for r in rows if (r["members"], r["guidance"], r["quantity"]) == key]
                columns = ("t", "mean", "q05", "q95", "q25", "q75")
                t, mean, *bands = (np.array([float(r[k]) for r in points]) for k in columns)
                if quantity != "active":
                    panel.fill_between(t, bands[0], bands[1], color=colour, alpha=0.15, lw=0)
                    panel.fill_between(t, bands[2], bands[3], color=colour, alpha=0.25, lw=0)
                panel.plot(t, mean, color=colour)
            if quantity == "ratio":
                gamma = float(table[members, "PMC-CFG"]["gamma"])
                panel.axhline(gamma, color=style.INK, lw=0.6, ls=":")
            panel.set_xlim(0, 1)
            if j == 0:
                panel.set_ylabel(label)
    axes[-1, 0].set_ylim(-0.03, 1.03)
    keys = [Line2D([], [], color=c, label=f"{g}: mean, middle 50 % and 90 %") for g, c in colours.items()]
    keys.append(Line2D([], [], color=style.INK, lw=0.6, ls=":", label=r"$\Gamma$"))
    figure.legend(handles=keys, loc="outside lower center", ncols=3)
    return figure


def _trajectories(folder: Path) -> Figure:
    """Paths from noise to data with the posterior means they follow; the same noise in a column."""
    data, table = read_npz(folder / "data" / "trajectories.npz"), read_table(folder)
    figure, axes = style.panels(3, 3, style.PAGE, style.PAGE * 1.02, sharex=True, sharey=True)
    for panel, members, guidance, colour in _nine(axes, table):
        x, m, m_u = (data[f"{members} {guidance} {name}"] for name in ("x", "m", "m_u"))
        panel.plot(x[..., 0], x[..., 1], color=style.PALE, lw=0.4, alpha=0.6, zorder=1)
        panel.plot(*x[-1].T, "o", ms=2, color=style.GREY, mew=0, zorder=2)
        for path in _spread_out(x[0], 4):
            panel.plot(*x[:, path].T, color=style.INK, lw=0.9, zorder=3)
            panel.plot(*x[0, path], "o", ms=3, mfc="white", mec=style.INK, mew=0.8, zorder=4)
            panel.plot(*m_u[:, path].T, color=style.GREY, lw=0.8, ls=":", zorder=4)
            panel.plot(*m[:, path].T, color=colour, lw=1.5, zorder=5)
            panel.plot(*m[::5, path].T, "o", ms=3.6, color=colour, mec="white", mew=0.4, zorder=5)
        style.square(panel, -1.75, 1.95)  # the means; a few starts lie outside
    keys = [
        Line2D([], [], color=style.INK, lw=0.9, marker="o", mfc="white", ms=3, label=r"state $x_t$"),
        Line2D([], [], color=style.PALE, lw=0.8, label="other paths"),
        Line2D([], [], color=style.GREY, lw=0.8, ls=":", label=r"unconditional mean $m_t^{\rm u}$"),
    ]
    for name, colour in style.GUIDANCE.items():
        label = f"mean $m_t$ it follows, {name}"
        keys.append(Line2D([], [], color=colour, lw=1.0, marker="o", ms=2.2, label=label))
    figure.legend(handles=keys, loc="outside lower center", ncols=3)
    return figure


def _spread_out(start: _Array, count: int) -> list[int]:
    """Paths whose noise lies in `count` different directions, at a middling distance."""
    angle, length = np.arctan2(start[:, 1], start[:, 0]), np.hypot(*start.T)
    wanted = np.pi / 4 + 2 * np.pi * np.arange(count) / count
    turn = np.abs((angle[None] - wanted[:, None] + np.pi) % (2 * np.pi) - np.pi)
    return [int(i) for i in np.argmin(turn + np.abs(length - 1.6)[None], axis=1)]


def _contraction(folder: Path) -> Figure:
    """Left, what Euler alone does to one Gaussian; right, every branch with Euler and without."""
    run, limits, table = read_run(folder), read_limits(folder), read_table(folder)
    figure, axes = style.panels(1, 2, style.PAGE, style.PAGE * 0.44, width_ratios=[1, 1.5])
    left, right = axes[0]
    curve, steps, r_50 = run["euler_curve"], run["steps"], run["finished"]["R_50"]
    left.plot(curve["steps"], curve["variance_ratio"], color=style.BLUE)
    left.plot(steps, r_50, "o", color=style.BLUE, ms=5)
    shown = left.annotate(
        rf"$R_{{50}}={r_50:.3f}$", (steps, r_50), xytext=(6, -7), textcoords="offset points"
    )
    shown.set(va="top", color=style.BLUE)
    left.axhline(1, color=style.INK, lw=0.6, ls=":")
    left.set(xscale="log", xlabel="Euler steps on the uniform grid", ylim=(0, 1.05))
    left.set_ylabel("variance over its exact value")
    left.set_title("one Gaussian, no guidance")
    names, height = [], 0.0
    for members in SCENES:
        for guidance, colour in style.GUIDANCE.items():
            paper = cell_numbers(table[members, guidance]["paper_variance_ratio"])
            for position, row in enumerate(limits[members, guidance, "variance_ratio"]):
                euler, exact = float(row["euler"]), float(row["continuous"])
                right.plot([euler, exact], [-height, -height], color=colour, lw=1, alpha=0.5)
                right.plot(euler, -height, "o", ms=4, color=colour)
                right.plot(exact, -height, "o", ms=4, mfc="white", mec=colour, mew=1.1)
                right.plot(paper[position], -height, "x", ms=4, color=style.INK, mew=0.9)
                names.append((-height, f"{members} branch {position}"))
                height += 1
        height += 0.8
    right.axvline(1, color=style.INK, lw=0.6, ls=":")
    right.set_yticks([y for y, _ in names], [name for _, name in names], fontsize=6)
    right.set(xlabel="variance ratio of a branch", xlim=(0, 1.08))
    right.set_title("the table's branches")
    keys = [
        Line2D([], [], ls="", marker="x", color=style.INK, ms=4, label="paper"),
        Line2D([], [], ls="", marker="o", color=style.GREY, ms=4, label="50 Euler steps, expectation"),
        Line2D([], [], ls="", marker="o", mfc="white", mec=style.GREY, ms=4, label="continuous time"),
        *(Line2D([], [], color=c, label=name) for name, c in style.GUIDANCE.items()),
    ]
    figure.legend(handles=keys, loc="outside lower center", ncols=6)
    return figure


FIGURES: dict[str, Callable[[Path], Figure]] = {
    "landscape": _landscape,
    "endpoints": _endpoints,
    "marginals": _marginals,
    "overview": _overview,
    "meter": _meter,
    "trajectories": _trajectories,
    "contraction": _contraction,
}
