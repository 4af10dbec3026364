"""The fashion study: the protocol of `reproduce fashion` with two more caps, which a pilot prepares.

anchored     CFG(λ) | Cap(1.1, anchor='first'): lengths from the unconditional mean of the first step
calibrated   CFG(λ) | Cap(1, anchor=r, floor=R): no gamma; radii R(t) measured on an unguided pilot
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ..models.classes import ClassModel
from ..rules import CFG, Cap
from ..sampling import noise, uniform
from .calibrate import Calibration, calibrate, load_calibration
from .config import sample_seed
from .protocols import Choice, ImageProtocol, ImageSetting, fashion

PILOT = 200
SCALES = (1.5, 2.0, 3.0, 4.0, 6.0)


def fashion_study(
    model: ClassModel,
    per_class: int = 200,
    scales: Sequence[float] = SCALES,
    evaluations: Sequence[int] = (20, 50),
    seed: int = 0,
    *,
    out: Path,
) -> ImageProtocol:
    """All settings of the study; its pilots, one per evaluation count, are kept in `out` and run once."""
    plain = fashion(per_class, scales, evaluations, seed)
    settings = list(plain.settings)
    for n in evaluations:
        calibration = pilot_calibration(model, n, seed, out / f"calibration-n{n}-seed{seed}.json")
        for scale in scales:
            first = Cap(1.10, anchor="first")
            settings.append(ImageSetting("PMC anchored", scale, CFG(scale) | first, n, gamma=1.10))
            settings.append(ImageSetting("PMC calibrated", scale, CFG(scale) | calibration.cap(), n))
    why = "the calibration's default; a pilot has noise of its own"
    choice = Choice("calibrated cap", f"root-mean-square radii of {PILOT} unguided samples", why)
    return replace(plain, settings=tuple(settings), choices=(*plain.choices, choice))


def pilot_calibration(model: ClassModel, evaluations: int, seed: int, path: Path) -> Calibration:
    """Unguided samples from noise that no run of the study uses; a result on disk is used again.

    The radii stand in the rules, and a resumed study must have the same rules to the last digit.
    """
    if path.is_file():
        return load_calibration(path)
    labels = [i % model.classes for i in range(PILOT)]
    x = noise([sample_seed(seed + 1, i) for i in range(PILOT)], model.shape, device=model.device)
    calibration = calibrate([(model.predict(labels), x)], uniform(evaluations), model=model.name)
    path.parent.mkdir(parents=True, exist_ok=True)
    calibration.save(path)
    return load_calibration(path)
