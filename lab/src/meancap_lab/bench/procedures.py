"""How a family runs on a problem: a procedure leads starts x (n, d) to the ends of each rule, (rules, n, d).

    together, one_by_one   the model under test, all rules in one call of it or each in its own loop
    manifold               CFG-MP+, which moves the state too
    on(wrap)               another model in the place of the one under test
    learning(first)        rules that learn about the model first: calibrated, learned, policy, recfg

A `Family` names its procedure; a new one is a function here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache, reduce
from pathlib import Path

import torch
from torch import Tensor

from meancap.prediction import Prediction
from meancap.rules import Displacement, Pilot, Rule, State, displace
from meancap.sampling import (
    Predict,
    autoguidance,
    manifold_sample,
    recfg_table,
    rectified_cfgpp,
    sample,
    trajectory,
    uniform,
)
from meancap.schedules import Scale, Schedule, at
from meancap.tensors import Number

from ..runs.calibrate import learn_scale, run_pilot
from .cases import Case, starts, truth
from .policy import Policy, train_policy
from .predictors import examples, perfect, predictor, weaker

Times = Sequence[float]


@dataclass(frozen=True)
class Subject:
    """The model under test: that of a problem; `folder` keeps trained networks."""

    case: Case
    folder: Path | None = None

    @property
    def predict(self) -> Predict:
        return predictor(self.case, self.folder)


Procedure = Callable[[Subject, Sequence[Rule], Tensor, Times], Tensor]


def together(subject: Subject, rules: Sequence[Rule], x: Tensor, times: Times) -> Tensor:
    """All rules with one call of the model under test."""
    return sample_together(subject.predict, rules, x, times)


def one_by_one(subject: Subject, rules: Sequence[Rule], x: Tensor, times: Times) -> Tensor:
    """Each rule in a loop of its own, which follows the density ratio."""
    return torch.stack([sample(subject.predict, rule, x, times) for rule in rules])


def manifold(subject: Subject, rules: Sequence[Rule], x: Tensor, times: Times) -> Tensor:
    """CFG-MP+: the state moves in the first 40 % of the steps, by three round trips."""
    return torch.stack([manifold_sample(subject.predict, rule, x, times) for rule in rules])


def on(model: Callable[[Subject, Times], Predict]) -> Procedure:
    """All rules on this model instead of the one under test."""

    def run(subject: Subject, rules: Sequence[Rule], x: Tensor, times: Times) -> Tensor:
        return sample_together(model(subject, times), rules, x, times)

    return run


perfect_model = on(lambda subject, times: perfect(subject.case))
guided_by_weaker = on(
    lambda subject, times: autoguidance(subject.predict, weaker(subject.case, subject.folder))
)
rectified = on(lambda subject, times: rectified_cfgpp(subject.predict, times))


def learning(first: Callable[[Subject, Rule, Times], Rule]) -> Procedure:
    """All rules on the model under test, each with what it has learned about that model."""

    def run(subject: Subject, rules: Sequence[Rule], x: Tensor, times: Times) -> Tensor:
        return together(subject, [first(subject, rule, times) for rule in rules], x, times)

    return run


def pilot_cap(level: str) -> Callable[[Subject, Times], Rule]:
    """The cap at this level of the radii of a pilot of the model."""
    return lambda subject, times: _pilot(subject, len(times) - 1).cap(level)


def calibrated(level: str) -> Procedure:
    """Rules with a cap from a pilot."""
    return learning(lambda subject, rule, times: rule | pilot_cap(level)(subject, times))


def learned(
    count: int,
    *,
    leak: Callable[[Case], float] = lambda case: 0.0,
    cap: Callable[[Subject, Times], Rule] | None = None,
) -> Procedure:
    """The scale learned from `count` examples in the place of the rule, with a share of wrong labels."""

    def first(subject: Subject, _rule: Rule, times: Times) -> Rule:
        rule = learn_rule(subject, count, leak(subject.case))
        return rule if cap is None else rule | cap(subject, times)

    return learning(first)


@learning
def policy(subject: Subject, rule: Rule, times: Times) -> Rule:
    """A scale by optimal control, times the rule's factor."""
    return _train_policy(subject) | rule


@learning
def recfg(subject: Subject, rule: Rule, times: Times) -> Rule:
    """ReCFG with a table of the model under test, from examples labelled as in training."""
    data = examples(subject.case, 512, subject.case.leak).float()
    return recfg_table(subject.predict, data, times, batch=len(data)) | rule


def sample_together(predict: Predict, rules: Sequence[Rule], x: Tensor, times: Times) -> Tensor:
    """The ends of all rules from the same x, (rules, n, d), by Euler; one model call for all."""
    rule = _merge_rules(rules, len(x)) or _Apart(tuple(rules), len(x))
    state = x.repeat(len(rules), 1)
    for step in trajectory(predict, rule, state, times):
        state = step.x_next
    return state.reshape(len(rules), len(x), -1)


@dataclass(frozen=True)
class _Apart(Rule):
    """Rules one after the other, each for n rows."""

    has_state = sets_scale = True
    rules: tuple[Rule, ...]
    n: int

    def init(self) -> State:
        return tuple(rule.init() for rule in self.rules)

    def update(self, g: Displacement, p: Prediction, state: State) -> tuple[Displacement, State]:
        found = []
        for i, (rule, before) in enumerate(zip(self.rules, state, strict=True)):
            rows = slice(i * self.n, (i + 1) * self.n)
            part = Prediction(p.x[rows], p.t, p.m_c[rows], p.m_u[rows], p.t_next, gap=p.delta[rows])
            found.append(displace(rule, part, before))
        return g.turn(torch.cat([one.vector for one, _ in found])), tuple(after for _, after in found)


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


@lru_cache(maxsize=8)
def learn_rule(subject: Subject, count: int, leak: float = 0.0) -> Rule:
    """The learned scale of the model under test, by the function that users call."""
    return learn_scale([(subject.predict, examples(subject.case, count, leak).float())])


@lru_cache(maxsize=2)
def _pilot(subject: Subject, steps: int) -> Pilot:
    """A pilot of the model under test, from noise of its own."""
    pilot = starts(subject.case.dimension, "pilot").float()
    return run_pilot([(subject.predict, pilot)], uniform(steps))


@lru_cache(maxsize=1)
def _train_policy(subject: Subject) -> Policy:
    """A scale by optimal control, trained on the model under test with the true p(A | x) as the reward."""
    with torch.enable_grad():
        return train_policy(truth(subject.case), subject.predict, uniform(10))
