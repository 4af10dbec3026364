"""Rules as families: a text with knobs in it, and where the method lives if it is more than a rule.

    call   the rule as text, with {scale}, {gamma}, ... for the knobs and {steps} for the grid
    side   'rule', or what `setup.py` does besides: wrap the model, move the state, train or calibrate first

Every family is tried at the same number of settings. A family's reach is part of its definition: scales go to
20, to 1000 where a cap limits them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from ...prediction import Prediction
from ...rules import CFG, Entry, Rule, catalogue, guide, parse
from .knobs import Knob, Place

SCALE = Knob("scale", 1.02, 20.0, origin=1.0)
CAPPED = Knob("scale", 1.02, 1000.0, origin=1.0)
GAMMA = Knob("gamma", 1.01, 3.0, origin=1.0)


@dataclass(frozen=True)
class Family:
    """A method with its knobs."""

    name: str
    call: str
    knobs: tuple[Knob, ...] = ()
    group: str = "rival"
    side: str = "rule"

    def setting(self, place: Place) -> dict[str, float]:
        """Values of the knobs at a point of the unit cube, to four digits."""
        return {k.name: float(f"{k.at(u):.4g}") for k, u in zip(self.knobs, place, strict=True)}

    def text(self, setting: dict[str, float], steps: int) -> str:
        filled = self.call.replace("{steps}", str(steps))
        for name, value in setting.items():
            filled = filled.replace("{" + name + "}", f"{value:g}")
        return filled

    def rule(self, setting: dict[str, float], steps: int) -> Rule:
        return parse(self.text(setting, steps))

    @property
    def scaled(self) -> bool:
        """Whether its first knob is a scale at which 1 is unguided, so that alignment can be matched."""
        return bool(self.knobs) and self.knobs[0].name == "scale" and self.knobs[0].origin == 1.0

    @property
    def slug(self) -> str:
        """A file name."""
        return re.sub(r"[^A-Za-z0-9.]+", "-", self.name).strip("-") or "rule"

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "knobs": [asdict(knob) for knob in self.knobs]}

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Family:
        return cls(**{**content, "knobs": tuple(Knob(**knob) for knob in content["knobs"])})


def _cap(name: str, call: str, *knobs: Knob, side: str = "rule") -> Family:
    return Family(name, call, (CAPPED, *knobs), "cap", side)


UNGUIDED = Family("no guidance", "CFG(1)", group="reference")
PERFECT = Family("perfect model", "CFG(1)", group="reference", side="perfect")
OPTIMUM = Family("known optimum", "CFG(1)", group="reference", side="optimum")
FIXED = Family("fixed CFG", "CFG({scale})", (SCALE,), "reference")
PAPER = _cap("cap 1.1 (the paper)", "CFG({scale}) | Cap(1.1)")
GAMMAS = (1.02, 1.05, 1.1, 1.2, 1.5)

_CAPS = (
    *(_cap(f"cap {g:g}", f"CFG({{scale}}) | Cap({g:g})") if g != 1.1 else PAPER for g in GAMMAS),
    _cap("cap, Γ tuned", "CFG({scale}) | Cap({gamma})", GAMMA),
    _cap("anchored cap, Γ tuned", "CFG({scale}) | Cap({gamma}, anchor='first')", GAMMA),
    _cap("displacement cap, Γ tuned", "CFG({scale}) | CapDisplacement({gamma})", GAMMA),
    _cap("calibrated cap, rms", "CFG({scale})", side="calibrated rms"),
    _cap("calibrated cap, q90", "CFG({scale})", side="calibrated q90"),
    _cap("late cap", "CFG({scale}) | Interval({lo}, 1) | Cap({gamma})", Knob("lo", 0.0, 0.6), GAMMA),
)
# Alignment and effective scale are matched for these, by some ten runs each.
MATCHED = (
    "fixed CFG", PAPER.name, "cap, Γ tuned", "anchored cap, Γ tuned", "calibrated cap, q90", "interval",
    "apg", "autoguidance", "power_law", "fbg", "density feedback",
)  # fmt: skip
_PI = Knob("pi", 0.3, 0.99)
_ELSEWHERE = (
    Family(
        "interval", "CFG({scale}) | Interval({lo}, {hi})", (SCALE, Knob("lo", 0, 0.5), Knob("hi", 0.6, 1)),
    ),
    Family("ramp from 1", "CFG(Linear(1, {scale}))", (SCALE,)),
    Family("autoguidance", "CFG({scale})", (SCALE,), side="autoguidance"),
    Family("rectified_cfgpp", "CFG({scale})", (SCALE,), side="rectified"),
    Family("manifold (CFG-MP+)", "CFG({scale})", (SCALE,), side="manifold"),
    Family("policy (optimal control)", "Gain({gain})", (Knob("gain", 0.05, 20, origin=0),), side="policy"),
    Family(
        "density feedback", "DensityFeedback({pi}, gain={gain})",
        (_PI, Knob("gain", 0.7, 2.5, origin=0)), side="feedback",
    ),
    Family(
        "density feedback, equal calls", "DensityFeedback({pi}, gain={gain})",
        (_PI, Knob("gain", 0.7, 2.5, origin=0)), side="feedback, half the steps",
    ),
)  # fmt: skip
# Methods of the catalogue with more knobs than a scale, or whose scale is not that of CFG.
_OWN: dict[str, tuple[str, tuple[Knob, ...]]] = {
    "apg": ("apg({scale}, radius={radius})", (SCALE, Knob("radius", 0.03, 10, origin=0))),
    "mambo_g": ("mambo_g({scale}, alpha={alpha})", (CAPPED, Knob("alpha", 0.3, 12, origin=0))),
    "power_law": ("power_law({omega}, {alpha})", (Knob("omega", 0.02, 5, origin=0), Knob("alpha", 0.3, 1.2))),
    "cfgpp": ("cfgpp({w})", (Knob("w", 0.01, 1.5, origin=0),)),
    "cfgpp_adg": ("cfgpp_adg({w})", (Knob("w", 0.01, 1.5, origin=0),)),
    "beta_cfg": ("beta_cfg({w})", (Knob("w", 0.05, 10, origin=0),)),
    "fbg": (
        "fbg({steps}, pi={pi}, t0={t0}, t1={t1})",
        (_PI, Knob("t0", 0.1, 0.9), Knob("t1", 0.1, 0.9)),
    ),
    "rescaled": ("rescaled({scale}, phi={phi})", (SCALE, Knob("phi", 0, 1))),
    "c2fg": ("c2fg({scale}, {rate})", (SCALE, Knob("rate", 0.05, 5, origin=0))),
    "smc": ("smc({scale}, gain={gain})", (SCALE, Knob("gain", 0.001, 0.3, origin=0))),
    "mimic": ("mimic({scale}, mimic={mimic})", (CAPPED, Knob("mimic", 1.05, 10, origin=1.0))),
    "skimmed": ("skimmed({scale}, skim={skim})", (CAPPED, Knob("skim", 1.05, 10, origin=1.0))),
    "vags": ("vags({scale}, kappa={kappa})", (SCALE, Knob("kappa", 0.1, 3, origin=0))),
    "adaptive_guidance": ("adaptive_guidance({scale}, above={above})", (SCALE, Knob("above", 0.5, 0.999))),
    "tv_cfg": ("tv_cfg({scale}, {steps})", (SCALE,)),
    "adg": ("adg({scale}, limit={limit})", (SCALE, Knob("limit", 0.05, 1.5, origin=0))),
}  # fmt: skip
# Among the families above, with more knobs, or listed by its forms.
_HERE = ("CFG", "pmc", "pmc_displacement", "limited_interval", "renorm")
_AXES = 2  # of a batch of vectors; rules for images need more


def families() -> tuple[Family, ...]:
    """References, caps, and every method of the catalogue that acts on vectors; one of each recipe."""
    listed = [
        _listed(one)
        for one in catalogue(forms=True)
        if one.kind == "rule" and one.axes <= _AXES and one.name not in _HERE and not one.needs
    ]
    return _distinct((UNGUIDED, PERFECT, OPTIMUM, FIXED, *_CAPS, *_ELSEWHERE, *listed))


def _listed(entry: Entry) -> Family:
    if entry.name == "recfg":  # the table in the catalogue shows the form only
        return Family("recfg", "CFG({scale})", (SCALE,), side="recfg")
    if entry.name in _OWN:
        return Family(entry.name, *_OWN[entry.name])
    call = f"{entry.name}({{scale}})" if entry.form_of else entry.call
    return Family(entry.name, call, (SCALE,) if "{scale}" in call else ())


def main_families(every: Iterable[Family]) -> tuple[Family, ...]:
    """References, caps, rules that are matched with fixed CFG, and the user's own: run on more problems."""
    return tuple(one for one in every if one.group != "rival" or one.name in MATCHED)


def family_of(text: str) -> Family:
    """A user's own chain as a family: tuned by the scale of its one CFG, or as it stands."""
    rule = parse(text)
    need_vectors(rule)
    plain = [part for part in rule.parts if isinstance(part, CFG) and isinstance(part.scale, float)]
    if len(plain) != 1:
        return Family(str(rule), str(rule), group="yours")
    tuned = " | ".join("CFG({scale})" if part is plain[0] else str(part) for part in rule.parts)
    return Family(str(rule), tuned, (CAPPED if rule.caps or "Cap" in tuned else SCALE,), "yours")


def need_vectors(rule: Rule) -> None:
    """Refuses, before anything is measured, a rule that cannot act on a mixture's points."""
    x = torch.eye(2)
    try:
        guide(rule, Prediction(x, 0.5, x + 1, x, t_next=0.6, extra={"log_ratio": torch.zeros(2)}))
    except (TypeError, ValueError) as error:
        raise ValueError(f"{rule} cannot run on the mixtures, whose samples are points: {error}") from error


def chosen(names: Sequence[str] | None, texts: Iterable[str] = ()) -> tuple[Family, ...]:
    """The families of these names, references always among them, and the user's own chains."""
    known = families()
    kept = known
    if names is not None:
        lost = [name for name in names if name not in {one.name for one in known}]
        if lost:
            raise ValueError(
                f"no rule here is called {lost[0]!r}; there are {', '.join(one.name for one in known)}"
            )
        kept = tuple(one for one in known if one.group == "reference" or one.name in names)
    return tuple({one.name: one for one in (*kept, *(family_of(text) for text in texts))}.values())


def _distinct(every: Iterable[Family]) -> tuple[Family, ...]:
    """The first of each name, and of rules that are the same in the middle of their knobs."""
    kept: dict[str, Family] = {}
    seen: set[str] = set()
    for one in every:
        middle = one.setting((0.5,) * len(one.knobs))
        key = str(one.rule(middle, 50)) if one.group == "rival" and one.side == "rule" else one.name
        if one.name not in kept and key not in seen:
            kept[one.name] = one
            seen.add(key)
    return tuple(kept.values())
