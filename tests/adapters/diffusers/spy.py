"""An observer of its own: what the denoiser said and what the scheduler's own step received."""

from __future__ import annotations

import types
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from meancap.adapters.diffusers import LAYOUTS


@dataclass
class Spy:
    """Stands on the scheduler before anything else is attached, so it sees what finally arrives there."""

    name: str
    pipe: Any
    outputs: list[Any] = field(default_factory=list)
    steps: list[dict[str, Any]] = field(default_factory=list)
    said: list[Any] = field(default_factory=list)  # at the step that is being made
    stream: int = 0

    def __post_init__(self) -> None:
        scheduler, step = self.pipe.scheduler, type(self.pipe.scheduler).step

        def seen(
            this: Any, model_output: Tensor, timestep: Any, sample: Tensor, *args: Any, **kwargs: Any
        ) -> Any:
            self.stream = 0 if self.outputs else self.stream + 1
            if self.outputs:
                self.said = list(self.outputs)
            parts = LAYOUTS[self.name].parts(self.said, model_output, self.name, self.stream)
            if this.step_index is None:
                this._init_step_index(timestep)
            x, sigma = sample.clone(), this.sigmas[this.step_index]  # some pipelines write over their state
            self.steps.append({"sigma": sigma, "x": x, "received": model_output, "parts": parts})
            self.outputs.clear()
            return step(this, model_output, timestep, sample, *args, **kwargs)

        scheduler.step = types.MethodType(seen, scheduler)
        for denoiser in LAYOUTS[self.name].denoisers:
            if (module := getattr(self.pipe, denoiser, None)) is not None:
                module.register_forward_hook(lambda module, args, output: self.outputs.append(output))

    def ratios(self) -> Tensor:
        """|m| / |m_c| of what arrived at each step of a flow scheduler, in float64."""
        end = 1.0 if self.pipe.scheduler.config.get("invert_sigmas", False) else 0.0
        found = []
        for seen in self.steps:
            x, got, c = (v.double().flatten(1) for v in (seen["x"], seen["received"], seen["parts"]["c"]))
            k = end - seen["sigma"].double()
            found.append((x + k * got).norm(dim=1) / (x + k * c).norm(dim=1))
        return torch.stack(found)
