"""The wind study in one figure: days under each rule, and the training data's mean day of the regime."""

from __future__ import annotations

from pathlib import Path

import torch
from matplotlib.figure import Figure

from ..runs.cell_folder import CellFolder
from ..runs.wind import cell_name, pilot_scale, training_profile, wind_rules
from ..runs.wind_model import REGIMES
from .style import BLUE, GREY, PAGE, VERMILION, panels


def wind_series(out: Path, preset: str = "1ch", seed: int = 0, shown: int = 4) -> Figure:
    """Rows are rules, columns regimes; thin lines are days, the thick one their mean, dashed the data's."""
    cells = CellFolder(out)
    names = [one.name for one in wind_rules(pilot_scale(cells, preset))]
    figure, axes = panels(len(names), len(REGIMES), PAGE, 0.95 * len(names) + 0.4, sharex=True, sharey=True)
    for number, (line, name) in enumerate(zip(axes, names, strict=True)):
        speed = cells.load(cell_name(preset, name, seed))["speed"]
        days = speed.reshape(len(REGIMES), -1, speed.shape[-1])
        hours = torch.arange(days.shape[-1]) * 24 / days.shape[-1]
        for place, regime, some in zip(line, REGIMES, days, strict=True):
            place.plot(hours, some[:shown].T, color=BLUE, linewidth=0.5, alpha=0.7)
            place.plot(hours, some.mean(0), color=VERMILION)
            place.plot(hours, training_profile(regime), "--", color=GREY, linewidth=0.9)
            place.grid(False)  # the wind package switches grids on for the whole process
            if number == 0:
                place.set_title(f"{regime} wind asked for")
        line[0].set_ylabel(name.replace(", ", "\n"), fontsize=5.5)
    for place in axes[-1]:
        place.set_xlabel("hour")
    figure.suptitle(f"wind speed at 100 m, m/s (preset {preset}, seed {seed})", fontsize=7)
    return figure
