"""A guidance rule in the post-CFG hook of ComfyUI and of Forge. Nothing of either is imported here.

    nominal  the guided mean that the workflow made; the hook's result replaces it
    share    how much of the way from m_c to the nominal mean a cap keeps, for each sample

A rule that only caps shortens the displacement that the workflow made. Any other chain replaces the
workflow's guidance.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from ...prediction import Prediction
from ...record import measure
from ...rules import Rule, Stepper, parse
from ...sampling.checks import need_cap_last
from ...tensors import promoted
from .arguments import (
    Args,
    grid,
    later,
    negative_in_range,
    noise_levels,
    prediction,
    sigmas,
    step_end,
    three_means,
    without_negative,
)
from .run import HookRun

_KEPT = 8  # runs remembered: a workflow may sample several times before its reports are made


class PostCFG:
    """A rule applied in one patched model: call it with the host's arguments, `begin` before each run.

    start and end are shares of the run, counted as the host counts them; outside, the host's result is kept.
    """

    def __init__(self, rule: Rule | str, start: float = 0.0, end: float = 1.0) -> None:
        self.rule = parse(rule) if isinstance(rule, str) else rule
        need_cap_last(self.rule)
        if not 0 <= start <= end <= 1:
            raise ValueError(
                f"start and end are shares of the run, 0 <= start <= end <= 1; got {start} and {end}"
            )
        self.start, self.end = start, end
        self.stepper = Stepper(self.rule)
        self.runs: list[HookRun] = []
        self.begin()

    def begin(self) -> None:
        """Starts a new run: the rule's state is cleared, and a new record begins."""
        self.stepper.begin()
        self._reached = -math.inf
        self.runs = [*(run for run in self.runs if run.calls), HookRun(self.rule)][-_KEPT:]

    def __deepcopy__(self, memo: object) -> PostCFG:
        """Itself: a host copies a model's options at every later node and must still call this hook."""
        return self

    @property
    def run(self) -> HookRun:
        """The latest run."""
        return self.runs[-1]

    def run_of(self, latent: Tensor) -> HookRun:
        """The run that made this latent; the latest one where it has been changed since."""
        return next((run for run in reversed(self.runs) if run.is_of(latent)), self.run)

    def __call__(self, args: Args) -> Tensor:
        """What the host should use instead of `denoised`: the same tensor where there is nothing to do."""
        nominal: Tensor = args["denoised"]
        levels = grid(args)
        self.run.calls += 1
        self.run.steps = None if levels is None else len(levels) - 1
        if without_negative(args):
            self.run.idle += 1
            return nominal
        self.run.later = later(args, self)
        inside = self._inside(args)
        with torch.no_grad():
            if inside is False:
                self.run.left_alone(measure(self._prediction(args), promoted(nominal)))
                return nominal
            self.run.acted()
            guided = self._guide(args, nominal)
        return guided if inside is True else torch.where(_column(inside, nominal), guided, nominal)

    def _guide(self, args: Args, nominal: Tensor) -> Tensor:
        p = prediction(args) if self.rule.caps else self._prediction(args)
        if not self.rule.caps:
            p = p.until(step_end(args))
        first = not self.rule.has_state or self._begins_step(args)
        return self.stepper.output(p, nominal, first=first, record=self.run.record)

    def _prediction(self, args: Args) -> Prediction:
        if self.rule.needs:
            three = three_means(args)
            if three is None:
                raise ValueError(
                    f"{self.rule} looks at a third prediction, which this sampler does not make; use "
                    "PerpNegGuider with a negative, an empty prompt and a neg_scale above 0"
                )
            return three
        p = prediction(args)
        # Outside its range the negative is all zeros, which is not a prediction: no gap, so nothing is added.
        return p if negative_in_range(args) else replace(p, out_u=p.out_c)

    def _begins_step(self, args: Args) -> bool:
        """Whether this evaluation is the first at a noise level of the sampler's grid.

        Samplers of higher order evaluate between two levels, or twice at one; a rule advances once for each.
        A host that passes no grid is assumed to make one evaluation per step.
        """
        levels, sigma = grid(args), float(sigmas(args)[0])
        place = -sigma if levels is None else float((levels >= sigma).sum())
        if place <= self._reached:
            return False
        self._reached = place
        return True

    def _inside(self, args: Args) -> bool | Tensor:
        """Whether each sample is between start and end; simply True where they are not set."""
        if self.start <= 0 and self.end >= 1:
            return True
        sigma, level = sigmas(args), noise_levels(args).level
        inside: Tensor = (sigma <= level(self.start)) & (sigma >= level(self.end))
        return inside if bool(inside.any()) else False


def _column(mask: Tensor, like: Tensor) -> Tensor:
    return mask.reshape(-1, *[1] * (like.dim() - 1))
