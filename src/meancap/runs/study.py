"""The fashion study: the protocol of `reproduce fashion` with two more caps, and what pilots prepare.

anchored     CFG(λ) | Cap(1.1, anchor='first'): lengths from the unconditional mean of the first step
calibrated   CFG(λ) | Cap(1, anchor=r, floor=R): no gamma; radii R(t) measured on an unguided pilot
APG          its radius at each scale is the one with the lowest FD-fashion on the pilot's noise
beyond       scales that are for caps alone: fixed guidance is past the truth long before

No seed of the study is the pilots'.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ..files import write_whole
from ..metrics.classifiers import fashion_classifier
from ..metrics.distances import frechet_distance
from ..models.classes import ClassModel
from ..rules import CFG, Cap, Rule, apg
from ..sampling import noise, sample, uniform
from .calibrate import Calibration, calibrate, load_calibration
from .config import sample_seed
from .protocols import Choice, ImageProtocol, ImageSetting, fashion
from .scoring import shipped_fashion

PILOT, PILOT_SEED = 200, 1000
TUNED = 100  # pictures of each radius
RADII = (1.25, 2.5, 5.0, 10.0)
SCALES, BEYOND = (2.0, 3.0, 6.0), (15.0, 50.0)


def fashion_study(
    model: ClassModel,
    per_class: int = 200,
    scales: Sequence[float] = SCALES,
    evaluations: Sequence[int] = (20,),
    seed: int = 0,
    *,
    beyond: Sequence[float] = BEYOND,
    out: Path,
) -> ImageProtocol:
    """All settings of the study; its pilots, one per evaluation count, are kept in `out` and run once."""
    settings: list[ImageSetting] = []
    radii = {n: tuned_radii(model, n, scales, out / f"apg-n{n}.json") for n in evaluations}
    plain = fashion(per_class, scales, evaluations, seed)
    for s in plain.settings:
        tuned = apg(s.scale, radius=radii[s.evaluations][f"{s.scale:g}"]) if s.method == "APG" else s.rule
        settings.append(replace(s, rule=tuned))
    for n in evaluations:
        calibration = pilot_calibration(model, n, out / f"calibration-n{n}.json")
        for scale in (*scales, *beyond):
            if scale in beyond:
                settings += [
                    ImageSetting("PMC", scale, CFG(scale) | Cap(gamma), n, gamma) for gamma in (1.05, 1.10)
                ]
            first = Cap(1.10, anchor="first")
            settings.append(ImageSetting("PMC anchored", scale, CFG(scale) | first, n, gamma=1.10))
            settings.append(ImageSetting("PMC calibrated", scale, CFG(scale) | calibration.cap(), n))
    why = "the calibration's default; a pilot has noise of its own"
    choices = [
        Choice("APG", f"eta 0, momentum -0.5, on means; radius by scale {radii}", "lowest FD of a pilot"),
        *(c for c in plain.choices if c.what != "APG"),
        Choice("calibrated cap", f"root-mean-square radii of {PILOT} unguided samples", why),
    ]
    return replace(plain, settings=tuple(settings), choices=tuple(choices))


def tuned_radii(model: ClassModel, evaluations: int, scales: Sequence[float], path: Path) -> dict[str, float]:
    """APG's radius at each scale, by FD-fashion on noise that no run of the study uses; kept on disk."""
    known: dict[str, float] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    missing = [scale for scale in scales if f"{scale:g}" not in known]
    if not missing:
        return known
    labels = [i % model.classes for i in range(TUNED)]
    x = noise([sample_seed(PILOT_SEED, i) for i in range(TUNED)], model.shape, device=model.device)
    network, reference = fashion_classifier(), shipped_fashion().gaussian("pool")

    def distance(rule: Rule) -> float:
        pictures = model.decode(sample(model.predict(labels), rule, x, uniform(evaluations)))
        return frechet_distance(network(pictures.permute(0, 2, 3, 1), [""] * TUNED)["pool"], reference)

    for scale in missing:
        distances = [distance(apg(scale, radius=r)) for r in RADII]
        known[f"{scale:g}"] = RADII[distances.index(min(distances))]
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps(known) + "\n")
    return known


def pilot_calibration(model: ClassModel, evaluations: int, path: Path) -> Calibration:
    """Unguided samples from noise that no run of the study uses; a result on disk is used again.

    The radii stand in the rules, and a resumed study must have the same rules to the last digit.
    """
    if path.is_file():
        return load_calibration(path)
    labels = [i % model.classes for i in range(PILOT)]
    x = noise([sample_seed(PILOT_SEED, i) for i in range(PILOT)], model.shape, device=model.device)
    calibration = calibrate([(model.predict(labels), x)], uniform(evaluations), model=model.name)
    path.parent.mkdir(parents=True, exist_ok=True)
    calibration.save(path)
    return load_calibration(path)
