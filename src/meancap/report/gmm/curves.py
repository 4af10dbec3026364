"""Figures of numbers: the guidance meter over time, what Euler's steps take away, and how far the paper's
numbers are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from .. import style
from . import read

_METER = {
    "scale": r"effective scale",
    "ratio": r"ratio $\Vert m\Vert/\Vert m^{\rm c}\Vert$",
    "gap": r"gap $\Vert m^{\rm c}-m^{\rm u}\Vert$",
    "active": "share capped",
}


def meter(folder: Path) -> Figure:
    """What guidance did over time, capped and at the fixed scale: mean, middle half, 90 % of the samples."""
    figure, axes = style.panels(4, 3, style.PAGE, style.PAGE * 0.92, sharex=True, sharey="row")
    rows = read.rows(folder, "data/meter.csv")
    for j, members in enumerate(read.SCENES):
        axes[0, j].set_title(f"$A$ = {members}")
        axes[-1, j].set_xlabel("$t$")
        for i, (quantity, label) in enumerate(_METER.items()):
            panel = axes[i, j]
            for guidance in ("Fixed CFG", "PMC-CFG"):
                points = [
                    r
                    for r in rows
                    if (r["members"], r["guidance"], r["quantity"]) == (members, guidance, quantity)
                ]
                t, mean, *bands = (
                    np.array([float(r[k]) for r in points]) for k in ("t", "mean", "q05", "q95", "q25", "q75")
                )
                colour = style.GUIDANCE[guidance]
                if quantity != "active":
                    panel.fill_between(t, bands[0], bands[1], color=colour, alpha=0.15, lw=0)
                    panel.fill_between(t, bands[2], bands[3], color=colour, alpha=0.25, lw=0)
                panel.plot(t, mean, color=colour)
            if quantity == "ratio":
                panel.axhline(
                    float(read.table(folder)[members, "PMC-CFG"]["gamma"]), color=style.INK, lw=0.6, ls=":"
                )
            panel.set_xlim(0, 1)
            if j == 0:
                panel.set_ylabel(label)
    axes[-1, 0].set_ylim(-0.03, 1.03)
    keys = [Line2D([], [], color=style.GUIDANCE[g], label=f"{g}: mean, middle 50 % and 90 %")
            for g in ("Fixed CFG", "PMC-CFG")]  # fmt: skip
    keys.append(Line2D([], [], color=style.INK, lw=0.6, ls=":", label=r"$\Gamma$"))
    figure.legend(handles=keys, loc="outside lower center", ncols=3)
    return figure


def contraction(folder: Path) -> Figure:
    """Left, what Euler alone does to one Gaussian; right, every branch with Euler and without."""
    run, limits, table = read.run(folder), read.limits(folder), read.table(folder)
    figure, axes = style.panels(1, 2, style.PAGE, style.PAGE * 0.44, width_ratios=[1, 1.5])
    left, right = axes[0]
    curve = run["euler_curve"]
    left.plot(curve["steps"], curve["variance_ratio"], color=style.BLUE)
    left.plot(run["steps"], run["finished"]["R_50"], "o", color=style.BLUE, ms=5)
    left.annotate(rf"$R_{{50}}={run['finished']['R_50']:.3f}$", (run["steps"], run["finished"]["R_50"]),
                  xytext=(6, -7), textcoords="offset points", va="top", color=style.BLUE)  # fmt: skip
    left.axhline(1, color=style.INK, lw=0.6, ls=":")
    left.set(
        xscale="log",
        xlabel="Euler steps on the uniform grid",
        ylabel="variance over its exact value",
        ylim=(0, 1.05),
    )
    left.set_title("one Gaussian, no guidance")
    names, height = [], 0.0
    for members in read.SCENES:
        for guidance in read.GUIDANCE:
            colour, paper = (
                style.GUIDANCE[guidance],
                read.numbers(table[members, guidance]["paper_variance_ratio"]),
            )
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


def agreement(folder: Path) -> Figure:
    """The z-score of every number in the paper's table; dotted lines at 2 and 4."""
    table = read.table(folder)
    figure, axes = style.panels(1, 1, style.COLUMN, 2.0)
    panel, labels = axes[0, 0], ("occupancy", "variance ratio", "TV", "mean error")
    for i, metric in enumerate(read.METRICS):
        values = [
            (guidance, z)
            for (_, guidance), row in table.items()
            for z, sd in zip(read.numbers(row[f"z_{metric}"]), read.numbers(row[f"sd_{metric}"]), strict=True)
            if sd > 0
        ]
        offsets = np.linspace(-0.28, 0.28, len(values))
        for (guidance, z), offset in zip(values, offsets, strict=True):
            panel.plot(z, i + offset, "o", ms=3, color=style.GUIDANCE[guidance], mew=0)
    for z in (-4, -2, 2, 4):
        panel.axvline(z, color=style.GREY, lw=0.6, ls=":")
    panel.axvline(0, color=style.INK, lw=0.6)
    panel.set_yticks(range(len(labels)), labels)
    panel.set(xlim=(-4.6, 4.6), ylim=(3.6, -0.6), xlabel="paper minus ours, in standard deviations")
    keys = [Line2D([], [], ls="", marker="o", ms=3, color=c, label=g) for g, c in style.GUIDANCE.items()]
    figure.legend(handles=keys, loc="outside lower center", ncols=3)
    return figure
