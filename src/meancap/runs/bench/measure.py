"""One cell: a family on a problem, tuned, scored, and met on equal terms.

    spread, refined   sw2 and alignment on the tuning noise, at every setting that was tried
    tuned             the best of them, scored on other noise; by Euler, and by a solver without error
    effective         fixed CFG at the scale that the tuned rule really used: its displacement along the gap,
                      averaged over samples and times with the gap as weight
    aligned           the tuned rule with another scale, found by bisection, at which the alignment is nine
                      tenths of the way from no guidance to the truth
    carried           the setting that was best over the problems to choose on, on a problem held out

A reading is a row: the rule's settings and, for each block of noise, what was measured.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from torch import Tensor

from ...lab.measures import Ruler
from ...lab.problems import Problem
from ...record import Record
from ...sampling import sample
from .config import TUNING, BenchConfig, noise, role
from .families import FIXED, MATCHED, PERFECT, UNGUIDED, Family
from .knobs import around, spread
from .setup import (
    LARGEST,
    Setting,
    dimensions,
    ends,
    model_of,
    rule_of,
)

SOLVERS = ("euler", "midpoint")
_WAY, _LEAST_WAY, _NEAR, _HALVINGS = 0.9, 0.01, 0.001, 10


@dataclass(frozen=True)
class Reading:
    """What one setting of a rule gave, block by block."""

    what: str
    solver: str
    setting: Setting
    sw2: tuple[float, ...]
    alignment: tuple[float, ...]
    lost: float = 0.0  # share of samples that ran away


@lru_cache(maxsize=2)
def ruler(problem: Problem, config: BenchConfig) -> Ruler:
    """Everything about a truth, once per process."""
    return Ruler(problem.condition(), config.points, config.slices)


def scoring_noise(problem: Problem, config: BenchConfig) -> Tensor:
    """The starts of all blocks that a problem is scored on, (blocks * points, d)."""
    d = dimensions(problem)
    return torch.cat([noise(d, config, block) for block in range(config.scored(problem.name))])


def readings(
    what: str, solver: str, settings: Sequence[Setting], x: Tensor, problem: Problem, config: BenchConfig
) -> list[Reading]:
    """Measures the ends x (settings, blocks * points, d)."""
    rod = ruler(problem.exact(), config)
    blocks = x.reshape(len(x), -1, config.points, x.shape[-1])
    sw2, alignment = rod.sw2(blocks), rod.alignment(blocks)
    lost = (x.abs() >= LARGEST).any(-1).double().mean(1)
    return [
        Reading(what, solver, setting, _digits(sw2[i]), _digits(alignment[i]), float(f"{float(lost[i]):.3g}"))
        for i, setting in enumerate(settings)
    ]


def _digits(values: Tensor) -> tuple[float, ...]:
    return tuple(float(f"{v:.5g}") for v in values.tolist())


def score(
    what: str, solver: str, family: Family, settings: Sequence[Setting], problem: Problem, config: BenchConfig
) -> list[Reading]:
    """Settings on the scoring noise."""
    x = ends(family, problem, config, settings, scoring_noise(problem, config), solver)
    return readings(what, solver, settings, x, problem, config)


def tune(family: Family, problem: Problem, config: BenchConfig) -> list[Reading]:
    """All settings that are tried, on the tuning noise."""
    start = noise(dimensions(problem), config, TUNING)
    if not family.knobs:
        return _tried("spread", family, [{}], start, problem, config)
    places = spread(config.spread, len(family.knobs))
    first = _tried("spread", family, [family.setting(u) for u in places], start, problem, config)
    if not config.refined or role(problem.name) == "chosen":
        return first
    best = min(range(len(first)), key=lambda i: first[i].sw2)
    near = [family.setting(u) for u in around(places[best], config.spread)]
    return [*first, *_tried("refined", family, near, start, problem, config)]


def _tried(
    what: str,
    family: Family,
    settings: Sequence[Setting],
    start: Tensor,
    problem: Problem,
    config: BenchConfig,
) -> list[Reading]:
    x = ends(family, problem, config, settings, start, "euler")
    return readings(what, "euler", settings, x, problem, config)


def score_family(
    family: Family, settings: dict[str, Setting], problem: Problem, config: BenchConfig
) -> list[Reading]:
    """The tuned setting, and one that is carried over if there is one, on the scoring noise."""
    found = []
    for solver in SOLVERS:
        both = score("tuned", solver, family, list(settings.values()), problem, config)
        found += [replace(one, what=what) for what, one in zip(settings, both, strict=True)]
    if family.name in MATCHED or family.group == "yours":
        if family != FIXED and family.side != "autoguidance":  # whose gap is another one
            found += matched_scale(family, settings["tuned"], problem, config)
        if family.scaled:
            found += matched_alignment(family, settings["tuned"], problem, config)
    return found


def matched_scale(family: Family, best: Setting, problem: Problem, config: BenchConfig) -> list[Reading]:
    """Fixed CFG at the effective scale of the tuned rule, where that is a number of sensible size."""
    record, start = Record(), noise(dimensions(problem), config, TUNING)
    shown = model_of(family, problem, config.steps)
    sample(shown, rule_of(family, problem, config, best), start, config.times, record=record)
    seen = record.stacked()
    used = float((seen["scale"] * seen["gap"]).sum() / seen["gap"].sum())
    if not (math.isfinite(used) and abs(used) < LARGEST):
        return []
    return score("effective", "euler", FIXED, [{"scale": float(f"{used:.5g}")}], problem, config)


def matched_alignment(family: Family, best: Setting, problem: Problem, config: BenchConfig) -> list[Reading]:
    """The rule at the scale whose alignment is the target; nothing where it is not reached."""
    target = alignment_target(problem, config)
    if target is None:
        return []
    knob = family.knobs[0]

    def at(scale: float) -> Reading:
        return score("aligned", "euler", family, [{**best, "scale": scale}], problem, config)[0]

    low, high = math.log(1e-3), math.log(knob.high - 1)
    reading = at(knob.high)
    if _mean(reading.alignment) < target:  # not at the end of the reach: at the tuned scale, perhaps
        high = math.log(max(best["scale"] - 1, 1e-3))
        reading = at(best["scale"])
        if _mean(reading.alignment) < target:
            return []
    for _ in range(_HALVINGS):
        if abs(_mean(reading.alignment) - target) < _NEAR:
            break
        middle = (low + high) / 2
        reading = at(float(f"{1 + math.exp(middle):.5g}"))
        low, high = (low, middle) if _mean(reading.alignment) > target else (middle, high)
    return [reading]


@lru_cache(maxsize=2)
def alignment_target(problem: Problem, config: BenchConfig) -> float | None:
    """Nine tenths of the way from no guidance to the truth; None where there is no way to speak of."""
    a, b = (
        _mean(score("tuned", "euler", one, [{}], problem, config)[0].alignment) for one in (UNGUIDED, PERFECT)
    )
    return a + _WAY * (b - a) if b - a >= _LEAST_WAY else None


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
