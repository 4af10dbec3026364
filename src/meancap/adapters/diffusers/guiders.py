"""Guiders for modular pipelines, and for classic ones that own a guider.

    pred_cond, pred_uncond   the denoiser's outputs, in the scheduler's convention
    x                        the state: from the block state or the inputs, else observed at the denoiser
    sigma                    from the scheduler of the pipeline given by `bind`, else timestep / 1000

The names here are written into `guider_config.json` and `modular_model_index.json`; the path
`meancap.adapters.diffusers` is what those files import, and stays.
"""

from __future__ import annotations

import math
import warnings
from typing import Any

import torch
from diffusers.configuration_utils import register_to_config
from diffusers.guiders.guider_utils import BaseGuidance, GuiderOutput, rescale_noise_cfg
from torch import Tensor, nn

from ...path import Affine
from ...rules import Cap, CapDisplacement, Rule, parse
from ..session import RunRecord, Session, Undo, listen
from .guided_pipelines import MEAN_FLOW, SAME_PREDICTIONS
from .layouts import shown_state
from .schedulers import PathReader, first_stage, is_flow

# Denoisers that are shown more along axis 1 than they predict, with the state first.
_STATE_FIRST = (
    "QwenImageTransformer2DModel",
    "Flux2Transformer2DModel",
    "HunyuanVideo15Transformer3DModel",
    "WanTransformer3DModel",
)
_OFF = (
    "the guider made one prediction per step, because its guidance_scale turns guidance off or no step lay "
    "between start and stop"
)


class _RuleGuidance(BaseGuidance):
    """What the guiders here share: from two predictions, the state and the time to one prediction."""

    _input_predictions: Any = ["pred_cond", "pred_uncond"]  # noqa: RUF012 - diffusers wants a list

    def _set_up(self, rule: Rule) -> None:
        self._session = Session(rule)
        self._reader = PathReader()
        self._bound: Any = None  # a pipeline, or a scheduler
        self._x: Tensor | None = None
        self._shown_to = ""  # the denoiser at which x was observed, if it was
        self._undo: Undo | None = None
        self._warned = self._rounded = False
        self._idle = False  # whether the rule needs no unconditional prediction at this step

    @property
    def rule(self) -> Rule:
        return self._session.rule

    @property
    def record(self) -> RunRecord:
        """What guidance did in the latest run."""
        return self._session.record

    def bind(self, pipe: Any) -> Any:
        """Reads the exact sigma from this pipeline's scheduler (or this scheduler); returns the guider."""
        self._bound = pipe
        self._check_path()
        return self

    @property
    def _scheduler(self) -> Any:
        """The scheduler that the pipeline has now, not the one it had when it was bound."""
        return getattr(self._bound, "scheduler", self._bound)

    def _check_path(self) -> None:
        if not is_flow(self._scheduler):
            raise NotImplementedError(
                f"{type(self._scheduler).__name__} does not follow the linear path; for epsilon and v "
                "models use guided() with a classic pipeline"
            )

    def _check_bound(self, timestep: Any) -> None:
        """Whether the bound scheduler is the one that makes this step."""
        self._check_path()
        place, times = self._scheduler.step_index, self._scheduler.timesteps
        here = times if place is None else times[place : place + 1]
        if not bool((here.cpu() == torch.as_tensor(timestep).cpu()).any()):
            raise ValueError(
                f"the scheduler that this guider is bound to is not at timestep {float(timestep):g}; "
                "it belongs to another pipeline or run: bind the pipeline that is called, guider.bind(pipe)"
            )

    def set_state(self, step: int, num_inference_steps: int, timestep: Any) -> None:
        super().set_state(step, num_inference_steps, timestep)
        self._x, self._shown_to = None, ""
        if self._bound is not None:
            self._check_bound(timestep)
        if step == 0:
            self._session.begin()
            self.record.about = {"guider": type(self).__name__, "rule": str(self.rule)}
            self.record.idle = _OFF
        self._idle = not self.rule.caps and self._acts() and self._session.is_idle(float(self._edge().t))

    def prepare_inputs(self, data: Any) -> list[Any]:
        shown = data.get("hidden_states")
        self._x = shown[0] if isinstance(shown, tuple) else shown
        return [self._prepare_batch(data, i, name) for i, name in self._wanted()]

    def prepare_inputs_from_block_state(self, data: Any, input_fields: dict[str, Any]) -> list[Any]:
        self._x = getattr(data, "latents", None)
        return [
            self._prepare_batch_from_block_state(input_fields, data, i, name) for i, name in self._wanted()
        ]

    def _wanted(self) -> list[tuple[int, str]]:
        return list(enumerate(self._input_predictions))[: self.num_conditions]

    def prepare_models(self, denoiser: nn.Module) -> None:
        super().prepare_models(denoiser)
        if getattr(getattr(denoiser, "config", None), "use_meanflow", False) and self._acts():
            raise ValueError(f"{type(self).__name__} cannot guide {MEAN_FLOW}")
        if self._x is None or self._shown_to:
            self._shown_to = type(getattr(denoiser, "_orig_mod", denoiser)).__name__
            self._undo = listen(denoiser, self._overhear)

    def cleanup_models(self, denoiser: nn.Module) -> None:
        if self._undo is not None:
            self._undo()
            self._undo = None

    def _overhear(self, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        self._x = shown_state(args, kwargs)

    def _state(self, pred: Tensor) -> Tensor:
        """The state that a prediction belongs to."""
        x = self._x
        if x is not None and x.dim() == pred.dim() and self._shown_to in _STATE_FIRST:
            x = x[:, : pred.shape[1]]
        if x is None or x.shape != pred.shape:
            seen = "no state" if self._x is None else f"{self._shown_to} shown {tuple(self._x.shape)}"
            raise NotImplementedError(
                f"{type(self).__name__} saw {seen} for a prediction of {tuple(pred.shape)} and "
                "cannot find the state in it; use guided() with the classic pipeline"
            )
        return x

    def forward(self, pred_cond: Tensor, pred_uncond: Tensor | None = None) -> GuiderOutput:
        if self._idle:
            pred_uncond = pred_cond
        if pred_uncond is None:
            self.record.unguided += 1
            self._warn_if_never()
            return GuiderOutput(pred=self._alone(pred_cond), pred_cond=pred_cond, pred_uncond=None)
        if not self._warned and not self._idle and torch.equal(pred_cond, pred_uncond):
            self._warned = True
            warnings.warn(SAME_PREDICTIONS.format("the pipeline"), stacklevel=2)
        nominal = self._nominal(pred_cond, pred_uncond)
        x, edge = self._state(pred_cond), self._edge()
        first = self._scheduler is None or first_stage(self._scheduler)
        pred = self._session.guide(edge, x, pred_cond, pred_uncond, nominal, first=first)
        return GuiderOutput(pred=pred, pred_cond=self._reported(pred, pred_cond), pred_uncond=pred_uncond)

    def _warn_if_never(self) -> None:
        """At the last step of a run in which an enabled guider had nothing to do."""
        last = self._num_inference_steps is not None and self._step == self._num_inference_steps - 1
        if last and self._enabled and not len(self.record):
            warnings.warn(f"nothing to guide: {_OFF}", stacklevel=3)

    def _alone(self, pred_cond: Tensor) -> Tensor:
        return pred_cond

    def _nominal(self, pred_cond: Tensor, pred_uncond: Tensor) -> Tensor:
        return pred_cond

    def _reported(self, pred: Tensor, pred_cond: Tensor) -> Tensor:
        return pred_cond

    def _edge(self) -> Affine:
        if self._scheduler is not None:
            return self._reader.edge(self._scheduler, self._timestep)
        t = self._timestep
        sigma = float(t) / 1000
        if not 0 < sigma <= 1 or (self._step == 0 and float(t) <= 1):
            raise ValueError(
                f"timestep {float(t)} is not 1000 sigma; pass the scheduler with guider.bind(pipe)"
            )
        if isinstance(t, Tensor) and not t.is_floating_point() and self._step == 0 and not self._rounded:
            self._rounded = True
            warnings.warn(
                "this scheduler rounds its timesteps, so sigma is known to 0.001 only; "
                "guider.bind(pipe) reads it exactly",
                stacklevel=2,
            )
        return Affine(a=1.0, k=-sigma, t=1 - sigma)

    @property
    def is_conditional(self) -> bool:
        return bool(self._count_prepared == 1)

    @property
    def num_conditions(self) -> int:
        """Also read before any step: text encoders use it to decide whether to encode the negative prompt."""
        return 2 if self._acts() and not self._idle else 1

    def _acts(self) -> bool:
        if not self._enabled:
            return False
        n = self._num_inference_steps
        return n is None or int(self._start * n) <= self._step < int(self._stop * n)


class PosteriorMeanCappedGuidance(_RuleGuidance):
    """Classifier-free guidance whose posterior mean is at most `gamma` times as long as the conditional one.

    guidance_scale, guidance_rescale, use_original_formulation, start, stop, enabled
            as in diffusers' ClassifierFreeGuidance, to which an infinite gamma is equal bit for bit
    gamma   the bound, 1 or more
    form    'ball' bounds the guided mean (the paper's Section 4); 'displacement' bounds its distance from the
            conditional one by gamma - 1 (the paper's SD3.5 experiments), which is stricter
    final   hand the pipeline the guided prediction as the conditional one as well, so that a rescaling to the
            latter (modular Qwen-Image) leaves the bound alone
    """

    __module__ = "meancap.adapters.diffusers"

    @register_to_config  # type: ignore[untyped-decorator]
    def __init__(
        self,
        guidance_scale: float = 7.5,
        gamma: float = 1.1,
        form: str = "ball",
        guidance_rescale: float = 0.0,
        use_original_formulation: bool = False,
        final: bool = False,
        start: float = 0.0,
        stop: float = 1.0,
        enabled: bool = True,
    ) -> None:
        super().__init__(start, stop, enabled)
        self.guidance_scale, self.guidance_rescale = guidance_scale, guidance_rescale
        self.use_original_formulation, self.final = use_original_formulation, final
        forms = {"ball": Cap, "displacement": CapDisplacement}
        if form not in forms:
            raise ValueError(f"form is 'ball' or 'displacement'; got {form!r}")
        self._set_up(forms[form](float(gamma)))

    def _nominal(self, pred_cond: Tensor, pred_uncond: Tensor) -> Tensor:
        # In diffusers' own order of operations, so that an uncapped result equals theirs bit for bit.
        shift = pred_cond - pred_uncond
        pred = pred_cond if self.use_original_formulation else pred_uncond
        return self._rescaled(pred + self.guidance_scale * shift, pred_cond)

    def _alone(self, pred_cond: Tensor) -> Tensor:
        return self._rescaled(pred_cond, pred_cond)

    def _rescaled(self, pred: Tensor, pred_cond: Tensor) -> Tensor:
        if self.guidance_rescale > 0.0:
            rescaled: Tensor = rescale_noise_cfg(pred, pred_cond, self.guidance_rescale)  # type: ignore[no-untyped-call]
            return rescaled
        return pred

    def _reported(self, pred: Tensor, pred_cond: Tensor) -> Tensor:
        return pred if self.final else pred_cond

    def _acts(self) -> bool:
        off = 0.0 if self.use_original_formulation else 1.0
        return super()._acts() and not math.isclose(self.guidance_scale, off)


class ChainGuidance(_RuleGuidance):
    """Guidance by any rule, written as text: ChainGuidance('apg(7)'), ChainGuidance('CFG(7) | Cap(1.1)')."""

    __module__ = "meancap.adapters.diffusers"

    @register_to_config  # type: ignore[untyped-decorator]
    def __init__(
        self, rule: str = "CFG(7.5) | Cap(1.1)", start: float = 0.0, stop: float = 1.0, enabled: bool = True
    ) -> None:
        super().__init__(start, stop, enabled)
        chain = parse(rule)
        if chain.caps:
            raise ValueError(f"{rule} is a cap with no guidance to cap; write CFG(7.5) | {rule}")
        self._set_up(chain)
