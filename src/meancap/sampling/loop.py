"""The loop, as a generator that the caller runs: no callbacks, no progress bars, no files.

predict(x, t) -> Prediction     the model, conditional and unconditional
predict.conditional(x, t)       optional: half the work, with m_u = m_c, for times at which a rule is idle
predict.including(names)        optional: the same with extra predictions, for rules that read them
predict.follows_ratio           optional: True if predictions come with their log density ratio
rule                            a `Rule`, or its text
step                            a step of `meancap.sampling.solvers`, or one with noise: `ancestral(seeds)`

`sample` keeps no gradients unless `grad=True`: fifty steps of a network would otherwise hold the activations
of all of them. `trajectory` leaves that to its caller.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from ..prediction import Prediction
from ..rules import Recorder, Rule, Stepper
from ..tensors import promoted
from . import checks
from .grids import checked
from .ratio_tracker import Tracker, follower
from .solvers import StepMethod, euler, weights
from .stochastic import Stochastic

Predict = Callable[[Tensor, float], Prediction]


@dataclass(frozen=True, eq=False)
class Step:
    """One step of a trajectory: the prediction at x, the guided mean, and the next state."""

    index: int
    t: float
    t_next: float
    x: Tensor
    prediction: Prediction
    m: Tensor
    x_next: Tensor


def trajectory(
    predict: Predict,
    rule: Rule | str,
    x: Tensor,
    times: Sequence[float],
    step: StepMethod | Stochastic = euler,
    *,
    record: Recorder | None = None,
) -> Iterator[Step]:
    """Yields every step of the guided flow from x at times[0] to times[-1].

    A rule's state advances once per step, from the step's first evaluation; later evaluations of a
    multi-stage step use the state that the step began with.
    """
    rule = checks.need_guidance(rule)
    predict = with_needs(predict, rule)
    return _steps(predict, predict, rule, x, times, step, record)


def with_needs(predict: Predict, rule: Rule) -> Predict:
    """`predict` with the extra predictions that the rule reads, if it can compute them."""
    including: Callable[[tuple[str, ...]], Predict] | None = getattr(predict, "including", None)
    return predict if including is None or not rule.needs else including(rule.needs)


def _steps(
    predict: Predict,
    when_idle: Predict,
    rule: Rule,
    x: Tensor,
    times: Sequence[float],
    step: StepMethod | Stochastic,
    record: Recorder | None,
) -> Iterator[Step]:
    checks.need_start(x)
    times, x = checked(times), promoted(x)
    checks.warn_if_start_is_not_noise(x, times[0])
    stepper = Stepper(rule)
    method, eta = (step.begin(x), step.eta) if isinstance(step, Stochastic) else (step, 0.0)
    checks.need_step(method)
    wanting = None if getattr(predict, "follows_ratio", False) else follower(rule)
    tracker = None if wanting is None else Tracker(predict, wanting, x, eta)
    if record is not None:
        # Fresh noise is no blend of x and the means: such a run has no certificate.
        record.begin(x, None if eta > 0 else [weights(method, t, s) for t, s in pairwise(times)])
    seen: list[tuple[Prediction, Tensor]] = []  # the evaluations of one step, and their guided means

    def mean(x: Tensor, t: float) -> Tensor:
        first = not seen
        idle = when_idle is not predict and stepper.idle(t, first=first)
        p = (when_idle if idle else predict)(x, t)
        usual = isinstance(p, Prediction) and p.state is x and p.t is t and isinstance(p.unit, float)
        if not usual or p.unit != 1:
            checks.need_prediction(p, x, t, first)
        p = p.until(s)
        if idle and rule.needs and not p.extra:  # a rule that is idle does not use them
            p = p.beside(**dict.fromkeys(rule.needs, p.out_c))
        if tracker is not None:
            p = tracker.first(p) if first else tracker.within(p)
        seen.append((p, stepper.mean(p, first=first, record=record).to(x.dtype)))
        return seen[-1][1]

    for index, (t, s) in enumerate(pairwise(times)):
        seen.clear()
        x_next = method(mean, x, t, s)
        if index == 0:
            checks.warn_if_reversed(seen[0][0])
        yield Step(index, t, s, x, *seen[0], x_next)
        x = x_next


def sample(
    predict: Predict,
    rule: Rule | str,
    x: Tensor,
    times: Sequence[float],
    step: StepMethod | Stochastic = euler,
    *,
    record: Recorder | None = None,
    grad: bool = False,
) -> Tensor:
    """The end of the guided trajectory that starts from x, usually noise at t = 0.

    With `grad=True` the result can be differentiated, and every step's activations stay in memory. If
    `predict` has a method `conditional(x, t)`, which returns a `Prediction` with m_u = m_c, it is called at
    times at which the rule needs no m_u (`Rule.idle`), except if there is a record.
    """
    rule = checks.need_guidance(rule)
    predict = with_needs(predict, rule)
    conditional = getattr(predict, "conditional", predict) if record is None else predict
    with torch.set_grad_enabled(grad and torch.is_grad_enabled()):
        for one in _steps(predict, conditional, rule, x, times, step, record):
            x = one.x_next
    checks.warn_if_not_finite(x)
    return x
