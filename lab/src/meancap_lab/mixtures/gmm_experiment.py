"""Runs the mixture experiment into a folder that a stopped run resumes; files appear whole or not at all.

    run.json     configuration, protocol, rules, seeds, versions, engine; `finished` is null before the end
    rows.jsonl   one line per measured row: repeat, setting, all metrics
    table.csv    the paper's table: ours, the paper's, z-scores;  spread.csv with two repeats or more
    limits.csv   expectations of every metric with Euler steps and in continuous time
    data/        what the figures are drawn from, taken once from the exact fields:
      landscape     log p(A | x) on a grid at five times, A = {0,1,2}
      endpoints     some samples of each row, histograms of all, and the exact marginals of the target
      meter         effective scale, ratio and gap over time as quantiles, and the share of samples capped
      trajectories  a few paths of each setting with both posterior means and the guided one
      overview      one real state in which the cap acts: x, m_u, m_c, the mean of fixed CFG, the capped one

    sd           standard deviation of one run of 200,000 samples, from the run's own repeats if there are ten
                 or more, else from the spread that comes with the package
    z            (paper - ours) / (sd sqrt(1 + 200,000 / (samples repeats))): both sides are draws
    euler        the expectation of a row: Euler, 50 steps
    continuous   the same field followed exactly: Runge-Kutta steps, fine where the flow is fast

Expectations are means over the same quasi-random noise (scrambled Sobol points), far more precise than over
as many independent samples; their standard error comes from independent scramblings.
"""

from __future__ import annotations

import json
import math
import platform
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from meancap.files import csv_text, remove_leftovers, write_whole, writing
from meancap.record import Record
from meancap.rules import CFG, guide
from meancap.sampling import rk4, sample, trajectory

from ..runs.config import versions
from ..runs.folder import Ledger, RunRefused, write_npz
from ..runs.paper_protocols import paper_table
from .branches import branches
from .condition import STD, TRIPLE, Condition, Scene
from .gmm_settings import PAPER_SAMPLES, SETTINGS, STEPS, TIMES, GMMConfig, Setting, start_noise
from .mixture import Mixture, sobol_noise
from .sampler import engine_for, flow
from .theory import euler_variance_ratio, graded_times

Values = dict[str, list[float]]  # by metric; one number per member, or one
Rows = dict[tuple[int, str], Values]  # by repeat and setting
_Array = npt.NDArray[Any]
_Arrays = dict[str, _Array]

METRICS = ("occupancy_percent", "variance_ratio", "tv", "mean_error")
_ALL_METRICS = (*METRICS, "radial_ratio", "tangential_ratio")
_DIGITS = {"occupancy_percent": 4, "variance_ratio": 5, "tv": 6, "mean_error": 6}
_ENOUGH = 10  # repeats for a standard deviation of our own; it is then known to a quarter
_SCRAMBLINGS, _POINTS, _HALF_STEPS = 8, 2**13, 32
_CURVE = sorted({round(4 * 1.09**i) for i in range(80)} | {STEPS})  # 4 to 3600 steps
_LANDSCAPE_TIMES = (0.2, 0.4, 0.6, 0.8, 1.0)
_BINS = 101
_SHOWN, _METERED, _PATHS = 4000, 4096, 48
_QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
_PROTOCOL = [
    "Eight components clockwise from pi/2 on the unit circle, sigma = 0.03; the pair has weights 0.17, 0.08 "
    "and six times 0.125, the others equal ones.",
    "Exact conditional and unconditional fields; guidance on posterior means, data at t = 1.",
    "Noise from a standard normal, one draw per row, float32; 50 Euler steps on the uniform grid, evaluated "
    "at the left ends 0, 0.02, ..., 0.98; the last step ends at t = 1.",
    "Labels by MAP under the conditional mixture at t = 1; unbiased covariance within a label; mean error "
    "before labels; statistics in float64.",
]


def reproduce(config: GMMConfig, out: str | Path) -> Path:
    """Runs everything and returns the folder; a stopped run resumes."""
    for _ in stages(config, out):
        pass
    return Path(out)


def count_stages(config: GMMConfig) -> int:
    """How many values `stages` yields."""
    return len(SETTINGS) * (config.repeats + 1) + 1


def stages(config: GMMConfig, out: str | Path) -> Iterator[str]:
    """Does one piece of the run after the other and yields its name; the caller runs the loop."""
    folder = Path(out)
    begun = begin_run(folder, config)
    rows = _read_rows(folder / "rows.jsonl")
    for repeat in range(config.repeats):
        for setting in SETTINGS:
            if (repeat, str(setting)) not in rows:
                rows[repeat, str(setting)] = row_values(setting, start_noise(setting, config, repeat))
                lines = [json.dumps({"repeat": k, "setting": s, **row}) for (k, s), row in rows.items()]
                write_whole(folder / "rows.jsonl", "".join(f"{line}\n" for line in lines))
            yield str(setting)
    limits = []
    for setting in SETTINGS:
        limits += expectations(setting)
        yield f"{setting} in continuous time"
    _write_csv(folder / "table.csv", _table(rows, config, limits))
    if config.repeats > 1:
        _write_csv(folder / "spread.csv", _spread_rows(rows, config))
    _write_csv(folder / "limits.csv", limits)
    (folder / "data").mkdir(exist_ok=True)
    for name, content in figure_data(config):
        if isinstance(content, list):
            _write_csv(folder / "data" / name, content)
        else:
            with writing(folder / "data" / name) as temporary, temporary.open("wb") as file:
                write_npz(file, {}, {key: np.asarray(value) for key, value in content.items()})
    r_50 = float(euler_variance_ratio(torch.tensor(TIMES, dtype=torch.float64), STD))
    finished = {"rows": len(rows), "R_50": r_50}
    Ledger(folder, "gmm").write({**begun, **_account(config), "finished": finished})
    for place in (folder, folder / "data"):
        remove_leftovers(place)
    yield "data for the figures"


def begin_run(folder: Path, config: GMMConfig) -> dict[str, Any]:
    """Makes the folder, or checks that it belongs to this configuration; returns its run.json."""
    ledger = Ledger(folder, "gmm")
    with ledger.opened():
        return ledger.begin({"config": asdict(config), "made_with": versions(["numpy"])}, finished=None)


def row_values(setting: Setting, start: Tensor) -> Values:
    """Every metric of the row that begins with this noise."""
    return _measure(setting, flow(setting.scene.condition(), setting.rule, start, TIMES))


def _measure(setting: Setting, end: Tensor) -> Values:
    found = branches(setting.scene.condition(), end)
    return {
        "occupancy_percent": (100 * found.occupancy).tolist(),
        "variance_ratio": found.variance_ratio.tolist(),
        "tv": [found.tv],
        "mean_error": [found.mean_error],
        "radial_ratio": found.radial_ratio.tolist(),
        "tangential_ratio": found.tangential_ratio.tolist(),
    }


def expectations(setting: Setting) -> list[dict[str, Any]]:
    """The expectations of all metrics of one setting with their errors, one row per number.

    `grid_error` is what halving the number of Runge-Kutta steps changes.
    """
    condition, rule = setting.scene.condition(), setting.rule
    starts = torch.cat([sobol_noise(_POINTS, 2, seed) for seed in range(_SCRAMBLINGS)]).float()

    def metrics(end: Tensor) -> Tensor:
        """One row per scrambling."""
        each = [_measure(setting, part) for part in torch.split(end, _POINTS)]
        rows = [[v for name in _ALL_METRICS for v in values[name]] for values in each]
        return torch.tensor(rows, dtype=torch.float64)

    fine, coarse = (graded_times(n, STD).tolist() for n in (_HALF_STEPS, _HALF_STEPS // 2))
    euler = metrics(flow(condition, rule, starts, TIMES)).mean(0)
    exact = metrics(flow(condition, rule, starts, fine, rk4))
    change = (metrics(flow(condition, rule, starts[:_POINTS], coarse, rk4))[0] - exact[0]).abs()
    error = exact.std(0) / _SCRAMBLINGS**0.5
    places = [
        (metric, position) for metric in _ALL_METRICS for position in range(_length(metric, setting.members))
    ]
    numbers = zip(*(v.tolist() for v in (euler, exact.mean(0), error, change)), strict=True)
    names = ("members", "guidance", "metric", "position")
    columns = (*names, "euler", "continuous", "standard_error", "grid_error")
    return [
        dict(zip(columns, (setting.members, setting.guidance, *place, *values), strict=True))
        for place, values in zip(places, numbers, strict=True)
    ]


def _length(metric: str, members: str) -> int:
    """How many numbers a metric has."""
    return 1 if metric in ("tv", "mean_error") else len(members.split(","))


def _table(rows: Rows, config: GMMConfig, limits: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """One row per setting: ours, the paper's, z, then the spread, continuous time and the rule."""
    spread = spread_of(_spread_rows(rows, config) if _has_own_spread(config) else paper_table("gmm_spread"))
    paper = {(row["members"], row["guidance"]): row for row in paper_table("gmm")}
    more = math.sqrt(1 + PAPER_SAMPLES / (config.samples * config.repeats))
    table = []
    for setting in SETTINGS:
        key = members, guidance = setting.members, setting.guidance
        row = {"members": members, "guidance": guidance, "scale": setting.scale, "gamma": setting.gamma}
        z = {}
        for metric in METRICS:
            each = [rows[repeat, str(setting)][metric] for repeat in range(config.repeats)]
            ours = [statistics.fmean(values) for values in zip(*each, strict=True)]
            theirs = [float(v) for v in paper[key][metric].split("/")]
            sds = spread[members, guidance, metric]
            z[metric] = [_z(*values, more) for values in zip(theirs, ours, sds, strict=True)]
            row[metric] = _joined(ours, _DIGITS[metric])
        row |= {f"paper_{m}": paper[key][m] for m in METRICS}
        row |= {f"z_{m}": _joined(z[m], 2) for m in METRICS}
        row |= {f"sd_{m}": _joined(spread[members, guidance, m], 1 + _DIGITS[m]) for m in METRICS}
        for metric, digits in (("occupancy_percent", 2), ("variance_ratio", 3)):
            place = (members, guidance, metric)
            exact = [v["continuous"] for v in limits if (v["members"], v["guidance"], v["metric"]) == place]
            row[f"continuous_{metric}"] = _joined(exact, digits)
        table.append({**row, "rule": str(setting.rule)})
    return table


def _z(paper: float, ours: float, sd: float, more: float) -> float:
    if sd == 0:  # a number that chance cannot move: both are 0, or both are 100 %
        return 0.0 if paper == ours else math.inf
    return (paper - ours) / (sd * more)


def _joined(values: Sequence[float], digits: int) -> str:
    # + 0.0 turns a rounded -0.00 into 0.00
    return "/".join(f"{round(value, digits) + 0.0:.{digits}f}" for value in values)


def _has_own_spread(config: GMMConfig) -> bool:
    return config.repeats >= _ENOUGH


def _spread_rows(rows: Rows, config: GMMConfig) -> list[dict[str, object]]:
    """Mean, standard deviation and range of every number over the repeats."""
    lines: list[dict[str, object]] = []
    for setting in SETTINGS:
        each = [rows[repeat, str(setting)] for repeat in range(config.repeats)]
        for metric in _ALL_METRICS:
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


def spread_of(rows: Iterable[Mapping[str, Any]]) -> dict[tuple[str, str, str], list[float]]:
    """Standard deviations of one run of 200,000 samples, from the rows of a spread in their order."""
    spread: dict[tuple[str, str, str], list[float]] = {}
    for row in rows:
        sd = float(row["sd"]) * math.sqrt(int(row["samples"]) / PAPER_SAMPLES)
        spread.setdefault((row["members"], row["guidance"], row["metric"]), []).append(sd)
    return spread


def _account(config: GMMConfig) -> dict[str, Any]:
    """Everything else that is needed to repeat the run or to explain its result."""
    grids = [torch.linspace(0, 1, n + 1, dtype=torch.float64) for n in _CURVE]
    return {
        "command": f"meancap reproduce gmm --out DIR --samples {config.samples} --seed {config.seed} "
        f"--repeats {config.repeats}",
        "protocol": _PROTOCOL,
        "steps": STEPS,
        "dtype": "float32",
        "spread": "own repeats" if _has_own_spread(config) else "shipped with the package",
        "engine": engine_for(SETTINGS[0].scene.condition(), SETTINGS[0].rule, torch.zeros(1, 2), TIMES),
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
            "steps": _CURVE,
            "variance_ratio": [float(euler_variance_ratio(grid, STD)) for grid in grids],
        },
    }


def _read_rows(path: Path) -> Rows:
    """Every row measured so far."""
    rows: Rows = {}
    lengths = {str(s): [_length(metric, s.members) for metric in _ALL_METRICS] for s in SETTINGS}
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
            values = {metric: [float(v) for v in row[metric]] for metric in _ALL_METRICS}
            rows[int(row["repeat"]), row["setting"]] = values
            intact = lengths[row["setting"]] == [len(v) for v in values.values()]
        except (KeyError, TypeError, ValueError):
            intact = False
        if not intact:
            raise RunRefused(f"{path}, line {number} is damaged; remove that line to measure its row again")
    return rows


def _write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Numbers with six digits; text as it is."""
    text = csv_text([{k: f"{v:.6g}" if isinstance(v, float) else v for k, v in row.items()} for row in rows])
    write_whole(path, text)


def figure_data(config: GMMConfig) -> Iterator[tuple[str, _Arrays | list[dict[str, object]]]]:
    """Every file of data/ with its content: arrays, or the rows of a table."""
    yield "landscape.npz", _landscape()
    yield "endpoints.npz", _endpoints(config)
    yield "meter.csv", [row for setting in SETTINGS for row in _meter(setting, config)]
    paths = _trajectories(config)
    yield "trajectories.npz", paths
    yield "overview.npz", _overview(paths)


def _landscape() -> _Arrays:
    """log p(A | x), times x rows (second coordinate) x columns (first coordinate)."""
    condition, axis = TRIPLE.condition(), torch.linspace(-1.6, 1.6, 241, dtype=torch.float64)
    values = [_log_posterior(condition, axis, t) for t in _LANDSCAPE_TIMES]
    return {
        "axis": axis.numpy(),
        "times": np.array(_LANDSCAPE_TIMES),
        "log_posterior": np.stack(values),
        "means": condition.mixture.means.numpy(),
        "members": np.array(TRIPLE.members),
    }


def _endpoints(config: GMMConfig) -> _Arrays:
    """The first repeat of every row, by the row's name."""
    arrays: _Arrays = {}
    for setting in SETTINGS:
        condition = setting.scene.condition()
        end = flow(condition, setting.rule, start_noise(setting, config), TIMES)
        arrays[f"{setting} samples"] = end[:_SHOWN].numpy()
        for axis in (0, 1):
            edges = _edges(setting.scene, axis)
            counts = torch.histogram(end[:, axis].double(), torch.from_numpy(edges)).hist
            arrays[f"{setting} histogram {axis}"] = counts.numpy().astype(np.int64)
    for scene in {setting.members: setting.scene for setting in SETTINGS}.values():
        law = scene.condition().conditional
        arrays[f"{scene} weights"] = law.weights.numpy()
        for axis in (0, 1):
            edges = _edges(scene, axis)
            fine = torch.linspace(edges[0], edges[-1], 1201, dtype=torch.float64)
            marginal = Mixture(law.means[:, axis : axis + 1], law.weights, std=STD)
            arrays[f"{scene} edges {axis}"] = edges
            arrays[f"{scene} fine {axis}"] = fine.numpy()
            arrays[f"{scene} target {axis}"] = marginal.log_density(fine[:, None], 1.0).exp().numpy()
    arrays["means"] = SETTINGS[0].scene.mixture().means.numpy()
    arrays["samples"] = np.array(config.samples)
    return arrays


def _meter(setting: Setting, config: GMMConfig) -> list[dict[str, object]]:
    """One row per time and quantity."""
    record = Record()
    start = start_noise(setting, config)[:_METERED].double()
    sample(setting.scene.condition().predict, setting.rule, start, TIMES, record=record)
    stacked = record.stacked()
    levels = torch.tensor(_QUANTILES, dtype=torch.float64)
    rows: list[dict[str, object]] = []
    for i, t in enumerate(TIMES[:-1]):
        for quantity in ("scale", "ratio", "gap", "active"):
            values = stacked[quantity][i].double()
            row = {"members": setting.members, "guidance": setting.guidance, "t": t, "quantity": quantity}
            names = (f"q{round(100 * q):02d}" for q in _QUANTILES)
            quantiles = dict(zip(names, values.quantile(levels).tolist(), strict=True))
            rows.append({**row, "mean": float(values.mean()), **quantiles})
    return rows


def _trajectories(config: GMMConfig) -> _Arrays:
    """Paths (times, paths, 2) of every setting; the settings of a scene start from the same noise."""
    arrays: _Arrays = {"times": np.array(TIMES)}
    for setting in SETTINGS:
        first = next(s for s in SETTINGS if s.scene == setting.scene)
        start = start_noise(first, config)[:_PATHS].double()
        steps = list(trajectory(setting.scene.condition().predict, setting.rule, start, TIMES))
        x = torch.stack([steps[0].x, *(step.x_next for step in steps)])
        arrays[f"{setting} x"] = x.numpy()
        arrays[f"{setting} m"] = torch.stack([step.m for step in steps]).numpy()
        arrays[f"{setting} m_c"] = torch.stack([step.prediction.m_c for step in steps]).numpy()
        arrays[f"{setting} m_u"] = torch.stack([step.prediction.m_u for step in steps]).numpy()
    return arrays


def _overview(paths: _Arrays) -> _Arrays:
    """The state of a capped path at which the origin, x and all four means stand farthest apart."""
    setting = SETTINGS[-1]
    condition, capped, nominal = setting.scene.condition(), setting.rule, CFG(float(setting.scale))

    def points(x: Tensor, t: float) -> dict[str, Tensor]:
        p = condition.predict(x, t)
        return {"x": x, "m_u": p.m_u, "m_c": p.m_c, "m": guide(capped, p)[0], "m_cfg": guide(nominal, p)[0]}

    starts = torch.from_numpy(paths[f"{setting} x"])
    clearest, i, index = -1.0, 0, 0
    for step, t in enumerate(TIMES[:-1]):
        corners = torch.stack([torch.zeros_like(starts[step]), *points(starts[step], t).values()], 1)
        same = torch.eye(corners.shape[1], dtype=torch.bool)
        least = torch.cdist(corners, corners).masked_fill(same, torch.inf).amin((1, 2))
        if float(least.max()) > clearest:
            clearest, i, index = float(least.max()), step, int(least.argmax())
    axis = torch.linspace(-3, 3, 401, dtype=torch.float64)
    return {
        "t": np.array(TIMES[i]),
        "gamma": np.array(float(setting.gamma)),
        "scale": np.array(float(setting.scale)),
        **{name: v[0].numpy() for name, v in points(starts[i, index : index + 1], TIMES[i]).items()},
        "axis": axis.numpy(),
        "log_posterior": _log_posterior(condition, axis, TIMES[i]),
        "members": np.array(str(setting.scene)),
    }


def _log_posterior(condition: Condition, axis: Tensor, t: float) -> _Array:
    y, x = torch.meshgrid(axis, axis, indexing="ij")
    values: _Array = condition.log_posterior(torch.stack([x, y], -1), t).float().numpy()
    return values


def _edges(scene: Scene, axis: int) -> _Array:
    """101 bins over the members along one axis, six widths beyond the outermost."""
    at = scene.condition().conditional.means[:, axis]
    return np.linspace(float(at.min()) - 6 * STD, float(at.max()) + 6 * STD, _BINS + 1)
