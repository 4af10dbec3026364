"""Calibration without a knob: where the conditional means of a model lie, measured on an unguided pilot.

The pilot follows the conditional prediction alone, so that guidance cannot calibrate itself. What it finds,
its file and the cap made from it are in `meancap.rules.parts.calibration`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from ..rules import CFG, Values
from ..rules.parts.calibration import (
    FEWEST,
    LEVELS,
    Calibration,
    anchor_of,
    calibrated,
    from_pilot,
    load_calibration,
)
from ..sampling import Predict, trajectory

__all__ = ["LEVELS", "Calibration", "calibrate", "calibrated", "load_calibration"]

Pilot = tuple[Predict, Tensor]


def calibrate(
    pilots: Iterable[Pilot], times: Sequence[float], *, model: str = "", per: str | None = None
) -> Calibration:
    """Runs a pilot, given as batches of a predictor and its noise (n, ...), and measures it.

    The anchor has one value per 'element' or per 'channel'; by default per element up to `LARGEST` of them.
    """
    if per not in (None, "element", "channel"):
        raise ValueError(f"an anchor is per 'element' or per 'channel'; got {per!r}")
    batches = list(pilots)
    count = sum(len(x) for _, x in batches)
    if count < FEWEST:
        raise ValueError(f"a pilot needs at least {FEWEST} samples for its quantiles; got {count}")
    total = sum(predict(x, times[0]).m_u.double().sum(0).cpu() for predict, x in batches)
    assert isinstance(total, Tensor)
    anchor = anchor_of(total / count, per)
    radii = torch.cat([_radii(predict, x, times, anchor) for predict, x in batches], dim=1)
    return from_pilot(anchor, times[:-1], radii, model)


def _radii(predict: Predict, x: Tensor, times: Sequence[float], anchor: Values) -> Tensor:
    """|m_c - r| along the unguided flow, (steps, n)."""
    radii = []
    for step in trajectory(predict, CFG(1.0), x, times):
        m_c = step.prediction.m_c
        radii.append(
            torch.linalg.vector_norm((m_c - anchor.on(m_c, "anchor")).flatten(1).double(), dim=1).cpu()
        )
    return torch.stack(radii)
