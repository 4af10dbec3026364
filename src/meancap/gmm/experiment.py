"""The paper's mixture experiment, run again: nine settings, their table, and what its figures are drawn from.

from meancap.runs.gmm import GMMConfig, reproduce
result = reproduce(GMMConfig(samples=200_000, seed=0), "DIR");  result.table[2]["variance_ratio"]
"""

from __future__ import annotations

import platform
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from ...lab.sampler import engine_for
from ...lab.scenes import STD
from ...lab.theory import euler_variance_ratio
from ..config import versions
from .config import PROTOCOL, SETTINGS, STEPS, TIMES, GMMConfig, Setting, start_noise
from .figure_data import write_figure_data
from .folder import GMMFolder
from .measure import Expectation, expectations, row_values
from .table import own_spread, spread_rows, table_rows

__all__ = ["SETTINGS", "GMMConfig", "Result", "Setting", "count_stages", "reproduce", "stages"]

_CURVE = sorted({round(4 * 1.09**i) for i in range(80)} | {STEPS})  # 4 to 3600 steps


@dataclass(frozen=True)
class Result:
    """The results of a run; its folder has the same."""

    folder: Path
    table: list[dict[str, str]]
    expectations: dict[str, list[Expectation]]
    r_50: float


def reproduce(config: GMMConfig, out: str | Path) -> Result:
    """Runs everything and writes the folder; a stopped run goes on where it was."""
    result = None
    for stage in stages(config, out):
        result = stage
    assert isinstance(result, Result)
    return result


def count_stages(config: GMMConfig) -> int:
    """How many values `stages` yields."""
    return len(SETTINGS) * (config.repeats + 1) + 2


def stages(config: GMMConfig, out: str | Path) -> Iterator[str | Result]:
    """The same one piece at a time: what was just done, and last the result; the caller runs the loop."""
    folder = GMMFolder(out, config, versions(["numpy"]))
    rows = folder.rows()
    for repeat in range(config.repeats):
        for setting in SETTINGS:
            if (repeat, str(setting)) not in rows:
                rows[repeat, str(setting)] = row_values(setting, start_noise(setting, config, repeat))
                folder.keep(rows)
            yield str(setting)
    exact = {}
    for setting in SETTINGS:
        exact[str(setting)] = expectations(setting)
        yield f"{setting} in continuous time"
    table = table_rows(rows, config, exact)
    folder.table("table.csv", table)
    if config.repeats > 1:
        folder.table("spread.csv", spread_rows(rows, config))
    folder.table("limits.csv", _limit_rows(exact))
    write_figure_data(folder, config)
    yield "data for the figures"
    r_50 = float(euler_variance_ratio(torch.tensor(TIMES, dtype=torch.float64), STD))
    folder.finish(_account(config), rows=len(rows), R_50=r_50)
    yield Result(folder.path, table, exact, r_50)


def _limit_rows(exact: dict[str, list[Expectation]]) -> Iterator[dict[str, object]]:
    for setting in SETTINGS:
        for limit in exact[str(setting)]:
            numbers = {k: f"{v:.6g}" if isinstance(v, float) else v for k, v in asdict(limit).items()}
            yield {"members": setting.members, "guidance": setting.guidance, **numbers}


def _account(config: GMMConfig) -> dict[str, Any]:
    """Everything else that one needs to run it again, or to know why it came out as it did."""
    grid = [torch.linspace(0, 1, n + 1, dtype=torch.float64) for n in _CURVE]
    start = torch.zeros(1, 2)
    return {
        "command": f"meancap reproduce gmm --out DIR --samples {config.samples} --seed {config.seed} "
        f"--repeats {config.repeats}",
        "protocol": list(PROTOCOL),
        "steps": STEPS,
        "dtype": "float32",
        "spread": "own repeats" if own_spread(config) else "shipped with the package",
        "engine": engine_for(SETTINGS[0].scene.condition(), SETTINGS[0].rule, start, TIMES),
        "python": platform.python_version(),
        "machine": platform.machine(),
        "rows": [
            {
                "members": setting.members,
                "guidance": setting.guidance,
                "rule": str(setting.rule),
                "weights": list(setting.scene.weights),
                "noise": f"sha256('meancap gmm SEED REPEAT {setting}')",
            }
            for setting in SETTINGS
        ],
        "euler_curve": {
            "steps": list(_CURVE),
            "variance_ratio": [float(euler_variance_ratio(g, STD)) for g in grid],
        },
    }
