"""Rules as families: one rule for each nominal scale, so that each can be swept and met on equal terms.

nominal      the scale is the one of plain CFG, so that rules can be compared at equal scale
calibration  level of the pilot's radii (see calibrate.py): the cap is then made for each problem
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import torch

from ...lab.problems import Problem
from ...rules import CFG, Entry, Rectify, Rule, catalogue, parse
from ...sampling.model_side import recfg_table
from ..calibrate import Calibration, calibrate
from .config import BenchConfig, noise

# A coarse sweep hides a narrow optimum; fixed CFG above all must be met at its best.
FINER = ("cfg", "pmc", "anchored 1.1", "calibrated q90")
OWN_UNITS = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0)  # of the published scale, for rules that count in their own way


@dataclass(frozen=True)
class Family:
    """A method at every scale: `call` is a rule as text with {scale} in it."""

    name: str
    call: str
    group: str = "rival"
    nominal: bool = True
    published: float = 4.0
    calibration: str = ""
    unit: bool = True  # scale 1 is the unguided model, so that every sweep begins there

    def scales(self, config: BenchConfig) -> tuple[float, ...]:
        """The sweep, without scale 1 where that is the unguided model for every rule."""
        if not self.swept:
            return (self.published,)
        if not self.nominal:
            return tuple(self.published * u for u in OWN_UNITS)
        extra = config.extra if self.name in FINER else (self.published,) if self.group == "yours" else ()
        return tuple(sorted({*config.scales, *extra}))

    @property
    def swept(self) -> bool:
        return "{scale}" in self.call

    def rule(self, scale: float, problem: Problem, config: BenchConfig) -> Rule:
        rule = parse(self.call.replace("{scale}", f"{scale:g}"))
        if self.calibration == RECFG.calibration:
            return ratios(problem, config) | rule
        return rule | pilot(problem, config).cap(level=self.calibration) if self.calibration else rule

    @property
    def slug(self) -> str:
        """A file name."""
        return re.sub(r"[^A-Za-z0-9.]+", "-", self.name).strip("-") or "rule"


@lru_cache(maxsize=32)
def pilot(problem: Problem, config: BenchConfig) -> Calibration:
    """The calibration of a problem's model, from noise of its own."""
    model = problem.model()
    start = noise(model.condition.mixture.means.shape[1], replace(config, seed=config.seed + 7919))
    return calibrate([(model.predict, start)], config.times, model=problem.name)


@lru_cache(maxsize=32)
def ratios(problem: Problem, config: BenchConfig) -> Rectify:
    """ReCFG's table for a problem's model, from data with the label."""
    data = problem.labelled(config.n, torch.Generator().manual_seed(config.seed + 1))
    return recfg_table(problem.model().predict, data, config.times, seed=config.seed, batch=config.n)


UNGUIDED = Family("unguided", "CFG(1)", "reference", published=1.0)
TRUTH = Family("perfect model", "CFG(1)", "reference", published=1.0)
FIXED = Family("cfg", "CFG({scale})", "reference")
PAPER = Family("pmc", "CFG({scale}) | Cap(1.1)", "cap")
RECFG = Family("recfg", "CFG({scale})", calibration="recfg")

_OURS = (
    PAPER,
    *(Family(f"cap {g:g}", f"CFG({{scale}}) | Cap({g:g})", "cap") for g in (1.0, 1.02, 1.05, 1.2, 1.5)),
    Family("displacement 1.05", "CFG({scale}) | CapDisplacement(1.05)", "cap"),
    Family("anchored 1.1", "CFG({scale}) | Cap(1.1, anchor='first')", "cap"),
    Family("anchored displacement 1.1", "CFG({scale}) | CapDisplacement(1.1, anchor='first')", "cap"),
    Family("smooth 1.1", "CFG({scale}) | Cap(1.1, smooth=0.5)", "cap"),
    Family("calibrated rms", "CFG({scale})", "cap", calibration="rms"),
    Family("calibrated q90", "CFG({scale})", "cap", calibration="q90"),
    Family("calibrated q97", "CFG({scale})", "cap", calibration="q97"),
)
# Knobs that carry units, at the size of these data; the published ones are for latents and do nothing here.
_FITTED = (
    Family("apg radius 0.1", "apg({scale}, radius=0.1)"),
    Family("apg without radius", "apg({scale}, radius=None, momentum=None)"),
    Family("interval 0.5 to 1", "CFG({scale}) | Interval(0.5, 1)"),
    Family("interval 0.7 to 1", "CFG({scale}) | Interval(0.7, 1)"),
    Family("interval 0.2 to 0.8", "CFG({scale}) | Interval(0.2, 0.8)"),
    Family("linear ramp from 1", "CFG(Linear(1, {scale}))"),
    Family("cosine ramp of the gain", "CFG(Ramp({scale}, shape='cosine', on='gain'))"),
    Family("apg radius 0.1 | cap", "apg({scale}, radius=0.1) | Cap(1.1)", "cap"),
)
# What the catalogue writes without a scale, swept in its own unit round the published value.
_OWN = {
    "cfgpp": ("cfgpp({scale})", 0.6),
    "cfgpp_adg": ("cfgpp_adg({scale})", 0.6),
    "power_law": ("power_law({scale}, 0.9)", 0.5),
}
_ON_GRID = {"tv_cfg": "tv_cfg({scale}, {steps})", "fbg": "fbg({steps})"}
_EXAMPLES = (
    "recfg",
)  # its table must be worked out for a model; the one in the catalogue shows the form only
_AXES = 2  # of a batch of vectors; rules for images need more


def families(config: BenchConfig) -> tuple[Family, ...]:
    """References, caps, and every rule of the catalogue that acts on vectors; one of each distinct text."""
    listed = [_listed(one, config) for one in catalogue() if one.kind == "rule" and one.axes <= _AXES]
    return _distinct((UNGUIDED, TRUTH, FIXED, *_OURS, *listed, *_FITTED))


def _listed(entry: Entry, config: BenchConfig) -> Family:
    if entry.name == RECFG.name:  # the table in the catalogue shows the form only
        return RECFG
    if entry.name in _OWN:
        call, published = _OWN[entry.name]
        return Family(entry.name, call, nominal=False, published=published, unit=False)
    call = _ON_GRID.get(entry.name, entry.call).replace("{steps}", str(config.steps))
    return Family(entry.name, call, nominal="{scale}" in call, published=entry.scale, unit=entry.unit)


def family_of(text: str) -> Family:
    """A user's own chain as a family: swept by the scale of its one CFG, or as it stands."""
    rule = parse(text)
    plain = [part for part in rule.parts if isinstance(part, CFG) and isinstance(part.scale, float)]
    if len(plain) != 1:
        return Family(str(rule), str(rule), "yours", nominal=False)
    scale = plain[0].scale
    swept = " | ".join("CFG({scale})" if part is plain[0] else str(part) for part in rule.parts)
    assert isinstance(scale, float)
    return Family(str(rule), swept, "yours", published=scale)


def chosen(config: BenchConfig, names: Sequence[str] | None, texts: Iterable[str] = ()) -> tuple[Family, ...]:
    """The families of these names, references always among them, and the user's own chains."""
    known = families(config)
    kept = known
    if names is not None:
        lost = [name for name in names if name not in {one.name for one in known}]
        if lost:
            raise ValueError(
                f"no rule here is called {lost[0]!r}; there are {', '.join(one.name for one in known)}"
            )
        always = {UNGUIDED.name, TRUTH.name, FIXED.name, *names}
        kept = tuple(one for one in known if one.name in always)
    return _distinct((*kept, *(family_of(text) for text in texts)), by_text=False)


def _distinct(families: Iterable[Family], *, by_text: bool = True) -> tuple[Family, ...]:
    """The first of each name and, in the catalogue, of each text."""
    kept: dict[str, Family] = {}
    texts: set[tuple[str, str]] = set()
    for one in families:
        text = (one.call, one.calibration)
        if one.name in kept or (by_text and text in texts and one.group == "rival"):
            continue
        kept[one.name] = one
        texts.add(text)
    return tuple(kept.values())
