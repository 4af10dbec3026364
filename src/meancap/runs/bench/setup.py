"""How a family is run on a problem: its predictor, its rules, and the loop that takes many of them together.

together   all rules of a family see one batch, so that the model is asked once for all of them; each rule
           has its own rows and its own state. Rows never meet, so that a rule's samples are those of
           `sample` up to the rounding of matrix products of another size
merged     rules that differ in the scale of CFG and the gamma of caps are one rule, with a number for
           each row
solver     'euler', the standard; 'midpoint', the same steps with two evaluations each, whose error is
           below that of the samples. What is stated for Euler alone takes four times as many steps
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache, reduce
from itertools import pairwise

import torch
from torch import Tensor

from ...lab.errors import predictor, weaker
from ...lab.policy import Policy, train_policy
from ...lab.problems import Model, Problem
from ...prediction import Prediction
from ...rules import Displacement, Factor, Rectify, Rule, Stepper
from ...sampling import (
    Predict,
    StepMethod,
    autoguidance,
    euler,
    manifold_sample,
    midpoint,
    recfg_table,
    rectified_cfgpp,
    sample,
    uniform,
)
from ...schedules import Scale, Schedule, at
from ...tensors import Number
from ..calibrate import Calibration, calibrate
from .config import PILOT, BenchConfig, noise
from .families import Family

SOLVERS = {"euler": euler, "midpoint": midpoint}
LARGEST = 1e3  # samples beyond it are lost and counted at this size: no problem's data come near it
Setting = dict[str, float]


@dataclass(frozen=True, eq=False)
class Optimum(Factor):
    """CFG with the scale lambda* of each state, for the errors on the ray that the model has."""

    model: Model

    remembers = False

    def factor(self, g: Displacement, p: Prediction) -> Number:
        return self.model.best_scale(p.x, float(p.t)) - 1


def ends(
    family: Family, problem: Problem, config: BenchConfig, settings: Sequence[Setting], x: Tensor, solver: str
) -> Tensor:
    """Where the samples of each setting end, (settings, n, d); lost ones at LARGEST."""
    with torch.no_grad():
        found = _ends(family, problem, config, settings, x, solver)
    return found.nan_to_num(LARGEST, LARGEST, -LARGEST).clamp(-LARGEST, LARGEST)


def _ends(
    family: Family, problem: Problem, config: BenchConfig, settings: Sequence[Setting], x: Tensor, solver: str
) -> Tensor:
    steps = config.steps * (4 if solver != "euler" and euler_only(family) else 1)
    step = euler if euler_only(family) else SOLVERS[solver]
    if family.side == "manifold":
        rule = merged([family.rule(s, steps) for s in settings], len(x))
        assert rule is not None
        rows = manifold_sample(predictor(problem), rule, x.repeat(len(settings), 1), uniform(steps))
        return rows.reshape(len(settings), len(x), -1)
    if family.side.startswith("feedback"):  # the loop follows the density ratio, one rule at a time
        grid = uniform(steps // 2 if family.side.endswith("half the steps") else steps)
        return torch.stack(
            [sample(predictor(problem), family.rule(s, steps), x, grid, step) for s in settings]
        )
    rules = [rule_of(family, problem, config, s) for s in settings]
    return together(model_of(family, problem, steps), rules, x, uniform(steps), solver=step)


def euler_only(family: Family) -> bool:
    """Whether the method is stated for steps of one evaluation."""
    return family.side in ("manifold", "rectified")


def together(
    predict: Predict,
    rules: Sequence[Rule],
    x: Tensor,
    times: Sequence[float],
    *,
    solver: StepMethod = euler,
) -> Tensor:
    """The ends of all rules from the same x, (rules, n, d), the model being asked for all at once."""
    count, state = len(rules), x.repeat(len(rules), 1)
    one = merged(rules, len(x))
    size = len(state) if one is not None else len(x)
    steppers = [Stepper(rule) for rule in ([one] if one is not None else rules)]
    for t, s in pairwise(times):
        evaluated = 0

        def mean(at: Tensor, time: float, s: float = s) -> Tensor:
            nonlocal evaluated
            p, first = predict(at, time), evaluated == 0
            evaluated += 1
            guided = [
                stepper.mean(_rows(p, i * size, size).until(s), first=first)
                for i, stepper in enumerate(steppers)
            ]
            return torch.cat(guided)

        state = solver(mean, state, t, s)
    return state.reshape(count, len(x), -1)


def merged(rules: Sequence[Rule], n: int) -> Rule | None:
    """One rule for n rows of each of the rules, or None where they differ in more than scales."""
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
                values[one.name] = InRows(tuple(known), n)
        parts.append(replace(first, **values))
    return reduce(lambda a, b: a | b, parts)


@dataclass(frozen=True)
class InRows(Schedule):
    """Scales one after the other, each for n rows."""

    scales: tuple[Scale, ...]
    n: int

    def __call__(self, t: Number) -> Number:
        values = [torch.as_tensor(at(scale, t), dtype=torch.float64).reshape(-1)[:1] for scale in self.scales]
        return torch.cat(values).repeat_interleave(self.n)


def _rows(p: Prediction, start: int, size: int) -> Prediction:
    if size == len(p.x):
        return p
    rows = slice(start, start + size)
    return Prediction(p.x[rows], p.t, p.m_c[rows], p.m_u[rows], gap=p.delta[rows])


def model_of(family: Family, problem: Problem, steps: int) -> Predict:
    """What the rules of this family are shown."""
    if family.side == "perfect":
        return problem.exact().model().predict
    shown = predictor(problem)
    if family.side == "autoguidance":
        return autoguidance(shown, weaker(problem))
    return rectified_cfgpp(shown, uniform(steps)) if family.side == "rectified" else shown


def rule_of(family: Family, problem: Problem, config: BenchConfig, setting: Setting) -> Rule:
    """The rule at these knobs, with what it needs to know of the problem's model."""
    if family.side == "optimum":
        return Optimum(problem.model())
    rule = family.rule(setting, config.steps)
    if family.side.startswith("calibrated"):
        return rule | pilot(problem, config).cap(level=family.side.split()[1])
    if family.side == "policy":
        return policy(problem) | rule
    return ratios(problem, config) | rule if family.side == "recfg" else rule


@lru_cache(maxsize=4)
def pilot(problem: Problem, config: BenchConfig) -> Calibration:
    """The calibration of a problem's model, from noise of its own."""
    start = noise(dimensions(problem), config, PILOT)
    return calibrate([(predictor(problem), start)], config.times, model=problem.name)


@lru_cache(maxsize=4)
def ratios(problem: Problem, config: BenchConfig) -> Rectify:
    """ReCFG's table for a problem's model, from data with the label."""
    data = problem.labelled(4 * config.points, torch.Generator().manual_seed(config.seed + 1))
    return recfg_table(predictor(problem), data, config.times, seed=config.seed, batch=len(data))


@lru_cache(maxsize=4)
def policy(problem: Problem) -> Policy:
    """A scale by optimal control, trained on the problem's model with the true p(A | x) as the reward."""
    with torch.enable_grad():
        return train_policy(
            problem.condition(),
            predict=predictor(problem),
            times=uniform(10),
            hidden=8,
            samples=128,
            rounds=60,
        )


@lru_cache(maxsize=64)
def dimensions(problem: Problem) -> int:
    """The length of a sample's vector."""
    return problem.condition().mixture.means.shape[1]
