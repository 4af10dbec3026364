"""A guider for LTX-2, one for each modality: its own guidance, under the cap.

    pred_cond, pred_uncond, ...   posterior means: the pipeline turns velocities into means before it asks
    nominal                       what LTX2Guidance makes of them: classifier-free guidance, perturbed blocks,
                                  isolated modalities, rescaling

The means are given, so no state and no sigma are needed.
"""

from __future__ import annotations

from typing import Any

from diffusers.configuration_utils import register_to_config
from diffusers.guiders.guider_utils import GuiderOutput
from diffusers.guiders.ltx2_guidance import LTX2Guidance
from torch import Tensor

from ...path import Affine
from ...rules import Rule
from ..record import RunRecord
from ..session import Session
from .guiders import cap_of


class CappedLTX2Guidance(LTX2Guidance):
    """LTX-2's guidance of one modality, its result at most `gamma` times as long as the conditional mean.

    gamma, form   as in PosteriorMeanCappedGuidance; the other arguments are those of diffusers' LTX2Guidance,
                  to which an infinite gamma is equal bit for bit
    """

    __module__ = "meancap.adapters.diffusers"

    @register_to_config  # type: ignore[untyped-decorator]
    def __init__(
        self,
        guidance_scale: float = 1.0,
        gamma: float = 1.1,
        form: str = "ball",
        stg_scale: float = 0.0,
        modality_scale: float = 1.0,
        guidance_rescale: float = 0.0,
        spatio_temporal_guidance_blocks: list[int] | None = None,
        start: float = 0.0,
        stop: float = 1.0,
        enabled: bool = True,
    ) -> None:
        super().__init__(
            guidance_scale, stg_scale, modality_scale, guidance_rescale, spatio_temporal_guidance_blocks,
            start, stop, enabled,
        )  # fmt: skip
        self._session = Session(cap_of(form, gamma))

    @property
    def rule(self) -> Rule:
        return self._session.rule

    @property
    def record(self) -> RunRecord:
        """What guidance did in the latest run, for this modality."""
        return self._session.record

    def set_state(self, step: int, num_inference_steps: int, timestep: Any) -> None:
        super().set_state(step, num_inference_steps, timestep)
        if step == 0:
            self._session.begin()
            self.record.about = {"guider": type(self).__name__, "rule": str(self.rule)}

    def prepare_inputs_from_block_state(self, data: Any, input_fields: dict[str, Any]) -> list[Any]:
        if getattr(data, "conditioning_mask", None) is not None:
            raise NotImplementedError(
                f"{type(self).__name__} is for text to video: given frames stand clean among the others, and "
                "would count into every length; use LTX2Guidance there"
            )
        prepared: list[Any] = super().prepare_inputs_from_block_state(data, input_fields)
        return prepared

    def forward(
        self,
        pred_cond: Tensor,
        pred_uncond: Tensor | None = None,
        pred_cond_stg: Tensor | None = None,
        pred_cond_modality: Tensor | None = None,
    ) -> GuiderOutput:
        made = super().forward(pred_cond, pred_uncond, pred_cond_stg, pred_cond_modality)
        others = [v for v in (pred_uncond, pred_cond_stg, pred_cond_modality) if v is not None]
        if not others:
            return made
        # Time runs backwards here: timestep 1000 is noise, which is our t = 0.
        how = Affine(0.0, 1.0, t=min(max(1 - float(self._timestep) / 1000, 0.0), 1.0))
        pred = self._session.guide(how, pred_cond, pred_cond, others[0], made.pred)
        return GuiderOutput(pred=pred, pred_cond=pred_cond, pred_uncond=pred_uncond)
