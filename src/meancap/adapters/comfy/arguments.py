"""Reads the arguments of a post-CFG hook; ComfyUI and Forge pass nearly the same dictionary.

denoised         the guided mean that the workflow made: sampler, guider and the nodes before this one
cond_denoised    m_c
uncond_denoised  m_u; zeros where the host evaluated no negative
empty_cond_denoised  the mean under an empty prompt, from PerpNegGuider, whose uncond is then to be avoided
sigma            the noise level; x = alpha data + sigma noise, alpha = 1 - sigma in flow models, else 1
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
from ...tensors import Number, scalar_dtype

Args = Mapping[str, Any]


@dataclass(frozen=True)
class NoiseLevels:
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


def noise_levels(args: Args) -> NoiseLevels:
    """The noise levels of the model's schedule: `model_sampling` (ComfyUI) or `predictor` (Forge).

    `noise_scaling` at sigma = 1/2 shows whether data are scaled by 1 - sigma, as in flow models, or by 1.
    Forge classic does not have it; there the largest noise level decides, which is 1 in flow models only. A
    model without a schedule is taken as a flow model.
    """
    model = args.get("model")
    host = getattr(model, "model_sampling", None) or getattr(model, "predictor", None)
    if host is None:
        return NoiseLevels(True, lambda share: 1 - share)
    if hasattr(host, "noise_scaling"):
        flow = float(host.noise_scaling(torch.full((1,), 0.5), torch.zeros(1), torch.ones(1))) < 0.75
    else:
        flow = float(host.sigma_max) <= 1
    return NoiseLevels(flow, lambda share: float(host.percent_to_sigma(share)))


def sigmas(args: Args) -> Tensor:
    """One noise level per sample."""
    sigma: Tensor = args["sigma"]
    return sigma.reshape(1) if sigma.dim() == 0 else sigma.reshape(sigma.shape[0], -1)[:, 0]


def negative(args: Args) -> tuple[Any, Tensor]:
    """The negative conditioning and its mean; PerpNegGuider may have only an empty prompt in its place."""
    if args.get("uncond", ()) is None and args.get("empty_cond") is not None:
        return args["empty_cond"], args["empty_cond_denoised"]
    return args.get("uncond", ()), args["uncond_denoised"]


def prediction(args: Args) -> Prediction:
    """The host's two means."""
    how = noise_levels(args).place(sigmas(args))
    return Prediction.from_affine(args["input"], args["cond_denoised"], negative(args)[1], how)


def three_means(args: Args) -> Prediction | None:
    """Its three means, the negative beside that of the empty prompt; None where it made two."""
    if args.get("empty_cond") is None or args.get("uncond") is None:
        return None
    empty: Tensor = args["empty_cond_denoised"]
    # Outside its range the negative is all zeros, which is not a prediction: then nothing is avoided.
    avoided = args["uncond_denoised"] if negative_in_range(args) else empty
    return replace(prediction(args), out_u=empty, extra={"negative": avoided})


def grid(args: Args) -> Tensor | None:
    """The noise levels that the sampler was given, from noise to data; None if the host passes none."""
    options = args.get("model_options") or {}
    levels = (options.get("transformer_options") or {}).get("sample_sigmas")
    return levels if isinstance(levels, Tensor) and levels.dim() == 1 else None


def later(args: Args, hook: object) -> list[str]:
    """The names of the functions that change the result after this hook has."""
    options = args.get("model_options") or {}
    functions = list(options.get("sampler_post_cfg_function") or ())
    place = next((i for i, one in enumerate(functions) if one is hook), len(functions))
    return [getattr(one, "__qualname__", type(one).__name__).split(".")[-1] for one in functions[place + 1 :]]


def step_end(args: Args) -> Number | None:
    """The time at which the step under way will end."""
    levels = grid(args)
    if levels is None:
        return None
    below = levels[levels < sigmas(args)[0].to(levels)]
    return noise_levels(args).time(below[:1]) if len(below) else None


def without_negative(args: Args) -> bool:
    """Whether the host guides nothing here: cfg 1, where it skips the negative, or no negative at all."""
    conditioning, mean = negative(args)
    if conditioning is None:
        return True
    if "cond_scale" not in args:  # Forge passes no scale, and passes a negative even where it skipped it
        return not bool(mean.any())
    scale = args["cond_scale"]
    return isinstance(scale, (int, float)) and math.isclose(scale, 1.0)


def negative_in_range(args: Args) -> bool:
    """Whether any part of the negative is meant for this noise level (ConditioningSetTimestepRange)."""
    parts: Sequence[Mapping[str, Any]] = negative(args)[0] or ()
    sigma = sigmas(args)[0]
    return not parts or any(
        not (
            ("timestep_start" in part and bool(sigma > part["timestep_start"]))
            or ("timestep_end" in part and bool(sigma < part["timestep_end"]))
        )
        for part in parts
    )
