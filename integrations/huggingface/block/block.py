"""A block for modular pipelines of diffusers: from here on the guidance of the pipeline is capped.

It goes first, since text encoders ask the guider whether the negative prompt is needed.
"""

from __future__ import annotations

from typing import Any

from diffusers.modular_pipelines import InputParam, ModularPipelineBlocks, PipelineState

from meancap.adapters.diffusers import PosteriorMeanCappedGuidance


class PosteriorMeanCapStep(ModularPipelineBlocks):
    """Puts a `PosteriorMeanCappedGuidance`, bound to the scheduler, in the place of the pipeline's guider."""

    @property
    def description(self) -> str:
        return "Caps classifier-free guidance: |m| <= gamma |m_c| for the posterior mean of every sample."

    @property
    def inputs(self) -> list[InputParam]:
        return [
            InputParam("cap_scale", type_hint=float, default=7.0, description="nominal guidance scale"),
            InputParam("cap_gamma", type_hint=float, default=1.1, description="the bound, at least 1"),
            InputParam("cap_form", type_hint=str, default="ball", description="'ball' or 'displacement'"),
        ]

    def __call__(self, components: Any, state: PipelineState) -> tuple[Any, PipelineState]:
        given = self.get_block_state(state)
        guider = PosteriorMeanCappedGuidance(given.cap_scale, given.cap_gamma, given.cap_form)
        components.update_components(guider=guider.bind(components))
        return components, state
