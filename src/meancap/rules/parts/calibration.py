"""A calibration: where the conditional means of a model lie, an anchor and radii, and the cap made from it.

    r       anchor: the unconditional mean at the first step, averaged over a pilot; ideally E[data]
    R(t)    a quantile, or the root mean square, of |m_c - r| over the pilot at time t
    Cap     |m - r| <= max(gamma |m_c - r|, R(t)): guidance goes where unguided means go anyway, not farther

The file is JSON of a few kilobytes; a rule made from it is an ordinary `Cap`, which prints and parses.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...files import write_whole
from ...schedules import Piecewise, Values
from .cap import Cap

FORMAT = 1
QUANTILES = {"q50": 0.5, "q75": 0.75, "q90": 0.9, "q97": 0.97}
LEVELS = ("rms", *QUANTILES)
FEWEST = 16
LARGEST = 1024  # elements of an anchor that a text can still hold


@dataclass(frozen=True)
class Calibration:
    """What a pilot found: the anchor, and for each level one radius per evaluation time."""

    anchor: Values
    times: tuple[float, ...]
    radii: Mapping[str, tuple[float, ...]]
    samples: int
    model: str = ""

    def cap(self, gamma: float = 1.0, level: str = "rms") -> Cap:
        """The cap with this anchor and the radii of one level as its floor."""
        if level not in self.radii:
            raise ValueError(f"this calibration has the levels {', '.join(self.radii)}; got {level!r}")
        return Cap(gamma, anchor=self.anchor, floor=Piecewise(self.times, self.radii[level]))

    def as_json(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "model": self.model,
            "samples": self.samples,
            "anchor": json.loads(str(self.anchor)),
            "times": list(self.times),
            "radii": {level: list(values) for level, values in self.radii.items()},
        }

    def save(self, path: str | Path) -> Path:
        """Writes the file; it appears whole or not at all."""
        path = Path(path)
        lines = [f" {json.dumps(key)}: {json.dumps(value)}" for key, value in self.as_json().items()]
        return write_whole(path, "{\n" + ",\n".join(lines) + "\n}\n")


def from_pilot(anchor: Values, times: Sequence[float], radii: Tensor, model: str) -> Calibration:
    """What a pilot's radii |m_c - r|, (evaluations, samples), say at each of its times."""
    count = radii.shape[1]
    if count < FEWEST:
        raise ValueError(f"a pilot needs at least {FEWEST} samples for its quantiles; got {count}")
    levels = {"rms": radii.square().mean(1).sqrt()}
    levels |= {name: radii.quantile(q, dim=1) for name, q in QUANTILES.items()}
    return Calibration(anchor, tuple(times), {name: digits(v) for name, v in levels.items()}, count, model)


def load_calibration(path: str | Path) -> Calibration:
    """Reads a file that `meancap calibrate` wrote."""
    path = Path(path)
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise ValueError(
            f"{path} is no calibration file ({error}); write one with `meancap calibrate`"
        ) from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ValueError(f"{path} is no calibration of format {FORMAT}; write one with `meancap calibrate`")
    try:
        radii = {str(k): tuple(float(r) for r in v) for k, v in content["radii"].items()}
        times = tuple(float(t) for t in content["times"])
        read = Calibration(
            Values(content["anchor"]), times, radii, int(content["samples"]), str(content["model"])
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is damaged ({error}); write it again with `meancap calibrate`") from None
    for level in read.radii:
        read.cap(level=level)  # Piecewise refuses what does not fit together
    return read


def calibrated(path: str | Path, gamma: float = 1.0, level: str = "rms") -> Cap:
    """The cap that a calibration file stands for, to chain after a rule: `CFG(5) | calibrated("c.json")`."""
    return load_calibration(path).cap(gamma, level)


def anchor_of(mean: Tensor, per: str | None) -> Values:
    """One value per 'element' or per 'channel'; by default per element up to `LARGEST` of them."""
    if mean.dim() > 1 and (per == "channel" or (per is None and mean.numel() > LARGEST)):
        mean = mean.flatten(1).mean(1)
    return Values(torch.tensor(digits(mean.flatten()), dtype=torch.float64).reshape(mean.shape))


def digits(values: Tensor) -> tuple[float, ...]:
    """Six digits: far below the error of any pilot, and a file that people can read."""
    return tuple(float(f"{v:.6g}") for v in values.tolist())
