"""SGLang-diffusion: a CFG policy whose `combine` applies a rule to what the policy before it made.

    server_args.pipeline_config.cfg_policy = capped(CFGPolicy, Cap(1.1))

    predictions   conditional, unconditional: velocities noise - data, as its flow pipelines have them
    x             not passed in; it is followed from batch.latents by the scheduler's Euler steps
    sigma         batch.scheduler.sigmas, one further at every call

A policy of this kind serves one generation: `build`, which SGLang calls before the loop, resets it.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from torch import Tensor

from ..path import Affine
from ..rules import Rule
from ..tensors import promoted
from .session import RunRecord, Session


class _Follower:
    """The state of one generation, followed from step to step, and the rule applied to it."""

    def __init__(self, rule: Rule | str) -> None:
        self.session = Session(rule)
        self.x: Tensor | None = None
        self.step = 0

    @property
    def record(self) -> RunRecord:
        return self.session.record

    def combine(self, c: Tensor, u: Tensor | None, nominal: Tensor, batch: Any) -> Tensor:
        """The guided velocity; `u` is None if guidance is off."""
        scheduler = batch.scheduler
        if not type(scheduler).__name__.startswith("FlowMatchEuler"):
            raise NotImplementedError(
                f"this adapter computes the state by Euler steps, which {type(scheduler).__name__} does "
                "not make; "
                "use FlowMatchEulerDiscreteScheduler"
            )
        x = batch.latents if self.x is None else self.x
        if x.shape != c.shape:
            raise NotImplementedError(
                f"the state has shape {tuple(x.shape)} and the prediction {tuple(c.shape)}: a sharded or "
                "edited state is not supported"
            )
        now, after = (float(s) for s in scheduler.sigmas[self.step : self.step + 2])
        if u is not None:
            nominal = self.session.guide(Affine(1.0, -now, t=1 - now, t_next=1 - after), x, c, u, nominal)
        self.x = (promoted(x) + (after - now) * promoted(nominal)).to(x.dtype)
        self.step += 1
        return nominal


def capped(base: type, rule: Rule | str) -> Any:
    """A policy of SGLang's class `base` (its CFGPolicy) under a rule, also under CFG parallelism."""
    if not hasattr(base, "parallel_uses_serial_arithmetic"):
        raise NotImplementedError(
            f"{base.__name__} has no parallel_uses_serial_arithmetic, without which SGLang's CFG parallelism "
            "never calls the policy's combine; update SGLang"
        )

    @dataclasses.dataclass
    class RulePolicy(base):  # type: ignore[misc]
        # Otherwise SGLang adds weighted predictions across two ranks by itself, and `combine` is not called.
        parallel_uses_serial_arithmetic: bool = True
        follower: _Follower = dataclasses.field(default_factory=lambda: _Follower(rule))

        def build(self, *arguments: Any, **named: Any) -> Any:
            return dataclasses.replace(super().build(*arguments, **named), follower=_Follower(rule))

        def combine(
            self,
            predictions: list[Any],
            batch: Any,
            cfg_scale: float,
            pipeline_config: Any,
            *,
            cfg_parallel: bool = False,
        ) -> Any:
            nominal = super().combine(
                predictions, batch, cfg_scale, pipeline_config, cfg_parallel=cfg_parallel
            )
            if isinstance(nominal, tuple):
                raise NotImplementedError("a generation with several predictions per call is not supported")
            c, u = predictions[0], predictions[1] if len(predictions) > 1 else None
            return self.follower.combine(c, u, nominal, batch)

    return RulePolicy()
