"""The posterior mean that a diffusers scheduler implies: m = a sample + k model_output.

    family   sample is               coefficients                       schedulers
    flow     (1-s) data + s noise    s = sigmas[i]                      FlowMatchEuler, FlowMatchHeun
    table    alpha data + s noise    alphas_cumprod[t]                  DDIM, DDPM
    vp       alpha data + s noise    alpha = 1/√(1+sigmas[i]²), or      DPM++, UniPC, DEIS, SA
                                     1-sigmas[i] with flow sigmas
    ve       data + s noise          s = sigmas[i]; the network sees    Euler, Euler a, Heun, LMS, KDPM2 a
                                     sample/√(1+s²)
    edm      data + s noise          s = sigmas[i]; the output is       EDM Euler, EDM DPM++, CosineDPM
                                     mixed with the sample

The timestep is not used: CogView4 steps at t = 667 with sigma = 0.467, and UniPC rounds its timesteps.
"""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from ...path import Affine, on_gaussian

FAMILIES: dict[str, str] = {
    "FlowMatchEulerDiscreteScheduler": "flow",
    "FlowMatchHeunDiscreteScheduler": "flow",
    "DDIMScheduler": "table",
    "DDPMScheduler": "table",
    "CogVideoXDDIMScheduler": "table",
    "DPMSolverMultistepScheduler": "vp",
    "DPMSolverSinglestepScheduler": "vp",
    "UniPCMultistepScheduler": "vp",
    "DEISMultistepScheduler": "vp",
    "SASolverScheduler": "vp",
    "EulerDiscreteScheduler": "ve",
    "EulerAncestralDiscreteScheduler": "ve",
    "HeunDiscreteScheduler": "ve",
    "LMSDiscreteScheduler": "ve",
    "KDPM2AncestralDiscreteScheduler": "ve",
    "CosineDPMSolverMultistepScheduler": "edm",
    "EDMEulerScheduler": "edm",
    "EDMDPMSolverMultistepScheduler": "edm",
}


class PathReader:
    """Reads where on the path a scheduler is just before it steps; waits for the device once per run."""

    def __init__(self) -> None:
        self._source: Tensor | None = None
        self._version = 0
        self._values: list[float] = []

    def edge(self, scheduler: Any, timestep: Any) -> Affine:
        """How the mean follows from the sample and the model output at this evaluation."""
        family, config = family_of(scheduler), scheduler.config
        kind = str(config.get("prediction_type", "flow_prediction"))
        if family == "flow":
            return self._flow(scheduler, timestep)
        if family == "table":
            product = float(scheduler.alphas_cumprod[int(timestep)])
            return _on_path(kind, math.sqrt(product), math.sqrt(1 - product))
        s = self._sigmas(scheduler)[_index(scheduler, timestep)]
        if family == "edm":
            # Their "epsilon" is the output of a network trained with EDM's preconditioning: v, negated.
            sign = {"epsilon": -1.0, "v_prediction": 1.0}.get(kind)
            if sign is None:
                raise _undetermined(kind)
            return _scaled_v(s, float(config.sigma_data), sign)
        if family == "ve":
            return _scaled_v(s) if kind == "v_prediction" else _on_path(kind, 1.0, s)
        if config.get("use_flow_sigmas", False):
            flow = Affine(1.0, -s, t=1 - s)
            return flow if kind == "flow_prediction" else _on_path(kind, 1 - s, s)
        alpha = 1 / math.hypot(1, s)
        return _on_path(kind, alpha, s * alpha)

    def grid(self, scheduler: Any) -> list[float]:
        """The sigmas of the run, or its timesteps if it has none."""
        if hasattr(scheduler, "sigmas"):
            return list(self._sigmas(scheduler))
        return [float(t) for t in scheduler.timesteps]

    def _flow(self, scheduler: Any, timestep: Any) -> Affine:
        sigmas, i = self._sigmas(scheduler), _index(scheduler, timestep)
        end = 1.0 if scheduler.config.get("invert_sigmas", False) else 0.0
        following = None
        if not hasattr(scheduler, "state_in_first_order"):
            following = 1 - abs(end - sigmas[i + 1])
        # Scheduler space is noise - data, so the mean lies the opposite way; inverted sigmas reverse both.
        return Affine(a=1.0, k=end - sigmas[i], t=1 - abs(end - sigmas[i]), t_next=following)

    def _sigmas(self, scheduler: Any) -> list[float]:
        sigmas: Tensor = scheduler.sigmas
        # On another device they are read once, unless a callback replaced them or edited them in place.
        tracked = sigmas.device.type != "cpu" and not sigmas.is_inference()
        if not tracked or self._source is not sigmas or self._version != sigmas._version:
            self._source, self._values = sigmas, sigmas.tolist()
            self._version = sigmas._version if tracked else 0
        return self._values


def family_of(scheduler: Any) -> str:
    """The family of a scheduler whose mean has been checked against its own; others raise."""
    for base in type(scheduler).__mro__:
        if base.__name__ in FAMILIES:
            return FAMILIES[base.__name__]
    raise NotImplementedError(
        f"{type(scheduler).__name__} has no posterior mean that was checked; replace it, for"
        " instance pipe.scheduler = diffusers.DDIMScheduler.from_config(pipe.scheduler.config), by one of "
        + ", ".join(name.removesuffix("Scheduler") for name in FAMILIES)
    )


def _index(scheduler: Any, timestep: Any) -> int:
    """The place in `sigmas` of the evaluation that is about to be used, as the scheduler will find it."""
    for place in (scheduler.step_index, scheduler.begin_index):
        if place is not None:
            return int(place)
    if isinstance(timestep, Tensor):
        timestep = timestep.to(scheduler.timesteps.device)
    return int(scheduler.index_for_timestep(timestep))


_KINDS = {"epsilon": "noise", "v_prediction": "v", "sample": "mean"}


def _on_path(kind: str, alpha: float, sigma: float) -> Affine:
    if kind not in _KINDS or (kind == "epsilon" and alpha == 0):
        raise _undetermined(kind)
    return on_gaussian(_KINDS[kind], alpha, sigma)


def _undetermined(kind: str) -> NotImplementedError:
    return NotImplementedError(
        f"prediction_type {kind!r} does not determine the posterior mean here; use epsilon (not at pure "
        "noise), v_prediction, sample, or flow_prediction with flow sigmas"
    )


def _scaled_v(s: float, data: float = 1.0, sign: float = 1.0) -> Affine:
    """On x = data + s noise, if the network's v belongs to x divided by its standard deviation."""
    a, k, *_ = on_gaussian("v", data, s)
    return Affine(data * a, sign * data * math.hypot(s, data) * k, t=1 / (1 + s), unit=1 / (1 + s))


def first_stage(scheduler: Any) -> bool:
    """Whether this evaluation is the first of a step, and not a later stage of one."""
    return bool(getattr(scheduler, "state_in_first_order", True))


def is_flow(scheduler: Any) -> bool:
    """Whether the scheduler follows the linear path."""
    return family_of(scheduler) == "flow" or bool(scheduler.config.get("use_flow_sigmas", False))
