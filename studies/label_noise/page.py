"""The page of the study of wrong labels: tables and figures from readings.csv, ratios.csv and scale files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor

from meancap.report.style import AMBER, BLUE, GREEN, GREY, PAGE, VERMILION, panels
from meancap.runs.calibrate import load_scale
from studies.common import interval, markdown, read_csv
from studies.feedback.study import draw_scales


def parts(folder: Path) -> dict[str, str]:
    """The marked parts of the page."""
    rows = read_csv(folder / "readings.csv")
    table = [
        [f"{float(r['wrong labels']):.0%}", r["arm"], r["steps"], interval(r, "accuracy"),
         "" if r["arm"] == "CFG" else interval(r, "accuracy less CFG", "+"), interval(r, "FD"),
         "" if r["arm"] == "CFG" else interval(r, "FD less CFG", "+"), f"{float(r['recall']):.2f}",
         f"{float(r['diversity']):.1f}"]
        for r in rows
        if float(r["wrong labels"]) == 0.3 or r["arm"] in ("unguided", "CFG")
    ]  # fmt: skip
    head = ["wrong", "arm", "steps", "accuracy", "less CFG", "FD-fashion", "less CFG", "recall", "diversity"]
    ratios = [
        [r["arm"], f"{float(r['AUC']):.2f}", f"{float(r['hits']):.1f}", f"{float(r['misses']):.1f}",
         f"{float(r['correlation']):.2f}" if r["correlation"] else ""]
        for r in read_csv(folder / "ratios.csv")
        if float(r["wrong labels"]) == 0.3
    ]  # fmt: skip
    told = ["30 % wrong", "AUC", "mean log R, hits", "misses", "correlation"]
    return {"readings": markdown(head, table), "ratios": markdown(told, ratios)}


def ratio_row(arm: str, hits: Tensor, misses: Tensor) -> dict[str, Any]:
    """How well log R tells hits from misses."""
    return {"arm": arm, "AUC": auc(hits, misses), "hits": float(hits.mean()), "misses": float(misses.mean())}


def auc(positive: Tensor, negative: Tensor) -> float:
    """The chance that a positive has the higher value, ties counting half."""
    if not len(positive) or not len(negative):
        return float("nan")
    apart = positive[:, None] - negative[None]
    return float((apart > 0).double().mean() + (apart == 0).double().mean() / 2)


def figures(folder: Path) -> dict[str, Callable[[], Any]]:
    """What can be drawn of a folder."""
    scales = sorted(folder.glob("scale-*.json"), key=lambda path: float(path.stem.partition("-")[2]))
    drawings: dict[str, Callable[[], Any]] = {"arms": lambda: draw_arms(folder)}
    if scales:
        drawings["scales"] = lambda: draw_scales([load_scale(path) for path in scales])
    return drawings


def draw_arms(folder: Path):
    """FD-fashion over accuracy, one point with its intervals for each arm of the noisiest model."""
    every = read_csv(folder / "readings.csv")
    share = max(float(r["wrong labels"]) for r in every)
    rows = [r for r in every if float(r["wrong labels"]) == share]
    figure, axes = panels(1, 2, PAGE, 2.9)
    place = axes[0, 0]
    for number, r in enumerate(rows):
        point = float(r["accuracy"]), float(r["FD"])
        place.errorbar(
            *point, xerr=_bars(r, "accuracy"), yerr=_bars(r, "FD"), color=_colour(r["arm"]), marker="o",
            markersize=3, linewidth=0.7,
        )  # fmt: skip
        place.annotate(str(number + 1), point, (3, 3), textcoords="offset points", fontsize=6)
    place.set_xlabel("accuracy against the class asked for")
    place.set_ylabel("FD-fashion")
    place.set_title(f"{share:.0%} of labels wrong")
    axes[0, 1].axis("off")
    axes[0, 1].text(
        0, 1, "\n".join(f"{k + 1}  {r['arm']}" for k, r in enumerate(rows)), va="top", fontsize=6.5
    )
    return figure


def _bars(row: dict[str, str], name: str) -> list[list[float]]:
    value, low, high = (float(row[f"{name}{end}"]) for end in ("", " from", " to"))
    return [[value - low], [high - value]]


def _colour(arm: str) -> str:
    if arm.startswith("feedback"):
        return BLUE
    if arm.startswith("CFG"):
        return VERMILION
    return {"scale from data": GREEN, "FBG, ancestral": AMBER}.get(arm, GREY)
