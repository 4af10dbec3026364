"""The study of wrong labels in pictures: what each arm reaches, and whether log R tells a hit from a miss."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor

from ..runs.cell_folder import CellFolder
from ..runs.label_noise import Arm, LabelNoiseStudy, arms, joined_cells
from ..runs.learned_scale import load_scale
from .scale_curve import scale_curve
from .style import AMBER, BLUE, GREEN, GREY, PAGE, VERMILION, panels
from .sweep import read_table

FOLLOWED = ("unguided, ancestral", "feedback, known π, ancestral", "feedback, re-noised R")


def figures(out: Path, study: LabelNoiseStudy, seeds: Sequence[int]) -> dict[str, Figure]:
    """Every figure of the study, by name."""
    scales = sorted(out.glob("scale-*.json"), key=lambda path: float(path.stem.partition("-")[2]))
    share = float(scales[-1].stem.partition("-")[2])
    return {
        "arms": arms_figure(out, share),
        "ratios": ratios_figure(out, study, seeds, share),
        "scales": scale_curve([load_scale(path) for path in scales]),
    }


def arms_figure(out: Path, share: float) -> Figure:
    """FD-fashion over accuracy, one point with its intervals for each arm of one model."""
    rows = [r for r in read_table(out) if float(r["wrong labels"]) == share]
    figure, axes = panels(1, 2, PAGE, 2.9)
    place = axes[0, 0]
    for number, r in enumerate(rows):
        accuracy, distance = float(r["accuracy"]), float(r["FD"])
        place.errorbar(
            accuracy, distance, xerr=_bars(r, "accuracy"), yerr=_bars(r, "FD"), color=_colour(r["arm"]),
            marker="o", markersize=3, linewidth=0.7,
        )  # fmt: skip
        place.annotate(str(number + 1), (accuracy, distance), (3, 3), textcoords="offset points", fontsize=6)
    place.set_xlabel("accuracy against the class asked for")
    place.set_ylabel("FD-fashion")
    place.set_title(f"{share:.0%} of labels wrong")
    lines = [f"{k + 1}  {r['arm']}" for k, r in enumerate(rows)]
    axes[0, 1].axis("off")
    axes[0, 1].text(0, 1, "\n".join(lines), va="top", fontsize=6.5)
    return figure


def ratios_figure(out: Path, study: LabelNoiseStudy, seeds: Sequence[int], share: float) -> Figure:
    """log R of real pictures under right and wrong labels; then of made ones over the classifier's odds."""
    cells = CellFolder(out)
    figure, axes = panels(1, 1 + len(FOLLOWED), PAGE, 2.1)
    real = cells.load(f"real-{share:g}")
    at = int((real["times"] - 0.4).abs().argmin())
    for name, colour in (("right", GREEN), ("wrong", VERMILION)):
        axes[0, 0].hist(real[name][:, at], bins=15, color=colour, alpha=0.6, label=f"{name} label")
    area = auc(real["right"][:, at], real["wrong"][:, at])
    axes[0, 0].set_title(f"real pictures, t = {float(real['times'][at]):.1f}\nAUC {area:.2f}")
    axes[0, 0].set_xlabel("log R")
    axes[0, 0].legend(fontsize=5.5)
    for place, name in zip(axes[0, 1:], FOLLOWED, strict=True):
        made = joined_cells(cells, share, _arm(out, study, share, name), seeds)
        ratio, odds = followed_ratio(made), log_odds(made["logits"], made["labels"])
        hit = made["logits"].argmax(1) == made["labels"]
        place.plot(odds[hit], ratio[hit], ".", color=GREEN, markersize=1.5)
        place.plot(odds[~hit], ratio[~hit], ".", color=VERMILION, markersize=1.5)
        place.set_title(f"{name.replace(', ', chr(10), 1)}\nr = {correlation(ratio, odds):.2f}", fontsize=6.5)
        place.set_xlabel("log-odds of the class")
    axes[0, 1].set_ylabel("log R at t = 0.4")
    return figure


def ratio_findings(
    out: Path, study: LabelNoiseStudy, seeds: Sequence[int], share: float
) -> list[dict[str, Any]]:
    """How well log R tells right from wrong: on real pictures, and on each arm that follows it."""
    cells = CellFolder(out)
    real = cells.load(f"real-{share:g}")
    rows: list[dict[str, Any]] = []
    for t in (0.2, 0.4, 0.6):
        k = int((real["times"] - t).abs().argmin())
        right, wrong = real["right"][:, k], real["wrong"][:, k]
        row = {"wrong labels": share, "arm": f"real pictures, t = {t}", "AUC": auc(right, wrong)}
        rows.append(row | {"hits": float(right.mean()), "misses": float(wrong.mean())})
    for arm in arms(share, load_scale(out / f"scale-{share:g}.json"), study.calls):
        made = joined_cells(cells, share, arm, seeds)
        if "log_ratio" not in made:
            continue
        ratio, odds = followed_ratio(made), log_odds(made["logits"], made["labels"])
        hit = made["logits"].argmax(1) == made["labels"]
        row = {"wrong labels": share, "arm": arm.name, "AUC": auc(ratio[hit], ratio[~hit])}
        row |= {"hits": float(ratio[hit].mean()), "misses": float(ratio[~hit].mean())}
        rows.append(row | {"correlation": correlation(ratio, odds)})
    return rows


def followed_ratio(made: dict[str, Tensor], t: float = 0.4) -> Tensor:
    """log R at the step nearest to a time; the grids are uniform."""
    ratios = made["log_ratio"]
    return ratios[:, round(t * ratios.shape[1])]


def log_odds(logits: Tensor, labels: Tensor) -> Tensor:
    """log p / (1 - p) of the class asked for, by the classifier; kept within 15."""
    own = logits.gather(1, labels[:, None])[:, 0]
    others = logits.scatter(1, labels[:, None], -torch.inf).logsumexp(1)
    return (own - others).clamp(-15, 15)


def correlation(a: Tensor, b: Tensor) -> float:
    """Pearson's, over samples."""
    return float(torch.corrcoef(torch.stack([a.double(), b.double()]))[0, 1])


def auc(positive: Tensor, negative: Tensor) -> float:
    """The chance that a positive has the higher value, ties counting half."""
    if not len(positive) or not len(negative):
        return float("nan")
    apart = positive[:, None] - negative[None]
    return float((apart > 0).double().mean() + (apart == 0).double().mean() / 2)


def _arm(out: Path, study: LabelNoiseStudy, share: float, name: str) -> Arm:
    found = arms(share, load_scale(out / f"scale-{share:g}.json"), study.calls)
    return next(arm for arm in found if arm.name == name)


def _bars(row: dict[str, str], name: str) -> list[list[float]]:
    value, low, high = (float(row[f"{name}{end}"]) for end in ("", " from", " to"))
    return [[value - low], [high - value]]


def _colour(arm: str) -> str:
    if arm.startswith("feedback"):
        return BLUE
    if arm.startswith("CFG"):
        return VERMILION
    return {"scale from data": GREEN, "FBG, ancestral": AMBER}.get(arm, GREY)
