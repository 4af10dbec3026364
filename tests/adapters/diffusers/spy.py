"""An observer of its own: what the denoiser said and what the scheduler's own step received."""

from __future__ import annotations

import math
import types
from dataclasses import dataclass, field
from functools import wraps
from typing import Any

import torch

from meancap.adapters.diffusers import LAYOUTS, Layout


@dataclass
class Spy:
    """Stands on the scheduler before anything else is attached, so it sees what finally arrives there."""

    name: str
    pipe: Any
    outputs: list[Any] = field(default_factory=list)
    steps: list[dict[str, Any]] = field(default_factory=list)
    said: list[Any] = field(default_factory=list)  # at the step that is being made
    stream: int = 0
    layout: Layout | None = None  # unless the table has it

    def __post_init__(self):
        layout = self.layout or LAYOUTS[self.name]
        scheduler, step = self.pipe.scheduler, type(self.pipe.scheduler).step

        @wraps(step)  # pipelines read from the signature whether a step takes their generator
        def seen(this, model_output, timestep, sample, *args, **kwargs):
            self.stream = 0 if self.outputs else self.stream + 1
            if self.outputs:
                self.said = list(self.outputs)
            parts = layout.parts(self.said, model_output, self.name, self.stream)
            x, (sigma, a, k) = sample.clone(), mean_of(this, timestep)  # some pipelines overwrite their state
            made = {"sigma": sigma, "a": a, "k": k, "x": x, "received": model_output, "parts": parts}
            self.steps.append(made)
            self.outputs.clear()
            return step(this, model_output, timestep, sample, *args, **kwargs)

        scheduler.step = types.MethodType(seen, scheduler)
        for denoiser in layout.denoisers:
            if (module := getattr(self.pipe, denoiser, None)) is not None:
                module.register_forward_hook(lambda module, args, output: self.outputs.append(output))

    def ratios(self):
        """|m| / |m_c| of what arrived at each step, in float64."""
        return torch.stack(
            [_norm(seen, seen["received"]) / _norm(seen, seen["parts"]["c"]) for seen in self.steps]
        )

    def cancelled(self):
        """How many times its own length the terms of a mean have: how far its rounding is magnified."""
        found = []
        for seen in self.steps:
            x, got = (v.double().flatten(1).norm(dim=1) for v in (seen["x"], seen["received"]))
            found.append((abs(seen["a"]) * x + abs(seen["k"]) * got) / _norm(seen, seen["received"]))
        return torch.stack(found)


def _norm(seen, output):
    return (seen["a"] * seen["x"].double() + seen["k"] * output.double()).flatten(1).norm(dim=1)


def mean_of(scheduler, timestep):
    """sigma, and a and k in m = a x + k output, written out for the schedulers of the tiny pipelines."""
    name, config = type(scheduler).__name__, scheduler.config
    kind = config.get("prediction_type", "flow_prediction")
    if not hasattr(scheduler, "sigmas"):  # DDIM, DDPM
        product = float(scheduler.alphas_cumprod[int(timestep)])
        alpha, sigma = math.sqrt(product), math.sqrt(1 - product)
    else:
        if scheduler.step_index is None:
            scheduler._init_step_index(timestep)
        sigma = float(scheduler.sigmas[scheduler.step_index])
        alpha = 1.0
    if kind == "flow_prediction":
        return sigma, 1.0, (1.0 if config.get("invert_sigmas", False) else 0.0) - sigma
    if name.startswith("EDM"):  # with sigma_data = 1
        return sigma, 1 / (1 + sigma**2), -sigma / math.hypot(1, sigma)
    if name.startswith("DPMSolver"):
        alpha = 1 / math.hypot(1, sigma)
        sigma *= alpha
    return (sigma, alpha, -sigma) if kind == "v_prediction" else (sigma, 1 / alpha, -sigma / alpha)
