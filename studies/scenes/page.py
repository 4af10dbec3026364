"""The page of the scenes study: sentences and tables from what was seen on every picture, and its figures."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from matplotlib.ticker import NullLocator
from torch import Tensor

from meancap.metrics.score import bootstrap
from meancap.report.style import AMBER, BLUE, GREEN, GREY, INK, PAGE, PURPLE, SKY, VERMILION, YELLOW, panels
from studies.common import markdown, read_csv
from studies.scene_measures import paired_interval, share_interval

from .compare import CLAUSES, SceneReading, read_readings

__all__ = ["CLAUSES", "draw_curves", "draw_sheet", "parts"]

CAPS = ("Cap 1.05", "Cap 1.1", "Displacement 1.15", "Anchored 1.1", "Calibrated")
MODELS = {"scenes": "right captions", "wrong": "a fifth of the captions wrong"}
SHOWN = ("CFG 2.0", "CFG 4.0", "CFG 15.0", "APG 15.0", *(f"{cap} 15.0" for cap in CAPS), "Cap 1.1 50.0",
         "Feedback known 1.25", "Feedback 4.0")  # fmt: skip
COLOURS = {
    "CFG": VERMILION, "APG": AMBER, "C2FG": PURPLE, "Cap 1.05": SKY, "Cap 1.1": GREEN,
    "Displacement 1.15": BLUE, "Anchored 1.1": INK, "Calibrated": YELLOW,
}  # fmt: skip
# Column of the table, title, and whether the row of renders says what is best.
PANELS = (
    ("right all", "whole prompt right", False),
    ("drawn", "both objects drawn", False),
    ("saturation", "saturation", True),
    ("clipped", "clipped values", True),
    ("tv", "distance of open attributes from the law", True),
    ("FD", "FD to renders", False),
)


def parts(folder: Path) -> dict[str, str]:
    """The marked parts of the page."""
    asked = json.loads((folder / "study.json").read_text(encoding="utf-8"))["asked"]
    pilots = json.loads((folder / "pilots.json").read_text(encoding="utf-8"))
    readings = {(r.part, r.label, r.scale): r for r in read_readings(folder / "readings.csv")}
    table = read_csv(folder / "table.csv")
    return {
        "about": about(asked, pilots, next(iter(readings.values()))),
        "answer": "\n".join(answer(readings, part, pilots["best"][part]) for part in MODELS),
        "readings": results(readings, table),
        "negative": negative(readings),
    }


Readings = dict[tuple[str, str, float], SceneReading]


def about(asked: dict[str, Any], pilots: dict[str, Any], r: SceneReading) -> str:
    """The protocol in numbers."""
    radii = ", ".join(f"{radius:g} at λ = {scale}" for scale, radius in pilots["radii"].items())
    best = pilots["best"]
    return (
        f"{r.seeds} seeds × {asked['prompts']} prompts = **{len(r.drawn)} pictures for every rule and "
        f"scale**; {asked['steps']} Euler evaluations, shift 3, float32. A pilot with other prompts and "
        f"noise chose APG's radius ({radii}), the temperature of feedback ({pilots['temperature']:g}) and "
        f"the best scale of fixed CFG ({best['scenes']:g}; with wrong captions {best['wrong']:g})."
    )


def answer(readings: Readings, part: str, best: float) -> str:
    """The five caps together at large scales, against fixed guidance at its best scale and at λ = 4."""
    sentences = [f"- **{MODELS[part].capitalize()}.**"]
    for scale in dict.fromkeys((best, 4.0)):
        fixed = readings[part, "CFG", scale]
        which = ", the pilot's choice," if scale == best else ""
        hits, n = int(fixed.right["all"].sum()), len(fixed.drawn)
        sentences.append(
            f"Fixed CFG at λ = {scale:g}{which} has {hits} of {n} prompts wholly right; against it"
        )
        sentences.append(" and ".join(_caps_less(readings, part, at, fixed) for at in (15.0, 50.0)) + ".")
    fixed = readings[part, "CFG", best]
    worse = []
    for label in CAPS:
        for at in (15.0, 50.0):
            mine, other = readings[part, label, at].right["all"], fixed.right["all"]
            gained, lost = int((mine & ~other).sum()), int((other & ~mine).sum())
            if paired_interval(gained, lost, len(mine))[1] < 0:
                worse.append(f"{label} at λ = {at:g}")
    alone = f"worse are {', '.join(worse)}" if worse else "none is worse"
    return " ".join([*sentences, f"One by one, by their intervals against the first, {alone}."])


def _caps_less(readings: Readings, part: str, scale: float, fixed: SceneReading) -> str:
    caps = torch.stack([readings[part, label, scale].right["all"].double() for label in CAPS])
    each = caps.mean(0) - fixed.right["all"].double()
    low, high = bootstrap(each)
    lost, gained = float((-each).clamp(min=0).mean()), float(each.clamp(min=0).mean())
    return (
        f"five caps at λ = {scale:g} lose {lost:.1%} and gain {gained:.1%}, "
        f"{float(each.mean()):+.3f} [{low:+.3f}, {high:+.3f}]"
    )


def results(readings: Readings, table: Sequence[dict[str, str]]) -> str:
    """The rows of both models that the page shows; table.csv has the others."""
    rows = []
    for row in table:
        part, label = row["part"], f"{row['method']} {row['gamma']}".strip()
        if part not in MODELS or (
            row["scale"] and f"{label} {row['scale']}" not in (*SHOWN, "Conditional 1.0")
        ):
            continue
        numbers = [f"{float(row[k]):.2f}" for k in ("saturation", "clipped")]
        numbers.append(f"{float(row['tv']):.2f} ± {1.96 * float(row['tv error']):.2f}")
        if row["method"] == "Truth":
            shares = ["–", *(f"{float(row[k]):.2f}" for k in ("right all", "drawn"))]
        else:
            r = readings[part, label, float(row["scale"])]
            shares = [f"{r.used:.2f}", _share(r.right["all"]), _share(r.drawn)]
        name = {"Truth": "renders", "Conditional": "unguided"}.get(row["method"], label)
        scale = f"{float(row['scale']):g}" if row["scale"] else "–"
        rows.append([{"scenes": "right", "wrong": "wrong"}[part], name, scale, *shares, *numbers])
    head = ["captions", "rule", "λ", "scale used", "right", "drawn", "saturation", "clipped", "tv"]
    return markdown(head, rows)


def negative(readings: Readings) -> str:
    """How many pictures show the colour that must not be there."""

    def share(label: str, scale: float) -> float:
        seen = readings["negative", label, scale].violated
        assert seen is not None
        return float(seen.double().mean())

    def caps(scale: float) -> str:
        shares = sorted(share(label, scale) for label in CAPS)
        return f"{shares[0]:.0%} to {shares[-1]:.0%}"

    return (
        f"A forbidden colour is on {share('Conditional', 1.0):.0%} of the pictures without guidance, on "
        f"{share('CFG', 4.0):.0%} with fixed CFG at λ = 4 and {share('CFG', 15.0):.0%} at λ = 15, on "
        f"{caps(4.0)} with caps at λ = 4 and {caps(15.0)} at λ = 15."
    )


def _share(hits: Tensor) -> str:
    low, high = share_interval(int(hits.sum()), len(hits))
    return f"{float(hits.double().mean()):.2f} [{low:.2f}, {high:.2f}]"


def draw_curves(folder: Path, part: str = "scenes"):
    """Six columns of the table over the scale; dotted the unguided run, dashed the renders."""
    rows = [r for r in read_csv(folder / "table.csv") if r["part"] == part]
    figure, axes = panels(2, 3, PAGE, 3.9)
    ticks = sorted({float(r["scale"]) for r in rows if r["method"] not in ("Truth", "Conditional")})
    for place, (column, title, truth) in zip(axes.flat, PANELS, strict=True):
        _draw_panel(place, [r for r in rows if r.get(column)], column, truth)
        place.set_title(title)
        place.set_xscale("log")
        place.set_xticks(ticks, [f"{t:g}" for t in ticks])
        place.xaxis.set_minor_locator(NullLocator())
        place.set_xlabel("scale λ")
    handles, labels = axes[0, 2].get_legend_handles_labels()  # a panel that has the renders' line as well
    figure.legend(handles, labels, loc="outside lower center", ncols=5)
    return figure


def _draw_panel(place: Any, rows: Sequence[dict[str, str]], column: str, truth: bool) -> None:
    lines: dict[str, list[tuple[float, float]]] = {}
    for r in rows:
        value = float(r[column])
        if r["method"] == "Conditional":
            place.axhline(value, color=GREY, linestyle=":", linewidth=1, label="λ = 1")
        elif r["method"] != "Truth":
            lines.setdefault(f"{r['method']} {r['gamma']}".strip(), []).append((float(r["scale"]), value))
        elif truth:
            place.axhline(value, color=GREY, linestyle="--", linewidth=1, label="renders")
    for label, points in lines.items():
        colour = COLOURS.get(label, GREY)
        place.plot(*zip(*sorted(points), strict=True), "o-", markersize=2.5, color=colour, label=label)


def draw_sheet(rows: Sequence[tuple[str, Tensor]], prompts: Sequence[str], scale: float, count: int = 8):
    """The first prompts of a seed: one column each, one row per rule, at one scale."""
    figure, axes = panels(len(rows), count, PAGE, 0.75 * len(rows) + 0.6)
    for number, (line, (name, pictures)) in enumerate(zip(axes, rows, strict=True)):
        for k, place in enumerate(line):
            place.imshow(pictures[k].permute(1, 2, 0), interpolation="nearest")
            place.set_xticks([])
            place.set_yticks([])
            if number == 0:
                words = prompts[k].split()
                broken = "\n".join(" ".join(words[i : i + 3]) for i in range(0, len(words), 3))
                place.set_title(broken, fontsize=5)
        line[0].set_ylabel(name, fontsize=5)
    figure.suptitle(f"λ = {scale:g}; the first row is λ = 1", fontsize=7)
    return figure
