"""What the scenes study finds beforehand, on prompts and noise that it does not use.

    radii        APG's radius at each scale: the one with most pictures wholly right and drawn
    temperature  of density feedback, chosen in the same way at the second scale
    best         the scale of fixed guidance with most pictures wholly right, for each model
    calibrated   the cap with the radii of an unguided run

Ties go to the first candidate.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ..files import write_whole
from ..rules import CFG, DensityFeedback, Rule, apg, density_feedback, parse
from ..sampling import noise, sample, shifted
from ..scenes import Measured, detector, measure_pictures
from ..scenes import codes as codes_of
from ..scenes.model import WRONG, SceneModel, scenes
from .calibrate import calibrate
from .config import sample_seed
from .generate import SHIFT
from .scene_runs import complete_and_partial

if TYPE_CHECKING:
    from .scenes_study import SceneStudy

PILOT_SEED = 1000
RADII = (2.5, 5.0, 10.0, 20.0)
TEMPERATURES = (1.0, 4.0)


@dataclass(frozen=True)
class ScenePilots:
    """What is known before the study."""

    radii: dict[str, float]  # of APG, by the scale
    temperature: float  # of density feedback
    best: dict[str, float]  # scale of fixed guidance, by the part
    calibrated: dict[str, str]  # the cap as text, by the part

    def cap(self, part: str) -> Rule:
        """The calibrated cap of a part; negative prompts are put to the model of the first part."""
        return parse(self.calibrated["wrong" if part == "wrong" else "scenes"])

    def apg(self, scale: float) -> Rule:
        """APG with the radius for this scale."""
        return apg(scale, radius=self.radii[f"{scale:g}"])

    def feedback(self, scale: float) -> DensityFeedback:
        """Density feedback that begins at this scale: R = 1 there, so that the scale is 1 / pi."""
        return density_feedback(round(1 / scale, 4), temperature=self.temperature)


def open_pilots(study: SceneStudy, out: Path) -> ScenePilots:
    """What study.json says, or what pilots find; a study with other options is refused.

    The number of seeds may grow: no cell depends on it.
    """
    path = out / "study.json"
    model = scenes()
    asked = json.loads(json.dumps(asdict(study) | {"model": model.sha256}))
    if path.is_file():
        known = json.loads(path.read_text(encoding="utf-8"))
        if known["asked"] | {"seeds": 0} != asked | {"seeds": 0}:
            raise ValueError(f"{out} holds a study with other options or another model; give another folder")
        return ScenePilots(**known["pilots"])
    out.mkdir(parents=True, exist_ok=True)
    pilots = find_pilots(study, model)
    write_whole(path, json.dumps({"asked": asked, "pilots": asdict(pilots)}, indent=1) + "\n")
    return pilots


def find_pilots(study: SceneStudy, model: SceneModel) -> ScenePilots:
    """Runs the pilots."""
    network = detector()
    prompts = complete_and_partial(study.prompts, PILOT_SEED)
    codes = codes_of(prompts)
    x = noise([sample_seed(PILOT_SEED, i) for i in range(len(prompts))], model.shape)
    times = shifted(study.steps, SHIFT)

    def made(rule: Rule, by: SceneModel) -> Measured:
        return measure_pictures(network, by.decode(sample(by.predict(codes), rule, x, times)), codes)

    def right(rule: Rule, by: SceneModel) -> int:
        return int(made(rule, by).right["all"].sum())

    def hits(rule: Rule) -> int:
        seen = made(rule, model)
        return int((seen.right["all"] & seen.drawn).sum())

    def radius(scale: float) -> float:
        return best_of(RADII, lambda r: hits(apg(scale, radius=r)))

    start = round(1 / study.scales[len(study.scales) > 1], 4)
    models = {"scenes": (model, study.scales)}
    if WRONG.is_file():
        models["wrong"] = (scenes(wrong_captions=True), study.wrong_scales)
    return ScenePilots(
        radii={f"{scale:g}": radius(scale) for scale in study.scales},
        temperature=best_of(TEMPERATURES, lambda heat: hits(density_feedback(start, temperature=heat))),
        best={part: best_of(scales, partial(_of_fixed, right, by)) for part, (by, scales) in models.items()},
        calibrated={
            part: str(calibrate([(by.predict(codes), x)], times, model=by.name).cap())
            for part, (by, _) in models.items()
        },
    )


def _of_fixed(score: Callable[[Rule, SceneModel], int], model: SceneModel, scale: float) -> int:
    return score(CFG(scale), model)


def best_of(values: Sequence[float], score: Callable[[float], int]) -> float:
    """The value with the highest score; ties go to the first."""
    return max(values, key=score)
