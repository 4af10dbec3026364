"""The table: our numbers, the paper's, and how far apart they are in units of chance.

sd   standard deviation of one run of 200,000 samples, from the run's own repeats if there are ten or more,
     else from the spread that came with the package
z    (paper - ours) / (sd sqrt(1 + 200,000 / (samples repeats))): both sides are draws, ours of all repeats
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

from ..protocols import paper_table
from .config import PAPER_SAMPLES, SETTINGS, GMMConfig, Setting
from .measure import EXTRA, METRICS, Expectation, Values

Row = dict[str, str]
Spread = dict[tuple[str, str, str, int], float]  # members, guidance, metric, position
_DIGITS = {"occupancy_percent": 4, "variance_ratio": 5, "tv": 6, "mean_error": 6}
_ENOUGH = 10  # repeats for a standard deviation of our own; it is then known to a quarter


def spread_rows(rows: Mapping[tuple[int, str], Values], config: GMMConfig) -> list[dict[str, object]]:
    """Mean, standard deviation and range of every number over the repeats."""
    lines: list[dict[str, object]] = []
    for setting in SETTINGS:
        each = [rows[repeat, str(setting)] for repeat in range(config.repeats)]
        for metric in METRICS + EXTRA:
            for position, values in enumerate(zip(*(row[metric] for row in each), strict=True)):
                lines.append(
                    {
                        "members": setting.members,
                        "guidance": setting.guidance,
                        "metric": metric,
                        "position": position,
                        "mean": f"{statistics.fmean(values):.9g}",
                        "sd": f"{statistics.stdev(values):.6g}",
                        "min": f"{min(values):.9g}",
                        "max": f"{max(values):.9g}",
                        "repeats": config.repeats,
                        "samples": config.samples,
                    }
                )
    return lines


def spread_of(rows: Sequence[Mapping[str, object]]) -> Spread:
    """Standard deviations of one run of 200,000 samples, from the rows of a spread."""
    return {
        (str(r["members"]), str(r["guidance"]), str(r["metric"]), int(str(r["position"]))): float(
            str(r["sd"])
        )
        * math.sqrt(int(str(r["samples"])) / PAPER_SAMPLES)
        for r in rows
    }


def own_spread(config: GMMConfig) -> bool:
    """Whether the run has repeats enough to state its own spread."""
    return config.repeats >= _ENOUGH


def table_rows(
    rows: Mapping[tuple[int, str], Values], config: GMMConfig, limits: Mapping[str, Sequence[Expectation]]
) -> list[Row]:
    """One row per setting: ours, the paper's, z, then the spread, continuous time and the rule."""
    spread = spread_of(spread_rows(rows, config) if own_spread(config) else paper_table("gmm_spread"))
    paper = {(row["members"], row["guidance"]): row for row in paper_table("gmm")}
    return [
        _row(setting, rows, config, paper[setting.members, setting.guidance], spread, limits[str(setting)])
        for setting in SETTINGS
    ]


def _row(
    setting: Setting,
    rows: Mapping[tuple[int, str], Values],
    config: GMMConfig,
    paper: Row,
    spread: Spread,
    limits: Sequence[Expectation],
) -> Row:
    ours, sd, z = {}, {}, {}
    for metric in METRICS:
        each = [rows[repeat, str(setting)][metric] for repeat in range(config.repeats)]
        ours[metric] = [statistics.fmean(values) for values in zip(*each, strict=True)]
        sd[metric] = [
            spread[setting.members, setting.guidance, metric, position] for position in range(len(each[0]))
        ]
        theirs = [float(v) for v in paper[metric].split("/")]
        z[metric] = [_z(*values, config) for values in zip(theirs, ours[metric], sd[metric], strict=True)]
    head = {
        "members": setting.members,
        "guidance": setting.guidance,
        "scale": setting.scale,
        "gamma": setting.gamma,
    }
    exact = {
        f"continuous_{metric}": [v.continuous for v in limits if v.metric == metric]
        for metric in ("occupancy_percent", "variance_ratio")
    }
    return {
        **head,
        **{metric: _joined(ours[metric], _DIGITS[metric]) for metric in METRICS},
        **{f"paper_{metric}": paper[metric] for metric in METRICS},
        **{f"z_{metric}": _joined(z[metric], 2) for metric in METRICS},
        **{f"sd_{metric}": _joined(sd[metric], 1 + _DIGITS[metric]) for metric in METRICS},
        **{name: _joined(values, 2 if "percent" in name else 3) for name, values in exact.items()},
        "rule": str(setting.rule),
    }


def _z(paper: float, ours: float, sd: float, config: GMMConfig) -> float:
    if sd == 0:  # a number that chance cannot move: both are 0, or both are 100 %
        return 0.0 if paper == ours else math.inf
    return (paper - ours) / (sd * math.sqrt(1 + PAPER_SAMPLES / (config.samples * config.repeats)))


def _joined(values: Sequence[float], digits: int) -> str:
    # + 0.0 turns a rounded -0.00 into 0.00
    return "/".join(f"{round(value, digits) + 0.0:.{digits}f}" for value in values)
