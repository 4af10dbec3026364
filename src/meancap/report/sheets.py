"""Matched pictures from run folders: the same noise and the same class or prompt under different rules.

sheet    rows are seeds, columns are rules
panels   one panel per rule; in each, rows are classes and columns are seeds
rows     one row per rule, a column for each prompt, which stands above it
"""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import wrap
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..models.data import FASHION
from ..runs.folder import Run
from .style import PAGE


class Unmatched(ValueError):
    """Runs that do not share their noise and conditions."""


def need_matched(runs: Sequence[Run]) -> None:
    """Refuses runs that differ in more than the rule: a comparison of them would not show the rule."""
    if not runs:
        raise ValueError("a sheet needs at least one run")
    first = runs[0]
    for other in runs[1:]:
        for what, mine, theirs in (
            ("seeds", first.seeds, other.seeds),
            ("labels", first.labels, other.labels),
            ("prompts", first.prompts, other.prompts),
        ):
            shared = min(len(mine), len(theirs))
            if mine[:shared] != theirs[:shared]:
                raise Unmatched(
                    f"{first.folder.name} and {other.folder.name} differ in their {what}; only runs of one "
                    "seed and one list of classes or prompts can stand side by side"
                )


def sheet(runs: Sequence[Run], positions: Sequence[int] | None = None, titles: Sequence[str] = ()) -> Figure:
    """Rows are samples (ten unless positions say otherwise), columns are runs."""
    need_matched(runs)
    chosen = list(range(min(10, *map(len, runs)))) if positions is None else list(positions)
    images = [run.images(chosen) for run in runs]
    tall = images[0].shape[1] / images[0].shape[2]
    widest = 0.9 if images[0].shape[2] < 64 else 1.6
    cell = min(widest, (PAGE - 1.0) / len(runs))
    figure = Figure(figsize=(1.0 + cell * len(runs), 0.5 + cell * tall * len(chosen)))
    figure.set_layout_engine("constrained", w_pad=0.01, h_pad=0.01, wspace=0, hspace=0)
    axes: Any = figure.subplots(len(chosen), len(runs), squeeze=False)
    for j, run in enumerate(runs):
        axes[0, j].set_title(titles[j] if titles else title(run))
        for i, position in enumerate(chosen):
            _show(axes[i, j], images[j][i])
            if j == 0:
                axes[i, 0].set_ylabel(condition(run, position), rotation=0, ha="right", va="center")
    return figure


def class_panels(
    runs: Sequence[Run],
    per_class: int = 8,
    titles: Sequence[str] = (),
    names: Sequence[str] = (),
    page: float = PAGE,
) -> Figure:
    """One panel for each run, side by side: rows of classes, `per_class` seeds each; `page` inches wide."""
    need_matched(runs)
    rows, names = class_rows(runs[0], per_class), names or class_names(runs[0])
    width = 0.45 + page
    count, gap = len(runs), 0.04
    first = runs[0].images([0])
    tall = len(rows) * first.shape[1] / (per_class * first.shape[2])
    height = (page / count - 2 * gap) * tall + 0.25
    figure = Figure(figsize=(width, height))
    figure.set_layout_engine("constrained", w_pad=gap, h_pad=0.05, wspace=0, hspace=0)
    all_axes: Any = figure.subplots(1, count, squeeze=False)[0]
    for axes, run, k in zip(all_axes, runs, range(count), strict=True):
        picture = tiled(run, list(rows.values()))
        _show(axes, picture)
        axes.set_title(titles[k] if titles else title(run))
        if k == 0:
            cell = picture.shape[0] / len(rows)
            places = [(i + 0.5) * cell for i in range(len(rows))]
            axes.set_yticks(places, [names[c] if names else str(c) for c in rows])
            axes.tick_params(axis="y", length=0)
    return figure


def prompt_rows(runs: Sequence[Run], titles: Sequence[str], page: float = 4.05) -> Figure:
    """One row for each run, a column for each prompt; `page` inches wide, to be read on a phone."""
    need_matched(runs)
    count, side = len(runs[0]), (page - 1.0) / len(runs[0])
    figure = Figure(figsize=(page, side * len(runs) + 0.55))
    figure.set_layout_engine("constrained", w_pad=0.02, h_pad=0.02, wspace=0, hspace=0)
    axes: Any = figure.subplots(len(runs), count, squeeze=False)
    for line, run, title in zip(axes, runs, titles, strict=True):
        for k, image in enumerate(run.images(range(count))):
            _show(line[k], image)
        line[0].set_ylabel(title, rotation=0, ha="right", va="center", fontsize=8)
    for place, prompt in zip(axes[0], runs[0].prompts, strict=True):
        few = " ".join(word for word in prompt.split() if word != "a")
        place.set_title("\n".join(wrap(few, 14)), fontsize=7)
    return figure


def class_rows(run: Run, per_class: int) -> dict[int, list[int]]:
    """The first positions of each class, for the classes that have so many."""
    places_of: dict[int, list[int]] = {}
    for position, record in enumerate(run.records):
        if record.get("label") is not None:
            places_of.setdefault(record["label"], []).append(position)
    rows = {
        label: places[:per_class] for label, places in sorted(places_of.items()) if len(places) >= per_class
    }
    if not rows:
        raise ValueError(f"{run.folder.name} has no class with {per_class} samples")
    return rows


def tiled(run: Run, rows: Sequence[Sequence[int]]) -> npt.NDArray[np.uint8]:
    """One picture of many, without space between them."""
    flat = run.images([i for row in rows for i in row])
    count, height, width, channels = flat.shape
    grid = flat.reshape(len(rows), count // len(rows), height, width, channels).transpose(0, 2, 1, 3, 4)
    sheet: npt.NDArray[np.uint8] = grid.reshape(len(rows) * height, -1, channels)
    return sheet


def title(run: Run) -> str:
    """The rule, a line for each of its parts."""
    return run.rule.replace(" | ", "\n| ") or "no rule"


def class_names(run: Run) -> tuple[str, ...]:
    """The names of the classes, where the run's model is the shipped one; otherwise none."""
    return FASHION if run.config.get("model") == "fashion" else ()


def class_name(label: int, names: Sequence[str]) -> str:
    """The name of a class, or its number where it has none."""
    return names[label] if label < len(names) else f"class {label}"


def condition(run: Run, position: int) -> str:
    """What a sample was asked to be, short enough for a margin."""
    record = run.records[position]
    if record.get("prompt") is not None:
        text = str(record["prompt"])
        return text if len(text) <= 24 else text[:23] + "…"
    return f"{class_name(record['label'], class_names(run))}\nseed {record['seed']}"


def _show(axes: Axes, image: npt.NDArray[np.uint8]) -> None:
    if image.shape[-1] == 1:
        axes.imshow(image[..., 0], cmap="gray", vmin=0, vmax=255, interpolation="nearest")
    else:
        axes.imshow(image, interpolation="nearest")
    axes.set_xticks([])
    axes.set_yticks([])
    for side in axes.spines.values():
        side.set_visible(False)
