"""What the figures are drawn from, taken once from the exact fields and kept as plain arrays in the folder.

landscape     log p(A | x) on a grid at five times, A = {0,1,2}
endpoints     some samples of each row, histograms of all, and the exact marginals of the target
meter         effective scale, ratio and gap over time as quantiles, and the share of samples capped
trajectories  a few paths of each setting with both posterior means and the guided one
overview      one real state in which the cap acts: x, m_u, m_c, the mean of fixed CFG and the capped one
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..lab.condition import STD, TRIPLE, Condition, Scene
from ..lab.mixture import Mixture
from ..lab.sampler import flow
from ..record import Record
from ..rules import CFG, guide
from ..sampling import sample, trajectory
from .settings import SETTINGS, TIMES, GMMConfig, Setting, start_noise

_Array = npt.NDArray[Any]
_Arrays = dict[str, _Array]
_LANDSCAPE_TIMES = (0.2, 0.4, 0.6, 0.8, 1.0)
_BINS = 101
_SHOWN, _METERED, _PATHS = 4000, 4096, 48
_QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


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
