"""The table of the scenes study, from its folders: one row for each part, rule and scale, over all seeds.

    right ...         share of pictures on which the detector finds what the prompt demands, and all of it
    drawn             share of pictures whose two objects overlap their template with IoU > 0.85
    lost, gained      pictures that fixed guidance at the same scale has right and this rule has not, and the
                      other way round: same prompt, same noise
    saturation, clipped, spread ..., tv ...   against the renders of the same prompts, which are a row as well
    FD, recall        of the detector's 96 features, against those renders
    violated          negative part: share of pictures that show the colour that must not be there
    scale used        the effective scale, mean over steps and pictures

Intervals are 95 %: those of shares as in `metrics.shares`, that of the mean total variation (tv) by a
jackknife over groups of pictures. A row of renders ("Truth") says what each measure can reach.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..files import write_whole
from ..metrics.distances import frechet_distance
from ..metrics.manifold import recall_at
from ..metrics.score import share_interval
from ..scenes import Measured, SceneDetector, detector, draw, measure_pictures, render, summary, violated
from ..scenes import codes as codes_of
from ..scenes.measure import joined_measures, mean_tv, some_measures
from .config import sample_seed
from .folder import Run
from .scenes_readings import reading_line
from .scenes_study import Cell

TRUTH_SEED = 2000
TV_GROUPS = 12


class SceneRow(NamedTuple):
    """A line of table.csv, and the lines of readings.csv that it stands for."""

    line: dict[str, Any]
    readings: list[dict[str, Any]]


def scene_rows(groups: Sequence[list[Cell]], out: Path) -> Iterator[SceneRow]:
    """Yields the rows; each group holds the cells of one part, rule and scale."""
    network = detector()
    truths: dict[str, Measured] = {}
    fixed: dict[tuple[str, float], Tensor] = {}
    for group in groups:
        first = group[0]
        runs = [Run.open(out / cell.folder) for cell in group]
        if first.part not in truths:
            truths[first.part] = truth = joined_measures([truth_of(run, network) for run in runs])
            yield SceneRow(scene_row(first.part, "Truth", None, truth, None, runs), [])
        each = [measured_run(run, network) for run in runs]
        made, used = joined_measures(each), [float(run.meter["scale"].mean()) for run in runs]
        s = first.setting
        line = scene_row(first.part, s.method, s.scale, made, truths[first.part], runs)
        line["gamma"] = "" if s.gamma is None else s.gamma
        line["scale used"] = round(sum(used) / len(runs), 4)
        right = made.right["all"]
        if s.method == "CFG":
            fixed[first.part, s.scale] = right
        if (other := fixed.get((first.part, s.scale))) is not None:
            line["lost"] = round(float((other & ~right).double().mean()), 4)
            line["gained"] = round(float((right & ~other).double().mean()), 4)
        asked = [negatives_of(run) if first.part == "negative" else None for run in runs]
        yield SceneRow(line, [reading_line(*one) for one in zip(group, each, used, asked, strict=True)])


def scene_row(
    part: str, method: str, scale: float | None, made: Measured, truth: Measured | None, runs: list[Run]
) -> dict[str, Any]:
    """One line of the table; that of the renders has no truth to be compared with."""
    numbers = summary(made)
    shown = "" if scale is None else scale
    line: dict[str, Any] = {"part": part, "method": method, "scale": shown, "gamma": ""}
    line["pictures"] = len(made.codes)
    line |= {name: round(value, 4) for name, value in numbers.items()}
    line["tv"] = round(mean_tv(numbers), 4)
    line["tv error"] = round(tv_error(made), 4)
    for name, hits in (("right all", made.right["all"]), ("drawn", made.drawn)):
        low, high = share_interval(int(hits.sum()), len(hits))
        line[f"{name} low"], line[f"{name} high"] = round(low, 4), round(high, 4)
    if truth is not None:
        line["FD"] = round(frechet_distance(made.readings.pool, truth.readings.pool), 4)
        line["recall"] = round(recall_at(truth.readings.pool, made.readings.pool), 4)
    if part == "negative":
        negatives = torch.cat([negatives_of(run) for run in runs])
        line["violated"] = round(float(violated(made, negatives).double().mean()), 4)
    return line


def tv_error(made: Measured, groups: int = TV_GROUPS) -> float:
    """Standard error of the mean total variation, leaving out one group of pictures at a time."""
    place = torch.arange(len(made.codes)) % min(groups, len(made.codes))
    count = int(place.max()) + 1
    without = [mean_tv(summary(some_measures(made, place != k))) for k in range(count)]
    values = torch.tensor(without, dtype=torch.float64)
    return float(((count - 1) / count * (values - values.mean()).square().sum()).sqrt())


def negatives_of(run: Run) -> Tensor:
    """The codes of the negative prompts of a run."""
    return codes_of([r["negative"] for r in run.records])


def measured_run(run: Run, network: SceneDetector) -> Measured:
    """What is on the pictures of a run."""
    pictures = torch.from_numpy(run.images().copy()).permute(0, 3, 1, 2)
    return measure_pictures(network, pictures, codes_of(run.prompts))


def truth_of(run: Run, network: SceneDetector) -> Measured:
    """The same for renders of the run's prompts, one each."""
    wanted = codes_of(run.prompts)
    g = torch.Generator().manual_seed(sample_seed(TRUTH_SEED + run.config["seed"], 0))
    pictures = (render(draw(wanted, g)) * 255).round().byte()
    return measure_pictures(network, pictures, wanted)


def grouped(cells: Sequence[Cell], out: Path) -> list[list[Cell]]:
    """The finished cells by part, rule and scale, in the study's order.

    Rules are compared picture by picture, so that a seed counts once all its cells of a part are finished;
    where no seed is so far, what there is counts.
    """
    made = [cell for cell in cells if is_finished(out / cell.folder)]
    whole = {(c.part, c.seed) for c in made} - {(c.part, c.seed) for c in cells if c not in made}
    ready = {part for part, _ in whole}
    groups: dict[tuple[str, str], list[Cell]] = {}
    for cell in made:
        if cell.part not in ready or (cell.part, cell.seed) in whole:
            groups.setdefault((cell.part, cell.setting.name), []).append(cell)
    return list(groups.values())


def is_finished(folder: Path) -> bool:
    """Whether the run in a folder made all its pictures."""
    from .folder import Ledger

    known = Ledger(folder, "images").read()
    return known is not None and known["finished"] is not None


def write_table(rows: Sequence[dict[str, Any]], path: Path) -> Path:
    """The rows as CSV; the file appears whole or not at all."""
    columns = list(dict.fromkeys(key for r in rows for key in r))
    text = StringIO()
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return write_whole(path, text.getvalue())
