"""From noise to samples: the steps of a solver, and the loop as a generator that the caller runs.

    predict(x, t)               the model: a function that returns a `Prediction`, or a `Predictor`
    mean(x, t)                  the guided posterior mean at one evaluation: `predict`, then the rule
    step(mean, x, t, t_next)    x at t_next from x at t
    a                           (t_next - t) / (1 - t), the share of the way from x to m that Euler goes

Every step here is linear in x and in the means it evaluates, so `weights` can read its coefficients off.
Nothing is evaluated at t = 1, where a mean does not determine a velocity: the last step uses a lower order.
There are no callbacks, no progress bars and no files.

`sample` keeps no gradients unless `grad=True`: fifty steps of a network would otherwise hold the activations
of all of them. `trajectory` leaves that to its caller.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from ..prediction import Predict, Prediction, Predictor, evaluate
from ..rules import Recorder, Rule, Stepper
from ..tensors import promoted
from . import checks
from .grids import checked
from .ratio_tracker import RatioTracker, ratio_part

Mean = Callable[[Tensor, float], Tensor]
StepMethod = Callable[[Mean, Tensor, float, float], Tensor]


@runtime_checkable
class NoisySteps(Protocol):
    """Steps with noise of their own, such as `ancestral(seeds)`."""

    @property
    def eta(self) -> float: ...

    def begin(self, x: Tensor) -> StepMethod: ...


def euler(mean: Mean, x: Tensor, t: float, t_next: float) -> Tensor:
    """x + (t_next - t) v, which is a blend of x and m; it is m exactly if t_next = 1."""
    m = mean(x, t)
    return m if t_next == 1 else torch.lerp(x, m, (t_next - t) / (1 - t))


def heun(mean: Mean, x: Tensor, t: float, t_next: float) -> Tensor:
    """The trapezoid rule; Euler where the step ends at 1."""
    if t_next == 1:
        return euler(mean, x, t, t_next)
    v = _velocity(mean, x, t)
    return x + (t_next - t) / 2 * (v + _velocity(mean, x + (t_next - t) * v, t_next))


def midpoint(mean: Mean, x: Tensor, t: float, t_next: float) -> Tensor:
    """Euler to the middle, then a full step with the velocity found there."""
    half = (t + t_next) / 2
    return x + (t_next - t) * _velocity(mean, euler(mean, x, t, half), half)


def rk4(mean: Mean, x: Tensor, t: float, t_next: float) -> Tensor:
    """The classical fourth-order step; midpoint where the step ends at 1."""
    if t_next == 1:
        return midpoint(mean, x, t, t_next)
    h, half = t_next - t, (t + t_next) / 2
    v1 = _velocity(mean, x, t)
    v2 = _velocity(mean, x + h / 2 * v1, half)
    v3 = _velocity(mean, x + h / 2 * v2, half)
    v4 = _velocity(mean, x + h * v3, t_next)
    return x + h / 6 * (v1 + 2 * v2 + 2 * v3 + v4)


def _velocity(mean: Mean, x: Tensor, t: float) -> Tensor:
    return (mean(x, t) - x) / (1 - t)


def weights(step: StepMethod, t: float, t_next: float) -> tuple[float, ...]:
    """Coefficients w with x_next = w[0] x + w[1] m_1 + w[2] m_2 + ...; a convex step has none below 0."""
    times: list[float] = []

    def counted(x: Tensor, t: float) -> Tensor:
        times.append(t)
        return x

    step(counted, torch.zeros(1, dtype=torch.float64), t, t_next)
    x, *means = torch.eye(len(times) + 1, dtype=torch.float64)
    left = iter(means)
    return tuple(step(lambda x, t: next(left), x, t, t_next).tolist())


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


def sample(
    predict: Predict,
    rule: Rule | str,
    x: Tensor,
    times: Sequence[float],
    step: StepMethod | NoisySteps = euler,
    *,
    record: Recorder | None = None,
    grad: bool = False,
) -> Tensor:
    """The end of the guided trajectory that starts from x, usually noise at t = 0.

    With `grad=True` the result can be differentiated, and every step's activations stay in memory. At times
    at which the rule needs no m_u (`Rule.idle`), `Predictor.conditional` is called, except with a record.
    """
    rule = checks.need_guidance(rule)
    with torch.set_grad_enabled(grad and torch.is_grad_enabled()):
        for one in _begin(predict, rule, x, times, step, record, skip_idle=record is None):
            x = one.x_next
    checks.warn_if_not_finite(x)
    return x


def trajectory(
    predict: Predict,
    rule: Rule | str,
    x: Tensor,
    times: Sequence[float],
    step: StepMethod | NoisySteps = euler,
    *,
    record: Recorder | None = None,
) -> Iterator[Step]:
    """Yields every step of the guided flow from x at times[0] to times[-1].

    A rule's state advances once per step, from the step's first evaluation; later evaluations of a
    multi-stage step use the state that the step began with.
    """
    return _begin(predict, checks.need_guidance(rule), x, times, step, record, skip_idle=False)


def _begin(
    predict: Predict,
    rule: Rule,
    x: Tensor,
    times: Sequence[float],
    step: StepMethod | NoisySteps,
    record: Recorder | None,
    skip_idle: bool,
) -> Iterator[Step]:
    """Checks what was given, wraps `predict` as the rule needs it, and begins the loop."""
    checks.need_start(x)
    times, x = checked(times), promoted(x)
    checks.warn_if_start_is_not_noise(x, times[0])
    method, eta = (step.begin(x), step.eta) if isinstance(step, NoisySteps) else (step, 0.0)
    checks.need_step(method)
    if record is not None:
        # Fresh noise is no blend of x and the means: such a run has no certificate.
        record.begin(x, None if eta > 0 else [weights(method, *pair) for pair in pairwise(times)])
    stepper, predict = Stepper(rule), with_needs(predict, rule)
    predicts = _Predicts(predict, predict)
    if part := ratio_part(rule):
        tracker = RatioTracker(predict, part, x, eta)
        predicts = _Predicts(tracker.first, tracker.later)
    elif skip_idle and isinstance(predict, Predictor):
        predicts = _skipping_idle(predict, stepper)
    return _steps(predicts, stepper, x, times, method, record)


def _steps(
    predicts: _Predicts,
    stepper: Stepper,
    x: Tensor,
    times: Sequence[float],
    method: StepMethod,
    record: Recorder | None,
) -> Iterator[Step]:
    for index, (t, t_next) in enumerate(pairwise(times)):
        evaluations = _Evaluations(predicts, stepper, t_next, record)
        x_next = method(evaluations.mean, x, t, t_next)
        p, m = evaluations.made[0]
        if index == 0:
            checks.warn_if_reversed(p)
        yield Step(index, t, t_next, x, p, m, x_next)
        x = x_next


class _Predicts(NamedTuple):
    """What is called at the first evaluation of a step, and at its later ones."""

    first: Predict
    later: Predict


class _Evaluations:
    """The evaluations of one step: predictions and the means that the rule makes of them."""

    def __init__(self, predicts: _Predicts, stepper: Stepper, t_next: float, record: Recorder | None) -> None:
        self._predicts, self._stepper, self._t_next, self._record = predicts, stepper, t_next, record
        self.made: list[tuple[Prediction, Tensor]] = []

    def mean(self, x: Tensor, t: float) -> Tensor:
        """The guided mean, which the step method asks for."""
        first = not self.made
        p = evaluate(self._predicts[not first], x, t, self._t_next, compare=first)
        m = self._stepper.mean(p, first=first, record=self._record).to(x.dtype)
        self.made.append((p, m))
        return m


def with_needs(predict: Predict, rule: Rule) -> Predict:
    """`predict` with the extra predictions that the rule reads, if it can compute them."""
    return predict.including(rule.needs) if rule.needs and isinstance(predict, Predictor) else predict


def _skipping_idle(predict: Predictor, stepper: Stepper) -> _Predicts:
    """`predict`, or its conditional half at evaluations at which the rule does not read m_u."""

    def half(x: Tensor, t: float) -> Prediction:
        p = predict.conditional(x, t)
        # The rule requires its extra predictions, and does not use them while it is idle.
        missing = [name for name in stepper.rule.needs if name not in p.extra]
        return p.beside(**dict.fromkeys(missing, p.out_c)) if missing else p

    return _Predicts(
        lambda x, t: (half if stepper.idle(t) else predict)(x, t),
        lambda x, t: (half if stepper.idle(t, first=False) else predict)(x, t),
    )
