"""One cell of the benchmark: every family on one problem with one number of evaluations.

    tune     a block of noise on which every family looks for its setting
    score    another block, on which the setting that was found is measured
    sw2      sliced 2-Wasserstein distance to the truth, against exact quantiles
    end      rms distance per coordinate to where the perfect model, converged, leads from the same noise:
             a second score with little noise
    aligned  families at the scale, found by bisection, whose alignment p(A | x) is that of the truth

An evaluation is one of the conditional and the unconditional model together. A method that takes two of them
in a step makes half as many steps. All settings of a family run together, with one call of the model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from meancap.rules import CFG, parse
from meancap.sampling import midpoint, sample, uniform

from ..mixtures.measures import Ruler
from .cases import Case, starts, truth
from .families import UNGUIDED, Family, Setting, around, spread
from .predictors import alignment, perfect
from .procedures import Subject

SLICES, CONVERGED = 32, 100  # directions of sw2; midpoint steps of the perfect model
BLOCKS = ("tune", "score")
LARGEST = 1e3  # samples beyond it are lost and count at this size: no problem's data come near it
_WAY, _NEAR, _TRIES = 0.01, 0.001, 8


class Score(NamedTuple):
    """What one setting gave on one block."""

    sw2: float
    end: float
    alignment: float

    def short(self) -> list[float]:
        return [float(f"{v:.4g}") for v in self]


@dataclass(frozen=True, eq=False)
class Bench:
    """One problem at one number of evaluations, with everything that its families share."""

    case: Case
    evaluations: int
    folder: Path | None = None  # of trained networks

    @property
    def subject(self) -> Subject:
        return Subject(self.case, self.folder)

    def measure(self, ends: Tensor, block: str) -> list[Score]:
        """Scores of ends (settings, n, d)."""
        x = ends.nan_to_num(LARGEST, LARGEST, -LARGEST).clamp(-LARGEST, LARGEST)
        sw2 = _ruler(self.case).sw2(x).tolist()
        away = (x - _truth_ends(self.case)[block]).square().mean((1, 2)).sqrt().tolist()
        return [Score(*one) for one in zip(sw2, away, alignment(self.case, x).tolist(), strict=True)]

    def run(self, family: Family, settings: Sequence[Setting], block: str) -> list[Score]:
        """Scores of a family at these settings on one block."""
        steps = max(2, self.evaluations // family.calls)
        rules = [_parse(family.text(setting, steps)) for setting in settings]
        x = starts(self.case.dimension, block).float()
        with torch.no_grad():
            return self.measure(family.run(self.subject, rules, x, uniform(steps)), block)


def tune_cell(bench: Bench, families: Sequence[Family]) -> dict[str, Any]:
    """All spread settings of every family with knobs on the tuning block: sw2 of each."""
    found = {}
    for family in families:
        if family.knobs:
            settings = [family.setting(place) for place in spread(len(family.knobs))]
            found[family.name] = [float(f"{one.sw2:.4g}") for one in bench.run(family, settings, "tune")]
    return {"tried": found}


def score_cell(
    bench: Bench,
    families: Sequence[Family],
    carried: Mapping[str, Setting],
    matched: Mapping[str, Sequence[Family]],
) -> dict[str, Any]:
    """Every family tuned and carried over on the scoring block, and those of `matched` at equal alignment."""
    idle = {block: bench.run(UNGUIDED, [{}], block)[0] for block in BLOCKS}
    ends = {block: bench.measure(_truth_ends(bench.case)[block][None].float(), block)[0] for block in BLOCKS}
    rows = {family.name: _score(bench, family, carried.get(family.name), idle) for family in families}
    found: dict[str, Any] = {"truth": ends["score"].short(), "rules": rows}
    if matched and ends["score"].alignment - idle["score"].alignment >= _WAY:
        targets = {block: one.alignment for block, one in ends.items()}
        found["aligned"] = {
            name: one for name, some in matched.items() if (one := _align(bench, some, targets))
        }
        found["asked"] = list(matched)
    return found


def _score(bench: Bench, family: Family, carried: Setting | None, idle: dict[str, Score]) -> dict[str, Any]:
    """By 'sw2' and 'end' the setting that each of them chose, by 'all' the one for all problems."""
    if not family.knobs:
        score = idle["score"] if family == UNGUIDED else bench.run(family, [{}], "score")[0]
        return {"all": score.short()}
    places = spread(len(family.knobs))
    tried = bench.run(family, [family.setting(place) for place in places], "tune")
    best = min(range(len(tried)), key=lambda i: tried[i].sw2)
    places += around(places[best])
    settings = [family.setting(place) for place in places]
    tried += bench.run(family, settings[len(tried) :], "tune")
    chosen: dict[str, Setting | None] = {}
    for name, of in _SCORES.items():
        i = min(range(len(tried)), key=lambda i: of(tried[i]))
        chosen[name] = settings[i] if of(tried[i]) < of(idle["tune"]) else None  # None is no guidance
    if carried is not None:
        chosen["all"] = carried
    wanted = [setting for setting in chosen.values() if setting is not None]
    unique = [one for i, one in enumerate(wanted) if one not in wanted[:i]]
    scores = bench.run(family, unique, "score") if unique else []
    row: dict[str, Any] = {
        name: (idle["score"] if one is None else scores[unique.index(one)]).short()
        for name, one in chosen.items()
    }
    row["setting"] = chosen["sw2"]
    return row


_SCORES: dict[str, Callable[[Score], float]] = {"sw2": lambda one: one.sw2, "end": lambda one: one.end}


def _align(bench: Bench, some: Sequence[Family], targets: dict[str, float]) -> list[Any] | None:
    """The family at the truth's alignment: its scale and scores; None if it does not reach that."""
    reached = []
    for family in some:
        other = _bisect(bench, family, "tune", targets["tune"]) if len(some) > 1 else (1.0, Score(0, 0, 0))
        if other is not None:
            reached.append((other[1].sw2, family))
    if not reached:
        return None
    found = _bisect(bench, min(reached, key=lambda one: one[0])[1], "score", targets["score"])
    return None if found is None else [float(f"{found[0]:.4g}"), *found[1].short()]


def _bisect(bench: Bench, family: Family, block: str, target: float) -> tuple[float, Score] | None:
    """The first scale with this alignment: six scales, then a bracket in log(scale - 1) that closes."""
    logs = [math.log(0.02) + i / 5 * (math.log(family.knobs[0].high - 1) - math.log(0.02)) for i in range(6)]
    scores = bench.run(family, [{"scale": 1 + math.exp(v)} for v in logs], block)
    first = next((i for i, one in enumerate(scores) if one.alignment >= target), None)
    if first is None:
        return None
    best, high = (1 + math.exp(logs[first]), scores[first]), (logs[first], scores[first].alignment)
    low = (logs[first - 1], scores[first - 1].alignment) if first else (math.log(1e-4), target - 0.01)
    for i in range(_TRIES):
        if abs(best[1].alignment - target) < _NEAR:
            break
        share = 0.5 if i % 2 else (target - low[1]) / (high[1] - low[1])  # a secant and a bisection in turn
        place = low[0] + min(0.95, max(0.05, share)) * (high[0] - low[0])
        score = bench.run(family, [{"scale": 1 + math.exp(place)}], block)[0]
        if score.alignment >= target:
            high = (place, score.alignment)
        else:
            low = (place, score.alignment)
        if abs(score.alignment - target) < abs(best[1].alignment - target):
            best = (1 + math.exp(place), score)
    return best


_parse = lru_cache(maxsize=4096)(parse)  # many problems have the same settings


@lru_cache(maxsize=2)
def _ruler(case: Case) -> Ruler:
    return Ruler(truth(case), len(starts(case.dimension, "tune")), SLICES)


@lru_cache(maxsize=2)
def _truth_ends(case: Case) -> dict[str, Tensor]:
    """Where the perfect model, converged, leads from each block."""
    exact, times = perfect(case), uniform(CONVERGED)
    return {
        block: sample(exact, CFG(1.0), starts(case.dimension, block), times, midpoint).float()
        for block in BLOCKS
    }
