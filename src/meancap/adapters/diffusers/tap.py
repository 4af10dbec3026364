"""What is attached to a pipeline while it is guided."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ...rules import Rule
from ..session import Session
from . import check
from .attach import Undo, listen, override
from .layouts import Layout
from .schedulers import Clock, family_of, first_stage

TAP = "_meancap_tap"  # where a guided pipeline keeps its tap
SAME = (
    "nothing to guide: {} made the same prediction with and without the condition, as if the two prompts "
    'were one; pass a negative prompt of its own (negative_prompt="" will do)'
)


class Tap:
    """What is attached to one pipeline while it is guided: ears on its denoisers, a hand on its scheduler."""

    def __init__(self, pipe: Any, layout: Layout, verify: bool) -> None:
        self.pipe, self.layout, self.verify = pipe, layout, verify
        self.name = type(pipe).__name__
        self.sessions: list[Session] = []
        self.standing: Session | None = None
        self.clock = Clock()
        self.heard: list[Any] = []
        self.scheduler: Any = None
        self.verified = False
        self._undo: list[Undo] = []
        self._begin()

    def push(self, session: Session, *, first: bool = False) -> Session:
        if not self.sessions:
            self._attach()
        self.sessions.insert(0 if first else len(self.sessions), session)
        return session

    def pop(self, session: Session) -> None:
        self.sessions.remove(session)
        if not self.sessions:
            self._detach()

    def say_if_idle(self, session: Session) -> None:
        if self.steps and not self.guided and not self.said:
            self._nothing_to_guide(session.rule)

    def _attach(self) -> None:
        family_of(self.pipe.scheduler)
        named = [getattr(self.pipe, name, None) for name in self.layout.denoisers]
        found = [module for module in named if module is not None]
        if not found:
            raise ValueError(f"{self.name} has no {' or '.join(self.layout.denoisers)} to listen to")
        self._undo = [listen(module, self._hear) for module in found]
        self._hold(self.pipe.scheduler)
        setattr(self.pipe, TAP, self)

    def _detach(self) -> None:
        for undo in reversed(self._undo):
            undo()
        self._undo.clear()
        self.heard.clear()
        self.scheduler = None
        delattr(self.pipe, TAP)

    def _hold(self, scheduler: Any) -> None:
        family_of(scheduler)
        self.scheduler = scheduler
        self._undo.append(override(scheduler, "step", self._step))
        self._undo.append(override(scheduler, "set_timesteps", self._set_timesteps))

    def _hear(self, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        if self.pipe.scheduler is not self.scheduler:  # exchanged since the block was entered
            self._hold(self.pipe.scheduler)
            self._begin()
        self.heard.append(output)

    def _begin(self) -> None:
        self.heard.clear()
        self.steps = self.guided = 0
        self.said = False
        for session in self.sessions:
            session.begin()

    def _set_timesteps(self, original: Callable[..., Any], scheduler: Any, *args: Any, **kwargs: Any) -> Any:
        if self.sessions:  # a new run
            self._begin()
        return original(*args, **kwargs)

    def _step(
        self,
        original: Callable[..., Any],
        scheduler: Any,
        model_output: Tensor,
        timestep: Any,
        sample: Tensor,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        if self.sessions:
            if kwargs.get("per_token_timesteps") is not None:
                raise NotImplementedError(
                    f"{self.name} steps each token at a time of its own, which no rule here reads"
                )
            model_output = self._guide(scheduler, model_output, timestep, sample)
        return original(model_output, timestep, sample, *args, **kwargs)

    def _guide(self, scheduler: Any, nominal: Tensor, timestep: Any, sample: Tensor) -> Tensor:
        heard, self.heard = self.heard, []
        if not heard:
            raise RuntimeError(
                f"{self.name} stepped without calling its {' or '.join(self.layout.denoisers)}; if the "
                "denoiser was exchanged inside the block, exchange it before"
            )
        self.steps += 1
        parts = self.layout.parts(heard, nominal, self.name)
        if parts is None:
            if self.steps == 1 and getattr(self.pipe, "guider", None) is None:
                self._nothing_to_guide(self.sessions[-1].rule)
            return nominal
        c, u = parts.pop("c"), parts.pop("u")
        if self.verify and not self.verified and not self.guided:
            extra, free = list(parts.values()), self.layout.scale == "guider"
            self.verified = check.verify(self.name, nominal, c, u, extra, self.layout.rows, free=free)
        if not self.guided:
            self._describe(scheduler, c, u)
        self.guided += 1
        edge, first = self.clock.edge(scheduler, timestep), first_stage(scheduler)
        for session in self.sessions:
            nominal = session.guide(edge, sample, c, u, nominal, first=first)
        return nominal

    def _describe(self, scheduler: Any, c: Tensor, u: Tensor) -> None:
        if torch.equal(c, u):
            warnings.warn(SAME.format(self.name), stacklevel=2)
        for session in self.sessions:
            session.record.about = {
                "pipeline": self.name,
                "rule": str(session.rule),
                "scheduler": type(scheduler).__name__,
                "sigmas": self.clock.grid(scheduler),
                "dtype": str(c.dtype).removeprefix("torch."),
                "shape": list(c.shape),
            }

    def _nothing_to_guide(self, rule: Rule) -> None:
        self.said = True
        cure = f"pass {self.layout.scale} above {1 - self.layout.offset}"
        if self.layout.scale == "guider":
            cure = "give it a guider that is enabled"
        sentence = (
            f"nothing to guide: {self.name} made one prediction per step, because guidance is off in this "
            f"call or the model is guidance-distilled; {cure}, and a negative prompt where one is wanted"
        )
        if not rule.caps:
            raise ValueError(f"{sentence}; {rule} needs two predictions")
        warnings.warn(sentence, stacklevel=2)
