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
from dataclasses import dataclass, fields, replace
from functools import lru_cache, reduce
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from meancap.prediction import Prediction
from meancap.rules import CFG, Cap, Rule, Stepper, parse
from meancap.sampling import (
    Predict,
    autoguidance,
    manifold_sample,
    midpoint,
    recfg_table,
    rectified_cfgpp,
    sample,
    uniform,
)
from meancap.schedules import Piecewise, Scale, Schedule, at
from meancap.tensors import Number

from ..mixtures.measures import Ruler
from ..runs.calibrate import Calibration, LearnedScale, calibrate, learn_scale
from .cases import Case, starts, truth
from .families import UNGUIDED, Family, Setting, around, spread
from .policy import Policy, train_policy
from .predictors import alignment, examples, perfect, predictor, weaker

SLICES, CONVERGED = 32, 100  # directions of sw2; midpoint steps of the perfect model
BLOCKS = ("tune", "score")
LARGEST = 1e3  # samples beyond it are lost and count at this size: no problem's data come near it
MISLABELLED = 0.2
_WAY, _NEAR, _TRIES = 0.01, 0.001, 8
# Evaluations in a step; CFG-MP+ moves the state in the first 40 % of the steps by three round trips.
_CALLS = {"rectified": 2, "feedback": 2, "manifold": 2}


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
    def model(self) -> Predict:
        return predictor(self.case, self.folder)

    def measure(self, ends: Tensor, block: str) -> list[Score]:
        """Scores of ends (settings, n, d)."""
        x = ends.nan_to_num(LARGEST, LARGEST, -LARGEST).clamp(-LARGEST, LARGEST)
        sw2 = _ruler(self.case).sw2(x).tolist()
        away = (x - _truth_ends(self.case)[block]).square().mean((1, 2)).sqrt().tolist()
        return [Score(*one) for one in zip(sw2, away, alignment(self.case, x).tolist(), strict=True)]

    def run(self, family: Family, settings: Sequence[Setting], block: str) -> list[Score]:
        """Scores of a family at these settings on one block."""
        with torch.no_grad():
            return self.measure(
                self._ends(family, settings, starts(self.case.dimension, block).float()), block
            )

    def _ends(self, family: Family, settings: Sequence[Setting], x: Tensor) -> Tensor:
        side = family.side
        steps = max(2, self.evaluations // _CALLS.get(side, 1))
        grid = uniform(steps)
        rules = [self.rule(family, setting, steps) for setting in settings]
        if side.startswith("feedback"):  # the loop follows the density ratio, one rule at a time
            return torch.stack([sample(self.model, rule, x, grid) for rule in rules])
        if side == "manifold":
            return torch.stack([manifold_sample(self.model, rule, x, grid) for rule in rules])
        predict = self.model
        if side == "perfect":
            predict = perfect(self.case)
        elif side == "autoguidance":
            predict = autoguidance(predict, weaker(self.case, self.folder))
        elif side == "rectified":
            predict = rectified_cfgpp(predict, grid)
        return sample_together(predict, rules, x, grid)

    def rule(self, family: Family, setting: Setting, steps: int) -> Rule:
        """The rule at these knobs, with what it learns about the problem's model first."""
        rule, side = _parse(family.text(setting, steps)), family.side
        if side.startswith("calibrated"):
            return rule | _calibrated(self.case, self.folder, steps).cap(level=side.split()[1])
        if side.startswith("learned"):
            return self._learned(side, steps)
        if side == "policy":
            return _policy(self.case, self.folder) | rule
        if side == "recfg":
            data = examples(self.case, 512, self.case.leak).float()
            return recfg_table(self.model, data, uniform(steps), batch=len(data)) | rule
        return rule

    def _learned(self, side: str, steps: int) -> Rule:
        words = side.split()
        leak = self.case.leak if "leaky" in words else MISLABELLED if "mislabelled" in words else 0.0
        found = _learn(self.case, self.folder, int(words[1]), leak)
        rule: Rule = CFG(shrink(found) if "shrunk" in words else found.schedule)
        if "calibrated" in words:
            return rule | _calibrated(self.case, self.folder, steps).cap(level=words[-1])
        return rule | Cap(1.1, anchor="first") if "anchored" in words else rule


def sample_together(predict: Predict, rules: Sequence[Rule], x: Tensor, times: Sequence[float]) -> Tensor:
    """The ends of all rules from the same x, (rules, n, d), by Euler; one model call for all."""
    state, one = x.repeat(len(rules), 1), _merge_rules(rules, len(x))
    size = len(state) if one is not None else len(x)
    steppers = [Stepper(rule) for rule in ([one] if one is not None else rules)]
    for t, s in pairwise(times):
        p = predict(state, t)
        guided = [
            stepper.mean(_rows(p, i * size, size).until(s)).to(x.dtype) for i, stepper in enumerate(steppers)
        ]
        state = torch.lerp(state, torch.cat(guided), (s - t) / (1 - t))
    return state.reshape(len(rules), len(x), -1)


def _rows(p: Prediction, start: int, size: int) -> Prediction:
    if size == len(p.x):
        return p
    rows = slice(start, start + size)
    return Prediction(p.x[rows], p.t, p.m_c[rows], p.m_u[rows], gap=p.delta[rows])


def _merge_rules(rules: Sequence[Rule], n: int) -> Rule | None:
    """One rule for n rows of each of the rules, or None if they differ in more than scales."""
    columns = list(zip(*(rule.parts for rule in rules), strict=False))
    if any(len(rule.parts) != len(columns) for rule in rules):
        return None
    parts: list[Rule] = []
    for column in columns:
        first, values = column[0], {}
        if any(type(part) is not type(first) for part in column):
            return None
        for one in fields(first):
            known = [getattr(part, one.name) for part in column]
            if any(value != known[0] for value in known):
                if one.type != "Scale":
                    return None
                values[one.name] = _InRows(tuple(known), n)
        parts.append(replace(first, **values))
    return reduce(lambda a, b: a | b, parts)


@dataclass(frozen=True)
class _InRows(Schedule):
    """Scales one after the other, each for n rows."""

    scales: tuple[Scale, ...]
    n: int

    def __call__(self, t: Number) -> Number:
        values = [torch.as_tensor(at(scale, t), dtype=torch.float64).reshape(-1)[:1] for scale in self.scales]
        return torch.cat(values).repeat_interleave(self.n)


def shrink(found: LearnedScale) -> Piecewise:
    """The learned curve drawn to 1 by its standard error e: 1 + a^3 / (a^2 + e^2), a = lambda - 1."""
    values = []
    for value, low, high in zip(found.values, found.low, found.high, strict=True):
        a, error = value - 1, (high - low) / (2 * 1.96)
        values.append(1 + a**3 / (a * a + error * error) if a else 1.0)
    return Piecewise(found.times, tuple(values))


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


@lru_cache(maxsize=8)
def _learn(case: Case, folder: Path | None, count: int, leak: float) -> LearnedScale:
    return learn_scale([(predictor(case, folder), examples(case, count, leak).float())], resamples=200)


@lru_cache(maxsize=2)
def _calibrated(case: Case, folder: Path | None, steps: int) -> Calibration:
    """A pilot of the problem's model, from noise of its own."""
    pilot = starts(case.dimension, "pilot").float()
    return calibrate([(predictor(case, folder), pilot)], uniform(steps))


@lru_cache(maxsize=1)
def _policy(case: Case, folder: Path | None) -> Policy:
    """A scale by optimal control, trained on the problem's model with the true p(A | x) as the reward."""
    model = predictor(case, folder)
    with torch.enable_grad():
        return train_policy(truth(case), model, uniform(10))
