"""Rules as families: a text with knobs in it, and further steps if a method is more than a rule.

    call    the rule as text, with {scale}, {gamma}, ... for the knobs and {steps} for the grid
    run     the procedure that leads from noise to samples: on the model itself unless it says another
    calls   evaluations in a step, so that all methods have as many in a run
    group   'reference', 'cap', 'learned', 'rival' or 'yours'
    main    run at every number of evaluations; the others at the smallest only

Every family with knobs is tried at SPREAD settings, the same on every problem, and at REFINED settings round
the best of them, and may choose no guidance as well. Its reach is part of its definition: scales go to 20, to
1000 if a cap limits them. A family without knobs is one recipe for all problems.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from meancap.prediction import Prediction
from meancap.rules import CFG, Cap, Entry, Rule, catalogue, parse
from meancap.sampling import sample, uniform

from ..mixtures.literal_cap import LiteralCap
from . import procedures
from .procedures import Procedure, calibrated, learned, pilot_cap

Setting = dict[str, float]
Place = tuple[float, ...]  # a point of the unit cube, one number for each knob
SPREAD, REFINED = 8, 4


@dataclass(frozen=True)
class Knob:
    """A number from `low` to `high`; the grid is even in log(value - origin), or in the value if None."""

    name: str
    low: float
    high: float
    origin: float | None = None

    def at(self, u: float) -> float:
        """The value at u in [0, 1]."""
        if self.origin is None:
            return self.low + u * (self.high - self.low)
        a, b = math.log(self.low - self.origin), math.log(self.high - self.origin)
        return self.origin + math.exp(a + u * (b - a))


def spread(knobs: int, count: int = SPREAD) -> list[Place]:
    """`count` points; the first knob, mostly the scale, takes evenly spaced values whatever the others do."""
    # The root of x^(k+1) = x + 1 gives the additive recurrence that fills k dimensions most evenly.
    root = 2.0
    for _ in range(50):
        root = (1 + root) ** (1 / (knobs + 1))
    turns = [root ** -(j + 1) for j in range(1, knobs)]
    return [((i + 0.5) / count, *((0.5 + i * turn) % 1 for turn in turns)) for i in range(count)]


def around(best: Place) -> list[Place]:
    """REFINED points round the best of a spread, within the cube."""
    gap = 1 / SPREAD
    if len(best) == 1:
        moves: list[Place] = [(k * gap / 3,) for k in (-2, -1, 1, 2)]
    else:
        still = (0.0,) * (len(best) - 1)
        side = tuple(0.15 * (-1) ** j for j in range(len(best) - 1))
        moves = [(-gap / 2, *still), (gap / 2, *still), (0.0, *side), (0.0, *(-s for s in side))]
    return [tuple(min(1.0, max(0.0, u + v)) for u, v in zip(best, move, strict=True)) for move in moves]


@dataclass(frozen=True)
class Family:
    """A method with its knobs."""

    name: str
    call: str
    knobs: tuple[Knob, ...] = ()
    group: str = "rival"
    run: Procedure = procedures.together
    calls: int = 1
    main: bool = False

    def setting(self, place: Place) -> Setting:
        """Values of the knobs at a point of the unit cube, to four digits."""
        return {k.name: float(f"{k.at(u):.4g}") for k, u in zip(self.knobs, place, strict=True)}

    def text(self, setting: Setting, steps: int) -> str:
        """The rule at these knobs."""
        filled = self.call.replace("{steps}", str(steps))
        for name, value in setting.items():
            filled = filled.replace("{" + name + "}", f"{value:g}")
        return filled


SCALE = Knob("scale", 1.02, 20.0, origin=1.0)
CAPPED = Knob("scale", 1.02, 1000.0, origin=1.0)
_GAMMA = Knob("gamma", 1.01, 3.0, origin=1.0)
_PI, _GAIN = Knob("pi", 0.3, 0.99), Knob("gain", 0.7, 2.5, origin=0)

UNGUIDED = Family("no guidance", "CFG(1)", group="reference", main=True)
FIXED = Family("CFG, tuned", "CFG({scale})", (SCALE,), "reference", main=True)
PERFECT = Family("perfect model", "CFG(1)", group="reference", run=procedures.perfect_model, main=True)


def _cap(name: str, call: str, *knobs: Knob, run: Procedure = procedures.together) -> Family:
    return Family(name, call, (CAPPED, *knobs), "cap", run, main=True)


def _recipe(name: str, call: str, run: Procedure = procedures.together, group: str = "cap") -> Family:
    return Family(name, call, (), group, run, main=True)


_RMS, _Q90 = calibrated("rms"), calibrated("q90")
_CAPS = (
    _cap("Cap 1.1 (the paper)", "CFG({scale}) | Cap(1.1)"),
    _cap("Cap, Γ tuned", "CFG({scale}) | Cap({gamma})", _GAMMA),
    _cap("anchored cap, Γ tuned", "CFG({scale}) | Cap({gamma}, anchor='first')", _GAMMA),
    _cap("displacement cap, Γ tuned", "CFG({scale}) | CapDisplacement({gamma})", _GAMMA),
    _cap("calibrated cap, rms", "CFG({scale})", run=_RMS),
    _cap("calibrated cap, q90", "CFG({scale})", run=_Q90),
    Family("late cap", "CFG({scale}) | Interval({lo}, 1) | Cap({gamma})",
           (CAPPED, Knob("lo", 0.0, 0.6), _GAMMA), "cap"),
)  # fmt: skip
_LEARNED = tuple(
    _recipe(f"learned λ(t), {name}", "CFG(1)", run, "learned")
    for name, run in (
        ("512 examples", learned(512)),
        ("64 examples", learned(64)),
        ("512, labels as in training", learned(512, leak=lambda case: case.leak)),
        ("512, a fifth mislabelled", learned(512, leak=lambda case: 0.2)),
        ("512, calibrated cap q97", learned(512, cap=pilot_cap("q97"))),
        ("512, anchored cap 1.1", learned(512, cap=lambda *_: Cap(1.1, anchor="first"))),
    )
)
_RECIPES = (
    *(_recipe(f"CFG {s:g}", f"CFG({s:g})", group="reference") for s in (1.5, 2, 5)),
    *(_recipe(f"CFG {s}, Cap 1.1", f"CFG({s}) | Cap(1.1)") for s in (2, 5, 9)),
    _recipe("CFG 5, anchored cap 1.1", "CFG(5) | Cap(1.1, anchor='first')"),
    _recipe("CFG 5, displacement cap 1.15", "CFG(5) | CapDisplacement(1.15)"),
    _recipe("CFG 2, calibrated cap rms", "CFG(2)", _RMS),
    _recipe("CFG 5, calibrated cap rms", "CFG(5)", _RMS),
    _recipe("CFG 5, calibrated cap q90", "CFG(5)", _Q90),
)
_ELSEWHERE = (
    Family("interval", "CFG({scale}) | Interval({lo}, {hi})",
           (SCALE, Knob("lo", 0, 0.5), Knob("hi", 0.6, 1)), main=True),
    Family("ramp from 1", "CFG(Linear(1, {scale}))", (SCALE,)),
    Family("pmc_literal", f"CFG({{scale}}) | {LiteralCap.__name__}(1.1)", (SCALE,)),
    Family("autoguidance", "CFG({scale})", (SCALE,), run=procedures.guided_by_weaker, main=True),
    Family("density feedback", "DensityFeedback({pi}, gain={gain})", (_PI, _GAIN),
           run=procedures.one_by_one, calls=2, main=True),
    Family("density feedback, twice the calls", "DensityFeedback({pi}, gain={gain})", (_PI, _GAIN),
           run=procedures.one_by_one, main=True),
    Family("rectified_cfgpp", "CFG({scale})", (SCALE,), run=procedures.rectified, calls=2),
    Family("manifold (CFG-MP+)", "CFG({scale})", (SCALE,), run=procedures.manifold, calls=2),
    Family("policy (optimal control)", "Gain({gain})", (Knob("gain", 0.05, 20, origin=0),),
           run=procedures.policy),
)  # fmt: skip
# Methods of the catalogue with more knobs than a scale, or whose scale is not that of CFG.
_OWN: dict[str, tuple[str, tuple[Knob, ...]]] = {
    "apg": ("apg({scale}, radius={radius})", (SCALE, Knob("radius", 0.03, 10, origin=0))),
    "mambo_g": ("mambo_g({scale}, alpha={alpha})", (CAPPED, Knob("alpha", 0.3, 12, origin=0))),
    "power_law": ("power_law({omega}, {alpha})", (Knob("omega", 0.02, 5, origin=0), Knob("alpha", 0.3, 1.2))),
    "cfgpp": ("cfgpp({w})", (Knob("w", 0.01, 1.5, origin=0),)),
    "cfgpp_adg": ("cfgpp({w}, form='adg')", (Knob("w", 0.01, 1.5, origin=0),)),
    "beta_cfg": ("beta_cfg({w})", (Knob("w", 0.05, 10, origin=0),)),
    "fbg": ("fbg({steps}, pi={pi}, t0={t0}, t1={t1})", (_PI, Knob("t0", 0.1, 0.9), Knob("t1", 0.1, 0.9))),
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
_MAIN = ("apg", "power_law", "fbg")
# Among the families above, with more knobs, or listed by its forms.
_HERE = ("CFG", "pmc", "pmc_displacement", "limited_interval", "renorm")
_AXES = 2  # of a batch of vectors; rules for images need more

# At equal alignment a scale is found by bisection; the other knob is the best of these on the other noise.
MATCHED: dict[str, tuple[Family, ...]] = {
    FIXED.name: (FIXED,),
    "Cap 1.1 (the paper)": (_cap("", "CFG({scale}) | Cap(1.1)"),),
    "Cap, Γ tuned": tuple(_cap("", f"CFG({{scale}}) | Cap({g})") for g in (1.05, 1.1, 1.3)),
    "anchored cap 1.1": (_cap("", "CFG({scale}) | Cap(1.1, anchor='first')"),),
    "anchored cap, Γ tuned": tuple(
        _cap("", f"CFG({{scale}}) | Cap({g}, anchor='first')") for g in (1.05, 1.1, 1.3)
    ),
    "displacement cap, Γ tuned": tuple(
        _cap("", f"CFG({{scale}}) | CapDisplacement({g})") for g in (1.05, 1.15, 1.4)
    ),
    "calibrated cap, rms": (_cap("", "CFG({scale})", run=_RMS),),
    "calibrated cap, q90": (_cap("", "CFG({scale})", run=_Q90),),
    "interval": tuple(
        Family("", f"CFG({{scale}}) | Interval({lo}, {hi})", (SCALE,))
        for lo, hi in ((0.1, 1), (0.2, 1), (0.2, 0.8))
    ),
    "apg": tuple(Family("", f"apg({{scale}}, radius={r})", (SCALE,)) for r in (0.3, 1, 10)),
    "autoguidance": (Family("", "CFG({scale})", (SCALE,), run=procedures.guided_by_weaker),),
}  # fmt: skip


def families() -> tuple[Family, ...]:
    """References, caps, learned scales, and every method of the catalogue that acts on vectors."""
    listed = [
        _listed(one)
        for one in catalogue(forms=True)
        if one.kind == "rule" and one.axes <= _AXES and one.name not in _HERE and not one.needs
    ]
    ours = (UNGUIDED, FIXED, PERFECT, *_CAPS, *_LEARNED, *_RECIPES, *_ELSEWHERE)
    kept: dict[str, Family] = {one.name: one for one in ours}
    seen: set[str] = set()
    for one in listed:  # the first of each name, and of rules that are the same in the middle of their knobs
        key = str(parse(one.text(one.setting((0.5,) * len(one.knobs)), 50)))
        if one.name not in kept and (key not in seen or one.run is not procedures.together):
            kept[one.name] = one
            seen.add(key)
    return tuple(kept.values())


def _listed(entry: Entry) -> Family:
    main = entry.name in _MAIN
    if entry.name == "recfg":  # the table in the catalogue shows the form only
        return Family("recfg", "CFG({scale})", (SCALE,), run=procedures.recfg)
    if entry.name in _OWN:
        return Family(entry.name, *_OWN[entry.name], main=main)
    return Family(entry.name, entry.call, (SCALE,) if "{scale}" in entry.call else (), main=main)


def family_of(text: str) -> Family:
    """A user's own chain as a family: tuned by the scale of its one CFG, or as it stands."""
    rule = parse(text)
    _need_vectors(rule)
    plain = [part for part in rule.parts if isinstance(part, CFG) and isinstance(part.scale, float)]
    if len(plain) != 1:
        return Family(str(rule), str(rule), group="yours", main=True)
    tuned = " | ".join("CFG({scale})" if part is plain[0] else str(part) for part in rule.parts)
    return Family(str(rule), tuned, (CAPPED if "Cap" in tuned else SCALE,), "yours", main=True)


def _need_vectors(rule: Rule) -> None:
    def predict(x: Tensor, t: float) -> Prediction:
        return Prediction.from_mean(x, t, x + 1, x)

    try:
        sample(predict, rule, torch.eye(2), uniform(2))
    except (TypeError, ValueError) as error:
        raise ValueError(f"{rule} cannot run on the mixtures, whose samples are points: {error}") from error


def choose_families(names: Sequence[str] | None, texts: Iterable[str] = ()) -> tuple[Family, ...]:
    """The families of these names, references always among them, and the user's own chains."""
    known = families()
    kept = known
    if names is not None:
        missing = [name for name in names if name not in {one.name for one in known}]
        if missing:
            raise ValueError(
                f"unknown rule {missing[0]!r}; known rules: {', '.join(one.name for one in known)}"
            )
        always = (UNGUIDED, FIXED, PERFECT)
        kept = tuple(one for one in known if one in always or one.name in names)
    return tuple({one.name: one for one in (*kept, *(family_of(text) for text in texts))}.values())
