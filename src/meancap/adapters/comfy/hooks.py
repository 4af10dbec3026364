"""A guidance rule in the post-CFG hook of ComfyUI and of Forge. Nothing of either is imported here.

denoised         the nominal mean that the workflow made: sampler, guider and the nodes before this one;
                 the hook's result replaces it
cond_denoised    m_c
uncond_denoised  m_u; zeros where the host evaluated no negative
empty_cond_denoised  the mean under an empty prompt, from PerpNegGuider, whose uncond is then to be avoided
sigma            the noise level; x = alpha data + sigma noise, alpha = 1 - sigma in flow models, else 1

A rule that only caps shortens the displacement that the workflow made. Any other chain replaces the
workflow's guidance.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ...path import Affine
from ...prediction import Prediction
from ...record import measure
from ...rules import Rule, Stepper, parse
from ...sampling.checks import need_cap_last
from ...tensors import Number, promoted, scalar_dtype
from ..session import Pilot
from .run_report import HookRun

_Args = Mapping[str, Any]

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

    def __call__(self, args: _Args) -> Tensor:
        """What the host should use instead of `denoised`: the same tensor where there is nothing to do."""
        nominal: Tensor = args["denoised"]
        levels = _grid(args)
        self.run.calls += 1
        self.run.steps = None if levels is None else len(levels) - 1
        if _without_negative(args):
            self.run.idle += 1
            return nominal
        self.run.later = _later(args, self)
        inside = self._inside(args)
        with torch.no_grad():
            if inside is False:
                self.run.left_alone(measure(self._prediction(args), promoted(nominal)))
                return nominal
            self.run.acted()
            guided = self._guide(args, nominal)
        return guided if inside is True else torch.where(_column(inside, nominal), guided, nominal)

    def _guide(self, args: _Args, nominal: Tensor) -> Tensor:
        p = prediction(args) if self.rule.caps else self._prediction(args)
        if not self.rule.caps:
            p = p.until(_step_end(args))
        first = not self.rule.has_state or self._begins_step(args)
        return self.stepper.output(p, nominal, first=first, record=self.run.record)

    def _prediction(self, args: _Args) -> Prediction:
        if self.rule.needs:
            three = _three_means(args)
            if three is None:
                raise ValueError(
                    f"{self.rule} looks at a third prediction, which this sampler does not make; use "
                    "PerpNegGuider with a negative, an empty prompt and a neg_scale above 0"
                )
            return three
        p = prediction(args)
        # Outside its range the negative is all zeros, which is not a prediction: no gap, so nothing is added.
        return p if _negative_in_range(args) else replace(p, out_u=p.out_c)

    def needs_negative(self, args: _Args, conds: Sequence[Any]) -> bool:
        """Whether the host must evaluate the negative of `conds` (positive, negative) at this call.

        It need not if the rule returns m_c and nothing acts on the result after this hook; m_c is then to be
        passed in the place of m_u.
        """
        if self.rule.caps or len(conds) != 2 or conds[1] is None or self._inside(args) is not True:
            return True
        functions = (args["model_options"] or {}).get("sampler_post_cfg_function") or [None]
        sigma, first = _sigmas(args), self._place(args) > self._reached
        if functions[-1] is not self or bool((sigma != sigma[0]).any()):
            return True
        return not self.stepper.idle(float(noise_levels(args).time(sigma)[0]), first=first)

    def _begins_step(self, args: _Args) -> bool:
        """Whether this evaluation is the first at a noise level of the sampler's grid."""
        place = self._place(args)
        first, self._reached = place > self._reached, max(place, self._reached)
        return first

    def _place(self, args: _Args) -> float:
        """How far on the sampler's grid this evaluation is; on a grid of its own where the host passes none.

        Samplers of higher order evaluate between two levels, or twice at one; a rule advances once for each.
        """
        levels, sigma = _grid(args), float(_sigmas(args)[0])
        return -sigma if levels is None else float((levels >= sigma).sum())

    def _inside(self, args: _Args) -> bool | Tensor:
        """Whether each sample is between start and end; one bool if it is the same for all."""
        if self.start <= 0 and self.end >= 1:
            return True
        sigma, level = _sigmas(args), noise_levels(args).level
        inside: Tensor = (sigma <= level(self.start)) & (sigma >= level(self.end))
        return bool(inside[0]) if bool((inside == inside[0]).all()) else inside


def _column(mask: Tensor, like: Tensor) -> Tensor:
    return mask.reshape(-1, *[1] * (like.dim() - 1))


class PilotHook:
    """Unguided runs of one patched model; `pilot.begin()` goes before each of them."""

    def __init__(self) -> None:
        self.pilot = Pilot()

    def __call__(self, args: _Args) -> Tensor:
        if _without_negative(args) or not _negative_in_range(args):
            raise ValueError(
                "a calibration needs the negative at every step: wire in one without a range of its own"
            )
        how = noise_levels(args).place(_sigmas(args))
        means = args["cond_denoised"], _negative(args)[1], args["denoised"]
        return self.pilot.guide(how, args["input"], *means)


@dataclass(frozen=True)
class _NoiseLevels:
    """The host's noise levels as times. Data is at t = 1, so the direction of time is reversed here, once."""

    flow: bool  # alpha = 1 - sigma; otherwise alpha = 1
    level: Callable[[float], float]  # share of the run -> sigma

    def time(self, sigma: Tensor) -> Tensor:
        t = 1 - sigma if self.flow else 1 / (1 + sigma)
        return t.clamp(0, 1)  # a sampler that adds noise may step above the first level

    def place(self, sigma: Tensor) -> Affine:
        """Where the host's x stands on the linear path; its models state means."""
        unit = 1.0 if self.flow else 1 / (1 + sigma.to(scalar_dtype(sigma.device)))
        return Affine(0.0, 1.0, self.time(sigma), unit)


def noise_levels(args: _Args) -> _NoiseLevels:
    """The noise levels of the model's schedule: `model_sampling` (ComfyUI) or `predictor` (Forge).

    `noise_scaling` at sigma = 1/2 shows whether data are scaled by 1 - sigma, as in flow models, or by 1.
    Forge classic does not have it; there the largest noise level decides, which is 1 in flow models only. A
    model without a schedule is taken as a flow model.
    """
    model = args.get("model")
    host = getattr(model, "model_sampling", None) or getattr(model, "predictor", None)
    if host is None:
        return _NoiseLevels(True, lambda share: 1 - share)
    if hasattr(host, "noise_scaling"):
        flow = float(host.noise_scaling(torch.full((1,), 0.5), torch.zeros(1), torch.ones(1))) < 0.75
    else:
        flow = float(host.sigma_max) <= 1
    return _NoiseLevels(flow, lambda share: float(host.percent_to_sigma(share)))


def _sigmas(args: _Args) -> Tensor:
    """One noise level per sample."""
    sigma: Tensor = args["sigma"]
    return sigma.reshape(1) if sigma.dim() == 0 else sigma.reshape(sigma.shape[0], -1)[:, 0]


def _negative(args: _Args) -> tuple[Any, Tensor]:
    """The negative conditioning and its mean; PerpNegGuider may have only an empty prompt in its place."""
    if args.get("uncond", ()) is None and args.get("empty_cond") is not None:
        return args["empty_cond"], args["empty_cond_denoised"]
    return args.get("uncond", ()), args["uncond_denoised"]


def prediction(args: _Args) -> Prediction:
    """The host's two means."""
    how = noise_levels(args).place(_sigmas(args))
    return Prediction.from_affine(args["input"], args["cond_denoised"], _negative(args)[1], how)


def _three_means(args: _Args) -> Prediction | None:
    """Its three means, the negative beside that of the empty prompt; None where it made two."""
    if args.get("empty_cond") is None or args.get("uncond") is None:
        return None
    empty: Tensor = args["empty_cond_denoised"]
    # Outside its range the negative is all zeros, which is not a prediction: then nothing is avoided.
    avoided = args["uncond_denoised"] if _negative_in_range(args) else empty
    return replace(prediction(args), out_u=empty, extra={"negative": avoided})


def _grid(args: _Args) -> Tensor | None:
    """The noise levels that the sampler was given, from noise to data; None if the host passes none."""
    options = args.get("model_options") or {}
    levels = (options.get("transformer_options") or {}).get("sample_sigmas")
    return levels if isinstance(levels, Tensor) and levels.dim() == 1 else None


def _later(args: _Args, hook: object) -> list[str]:
    """The names of the functions that change the result after this hook has."""
    options = args.get("model_options") or {}
    functions = list(options.get("sampler_post_cfg_function") or ())
    place = next((i for i, one in enumerate(functions) if one is hook), len(functions))
    return [getattr(one, "__qualname__", type(one).__name__).split(".")[-1] for one in functions[place + 1 :]]


def _step_end(args: _Args) -> Number | None:
    """The time at which the step under way will end."""
    levels = _grid(args)
    if levels is None:
        return None
    below = levels[levels < _sigmas(args)[0].to(levels)]
    return noise_levels(args).time(below[:1]) if len(below) else None


def _without_negative(args: _Args) -> bool:
    """Whether the host guides nothing here: cfg 1, where it skips the negative, or no negative at all."""
    conditioning, mean = _negative(args)
    if conditioning is None:
        return True
    if "cond_scale" not in args:  # Forge passes no scale, and passes a negative even where it skipped it
        return not bool(mean.any())
    scale = args["cond_scale"]
    return isinstance(scale, (int, float)) and math.isclose(scale, 1.0)


def _negative_in_range(args: _Args) -> bool:
    """Whether any part of the negative is meant for this noise level (ConditioningSetTimestepRange)."""
    parts: Sequence[Mapping[str, Any]] = _negative(args)[0] or ()
    sigma = _sigmas(args)[0]
    return not parts or any(
        not (
            ("timestep_start" in part and bool(sigma > part["timestep_start"]))
            or ("timestep_end" in part and bool(sigma < part["timestep_end"]))
        )
        for part in parts
    )
