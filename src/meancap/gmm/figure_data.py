"""What the figures are drawn from, taken once from the exact fields and kept as plain arrays in the folder.

landscape     log p(A | x) on a grid at five times, A = {0,1,2}
endpoints     some samples of each row, histograms of all, and the exact marginals of the target
meter         effective scale, ratio and gap over time as quantiles, and the share of samples capped
trajectories  a few paths of each setting with both posterior means and the guided one
overview      one real state in which the cap acts: x, m_u, m_c, the mean of fixed CFG and the capped one
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ...diagnostics import Record
from ...lab.condition import Condition
from ...lab.mixture import Mixture
from ...lab.sampler import flow
from ...lab.scenes import STD, TRIPLE, Scene
from ...rules import CFG, guide
from ...sampling import sample, trajectory
from .config import GUIDANCE, SETTINGS, TIMES, GMMConfig, Setting, start_noise
from .folder import GMMFolder

Array = npt.NDArray[Any]
LANDSCAPE_TIMES = (0.2, 0.4, 0.6, 0.8, 1.0)
BINS = 101
_SHOWN, _METERED, _PATHS = 4000, 4096, 48
_QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


def write_figure_data(folder: GMMFolder, config: GMMConfig) -> None:
    """Writes what the figures of the mixture report are drawn from."""
    folder.arrays("data/landscape.npz", landscape())
    folder.arrays("data/endpoints.npz", endpoints(config))
    folder.table("data/meter.csv", [row for setting in SETTINGS for row in meter(setting, config)])
    paths = trajectories(config)
    folder.arrays("data/trajectories.npz", paths)
    folder.arrays("data/overview.npz", overview(paths))


def landscape() -> dict[str, Array]:
    """log p(A | x), times x rows (second coordinate) x columns (first coordinate)."""
    condition, axis = TRIPLE.condition(), torch.linspace(-1.6, 1.6, 241, dtype=torch.float64)
    values = [_log_posterior(condition, axis, axis, t) for t in LANDSCAPE_TIMES]
    means = condition.mixture.means.numpy()
    return {
        "axis": axis.numpy(),
        "times": np.array(LANDSCAPE_TIMES),
        "log_posterior": np.stack(values),
        "means": means,
        "members": np.array(TRIPLE.members),
    }


def endpoints(config: GMMConfig) -> dict[str, Array]:
    """The first repeat of every row, by the row's name."""
    arrays: dict[str, Array] = {}
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


def meter(setting: Setting, config: GMMConfig) -> list[dict[str, object]]:
    """One row per time and quantity."""
    record = Record()
    start = start_noise(setting, config)[:_METERED].double()
    sample(setting.scene.condition().predict, setting.rule, start, TIMES, record=record)
    stacked = record.stacked()
    rows: list[dict[str, object]] = []
    for i, t in enumerate(TIMES[:-1]):
        for quantity in ("scale", "ratio", "gap", "active"):
            values = stacked[quantity][i].double()
            quantiles = values.quantile(torch.tensor(_QUANTILES, dtype=torch.float64)).tolist()
            rows.append(
                {
                    "members": setting.members,
                    "guidance": setting.guidance,
                    "t": f"{t:g}",
                    "quantity": quantity,
                    "mean": f"{float(values.mean()):.6g}",
                    **{
                        f"q{round(100 * q):02d}": f"{v:.6g}"
                        for q, v in zip(_QUANTILES, quantiles, strict=True)
                    },
                }
            )
    return rows


def trajectories(config: GMMConfig) -> dict[str, Array]:
    """Paths (times, paths, 2) of every setting; the settings of a scene start from the same noise."""
    arrays: dict[str, Array] = {"times": np.array(TIMES)}
    for setting in SETTINGS:
        paired = Setting(setting.scene, next(iter(GUIDANCE)))
        start = start_noise(paired, config)[:_PATHS].double()
        steps = list(trajectory(setting.scene.condition().predict, setting.rule, start, TIMES))
        x = torch.stack([steps[0].x, *(step.x_next for step in steps)])
        means = {"m": [s.m for s in steps], "m_c": [s.prediction.m_c for s in steps]}
        means["m_u"] = [s.prediction.m_u for s in steps]
        arrays[f"{setting} x"] = x.numpy()
        arrays.update({f"{setting} {name}": torch.stack(values).numpy() for name, values in means.items()})
    return arrays


def overview(paths: dict[str, Array]) -> dict[str, Array]:
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
        "log_posterior": _log_posterior(condition, axis, axis, TIMES[i]),
        "members": np.array(str(setting.scene)),
    }


def _log_posterior(condition: Condition, first: Tensor, second: Tensor, t: float) -> Array:
    y, x = torch.meshgrid(second, first, indexing="ij")
    values: Array = condition.log_posterior(torch.stack([x, y], -1), t).float().numpy()
    return values


def _edges(scene: Scene, axis: int) -> Array:
    """101 bins over the members along one axis, six widths beyond the outermost."""
    at = scene.condition().conditional.means[:, axis]
    return np.linspace(float(at.min()) - 6 * STD, float(at.max()) + 6 * STD, BINS + 1)
