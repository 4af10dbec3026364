"""One line for a classic pipeline: observes the denoiser, and acts when the scheduler steps.

    with guided(pipe, Cap(1.1)) as record:
        pipe(prompt, guidance_scale=7)

The denoiser's outputs are observed and not changed. When the pipeline passes its own guided prediction to
`scheduler.step`, the rule gets the true state, the true sigma and both predictions, and passes on its result.
After the block the pipeline is as it was.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field, replace
from threading import get_ident
from typing import Any

import torch
from torch import Tensor

from ...rules import Rule
from ..session import RunRecord, Session, listen, need_cap_inside, override
from .layouts import Layout, LayoutError, same_state, shown_state, verify_layout
from .pipeline_table import layout_of
from .schedulers import PathReader, family_of, first_stage

_TAP = "_meancap_tap"  # where a guided pipeline keeps its tap
SAME_PREDICTIONS = (
    "nothing to guide: {} made the same prediction with and without the condition, as if the two prompts "
    'were one; pass a negative prompt of its own (negative_prompt="" will do)'
)
MEAN_FLOW = (
    "a MeanFlow model, which predicts the average velocity of a step, and from that no posterior mean follows"
)
_UNUSED = (
    "guided(pipe, rule) guides nothing by itself; write `with guided(pipe, rule) as record:` round the call"
)


@dataclass
class _Heard:
    """The outputs of the denoisers since the last step, in one thread."""

    outputs: list[Any] = field(default_factory=list)
    count: int = 0
    shown: Tensor | None = None  # the state that the first of the calls was given
    averaged: bool = False  # MeanFlow: the output is the average velocity of a step
    scale: Any = None  # the pipeline's own scale, while it is off for a step that needs one prediction

    def add(self, output: Any, shown: Tensor | None, most: int) -> None:
        """Counts every call and keeps as many as a step can need: others may use a denoiser for hours."""
        if not self.count:
            self.shown = shown
        self.count += 1
        if len(self.outputs) < most:
            self.outputs.append(output)


@dataclass
class _Run:
    """One call of the pipeline: set_timesteps makes it, and its first step begins it."""

    thread: int | None = None  # a scheduler serves one run at a time
    stream: int = 0  # which of the states that one call predicts is being stepped: video first, then audio
    taken: _Heard = field(default_factory=_Heard)  # for the step under way
    steps: int = 0
    guided: int = 0  # steps with two predictions
    skipped: int = 0  # steps with a weak prediction of skipped layers
    described: bool = False
    said: bool = False  # that there is nothing to guide


class _Tap:
    """The hooks of one pipeline, and the rules that it is guided by.

    heard   what the denoisers returned since the last step, by thread: two requests may share a denoiser
    held    schedulers that have our methods; the last one is the pipeline's
    fresh   the run that the next step begins; None while a run is under way
    """

    def __init__(self, pipe: Any, layout: Layout, verify: bool) -> None:
        self.pipe, self.layout, self.verify = pipe, layout, verify
        self.name = type(pipe).__name__
        self.sessions: list[Session] = []
        self.reader = PathReader()
        self.heard: dict[int, _Heard] = {}
        self.held: list[Any] = []
        self.run = _Run()
        self.fresh: _Run | None = None
        self.verified = False
        self._undo = ExitStack()

    def __deepcopy__(self, memo: object) -> None:
        """A copy of a guided pipeline is not guided."""

    def push(self, session: Session) -> Session:
        if self.layout.caps_only:
            session.need_caps(self.name)
        if self.sessions:
            need_cap_inside(session.rule, self.sessions[-1].rule)
        else:
            self._attach()
        session.stream(self.layout.streams - 1)
        self.sessions.append(session)
        return session

    def pop(self, session: Session) -> None:
        self.sessions.remove(session)
        if not self.sessions:
            self._detach()

    def say_if_idle(self, session: Session) -> None:
        run = self.run
        if run.steps and not run.guided and not run.said:
            self._nothing_to_guide(session.rule)
        if run.guided and self.layout.weak and "weak" in session.rule.needs and not run.skipped:
            warnings.warn(
                f"{self.name} skipped no layers, so there was no weak prediction and {session.rule} "
                "added no guidance from it; pass skip_guidance_layers=[...] to the call",
                stacklevel=2,
            )

    def _attach(self) -> None:
        family_of(self.pipe.scheduler)
        named = [getattr(self.pipe, name, None) for name in self.layout.denoisers]
        modules = [module for module in named if module is not None]
        if not modules:
            raise ValueError(f"{self.name} has no {' or '.join(self.layout.denoisers)} to hook into")
        for module in modules:
            self._undo.callback(listen(module, self._hear))
        self._hold(self.pipe.scheduler)
        setattr(self.pipe, _TAP, self)

    def _detach(self) -> None:
        self._undo.callback(delattr, self.pipe, _TAP)
        self.heard.clear()
        self.held.clear()
        self._undo.close()  # every undo runs, even if one of them raises

    def _hold(self, scheduler: Any) -> None:
        family_of(scheduler)
        if not any(scheduler is one for one in self.held):
            self._undo.callback(override(scheduler, "step", self._step))
            self._undo.callback(override(scheduler, "set_timesteps", self._set_timesteps))
        self.held = [*(one for one in self.held if one is not scheduler), scheduler]
        self.fresh = _Run()

    def _hear(self, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        if self.pipe.scheduler is not self.held[-1]:  # exchanged since the block was entered
            self._hold(self.pipe.scheduler)
        if self.layout.clean and kwargs.get(self.layout.clean) is not None:
            raise NotImplementedError(
                f"{self.name} steps a clean input frame together with the others, which would change every "
                "length; call it without that frame"
            )
        heard = self.heard.setdefault(get_ident(), _Heard())
        first = self.fresh or not self.run.described
        heard.add(output, shown_state(args, kwargs) if first else None, self.layout.most)
        heard.averaged |= bool(first) and _ends_elsewhere(**kwargs)
        if heard.count == 1 and self._needs_one_prediction():
            # Some pipelines ask after the conditional prediction whether to make the other one.
            heard.scale, self.pipe._guidance_scale = self.pipe._guidance_scale, 1.0 - self.layout.offset

    def _needs_one_prediction(self) -> bool:
        """Whether every rule returns the conditional output at the step that the pipeline is making."""
        scheduler, pipe = self.pipe.scheduler, self.pipe
        thread = (self.fresh or self.run).thread
        if not self.layout.may_skip or not hasattr(pipe, "_guidance_scale") or thread is None:
            return False
        place = getattr(scheduler, "step_index", len(scheduler.timesteps))
        if place is None:
            place = scheduler.begin_index or 0
        if place >= len(scheduler.timesteps):  # between two runs
            return False
        t = float(self.reader.edge(scheduler, scheduler.timesteps[place]).t)
        return all(one.is_idle(t) for one in self.sessions)

    def _set_timesteps(self, original: Callable[..., Any], scheduler: Any, *args: Any, **kwargs: Any) -> Any:
        # A new run, from its first step on: some pipelines set the timesteps once more after the last one.
        self.fresh = _Run(get_ident())
        self.heard.clear()
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
        if self.sessions and not self._is_elsewhere(scheduler):
            if kwargs.get("per_token_timesteps") is not None:
                raise NotImplementedError(
                    f"{self.name} has a separate time for each token, which no rule supports"
                )
            model_output = self._guide(scheduler, model_output, timestep, sample)
        return original(model_output, timestep, sample, *args, **kwargs)

    def _is_elsewhere(self, scheduler: Any) -> bool:
        """Whether a copy of the pipeline steps: a copied scheduler, and no call of our denoisers before."""
        if self.heard.get(get_ident()) or any(scheduler is one for one in self.held):
            return False
        return not (self.run.stream + 1 < self.layout.streams and self.run.taken.count)

    def _guide(self, scheduler: Any, nominal: Tensor, timestep: Any, sample: Tensor) -> Tensor:
        heard, run = self._take(), self.run
        run.steps += 1
        one = heard.scale is not None and heard.count == 1
        if heard.scale is not None:
            self.pipe._guidance_scale, heard.scale = heard.scale, None
        parts = self._layout().parts(heard.outputs * (1 + one), nominal, self.name, run.stream)
        if parts is None or self._is_conditional(parts, heard, nominal):
            # Of a formula that is not known, one step without guidance says nothing of the next.
            known = getattr(self.pipe, "guider", None) is None and not self.layout.caps_only
            if run.steps == 1 and known:
                self._nothing_to_guide(self.sessions[-1].rule)
            for session in self.sessions:
                session.record.unguided += not run.stream
            return nominal
        c, u = parts["c"], parts.get("u")
        if not run.described and not run.stream and not one:
            run.described = True
            if self.verify:
                self._verify(heard, sample, nominal, parts)
            self._describe(scheduler, c, u)
        run.guided += not run.stream
        edge, first = self.reader.edge(scheduler, timestep), first_stage(scheduler)
        others = None
        if any(session.rule.needs for session in self.sessions):
            others = self.layout.others(parts, heard.outputs, nominal, self.name)
            run.skipped += len(heard.outputs) == self.layout.most
        for session in self.sessions:
            acting = session.stream(run.stream)
            if u is None:
                nominal = acting.limit(edge, sample, c, nominal, first=first)
            else:
                nominal = acting.guide(edge, sample, c, u, nominal, first=first, others=others)
        return nominal

    def _is_conditional(self, parts: dict[str, Tensor], heard: _Heard, nominal: Tensor) -> bool:
        """Whether the one prediction of a step is what the pipeline steps, so that there is no guidance."""
        alone = len(parts) == heard.count == 1
        return alone and torch.equal(parts["c"].to(nominal.dtype), nominal)

    def _take(self) -> _Heard:
        """The outputs for the step that is being made, and none of another run."""
        here, run = get_ident(), self.fresh or self.run
        if run.thread not in (None, here):
            raise RuntimeError(
                f"{self.name} is called from two threads at once, which its scheduler does not support; give "
                "each thread a pipeline with a scheduler of its own (the models may be shared)"
            )
        heard = self.heard.pop(here, _Heard())
        if not heard.count and self.run.stream + 1 < self.layout.streams and self.run.taken.count:
            self.run.stream += 1
            return self.run.taken
        if not heard.count:
            raise RuntimeError(
                f"{self.name} stepped without calling its {' or '.join(self.layout.denoisers)}; replace a "
                "denoiser before the block, and give an unguided pipeline its own scheduler"
            )
        if heard.count > self.layout.most:
            raise RuntimeError(
                f"{heard.count} predictions were made for one step of {self.name}, whose layout has at most "
                f"{self.layout.most}; another pipeline that shares its denoiser ran in between"
            )
        if self.fresh:
            self.run, self.fresh = self.fresh, None
            for session in self.sessions:
                session.begin()
        run.thread, run.stream, run.taken = here, 0, heard
        return heard

    def _layout(self) -> Layout:
        """The layout of this call: without the perturbed part if perturbation is off."""
        if "p" not in self.layout.order or self.pipe.do_perturbed_attention_guidance:
            return self.layout
        return replace(self.layout, order=self.layout.order.replace("p", ""))

    def _verify(self, heard: _Heard, sample: Tensor, nominal: Tensor, parts: dict[str, Tensor]) -> None:
        """At the first guided step: checks the state and the formula of the layout."""
        if same_state(heard.shown, sample) is False:
            raise LayoutError(
                f"{self.name} steps a state that its denoiser did not receive (a clean frame or a mask "
                "replaced it), so it has no posterior mean; this call cannot be guided"
            )
        if heard.averaged:
            raise LayoutError(f"{self.name} has {MEAN_FLOW}; this call cannot be guided")
        if self.verified:
            return
        extra = [v for letter, v in parts.items() if letter not in "cu"]
        extra += self.layout.further(heard.outputs, nominal, self.name)
        u = parts["u"] if "u" in parts else extra.pop(0) if extra else None
        if u is None:
            return
        if self.layout.space == "mean":  # a rescaled mean brings the state into the output
            extra.append(sample)
        free = self.layout.scale == "guider" or self.layout.caps_only
        self.verified = verify_layout(self.name, nominal, parts["c"], u, extra, self.layout.rows, free=free)

    def _describe(self, scheduler: Any, c: Tensor, u: Tensor | None) -> None:
        if u is not None and torch.equal(c, u):
            warnings.warn(SAME_PREDICTIONS.format(self.name), stacklevel=2)
        for session in self.sessions:
            session.record.about = {
                "pipeline": self.name,
                "rule": str(session.rule),
                "scheduler": type(scheduler).__name__,
                "sigmas": self.reader.grid(scheduler),
                "dtype": str(c.dtype).removeprefix("torch."),
                "shape": list(c.shape),
            }

    def _nothing_to_guide(self, rule: Rule) -> None:
        self.run.said = True
        cure = f"pass {self.layout.scale} above 1, and a negative prompt if it takes one"
        if self.layout.scale == "true_cfg_scale":
            cure = "pass both true_cfg_scale above 1 and a negative prompt, without which it does not guide"
        if self.layout.scale == "guider":
            cure = "give it a guider that is enabled"
        reason = (
            f"{self.name} made one prediction per step, because guidance is off in this call or the model is "
            f"guidance-distilled; {cure}"
        )
        for session in self.sessions:
            session.record.idle = reason
        if not rule.caps:
            raise ValueError(f"nothing to guide: {reason}; {rule} needs two predictions")
        warnings.warn(f"nothing to guide: {reason}", stacklevel=2)


def _ends_elsewhere(timestep: Any = None, timestep_r: Any = None, **_: Any) -> bool:
    """Whether a denoiser gets a second, other time: the end of a step that it averages over."""
    if timestep_r is None or timestep is None:
        return timestep_r is not None
    return not torch.equal(torch.as_tensor(timestep), torch.as_tensor(timestep_r))


class _GuidedBlock(AbstractContextManager[RunRecord]):
    """The `with` block of `guided`; it does nothing before it is entered, and warns if it never was."""

    def __init__(self, pipe: Any, layout: Layout | None, verify: bool, *session: Any) -> None:
        self._given, self._session = (pipe, layout, verify), session
        self._entered: list[tuple[_Tap, Session]] = []  # one for each time it was entered and not left
        self._used = False

    def __enter__(self) -> RunRecord:
        self._used = True
        tap = _tap_of(*self._given)
        session = tap.push(Session(*self._session))
        self._entered.append((tap, session))
        return session.record

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        tap, session = self._entered.pop()
        tap.pop(session)
        if kind is None:
            tap.say_if_idle(session)

    def __del__(self) -> None:
        if not self._used:
            warnings.warn(_UNUSED, stacklevel=2)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"guided() has no {name!r} before it is entered: {_UNUSED}")


def guided(
    pipe: Any, rule: Rule | str, *, layout: Layout | None = None, verify: bool = True,
    record: RunRecord | None = None,
) -> _GuidedBlock:  # fmt: skip
    """Guides a pipeline by `rule` inside a `with` block, and gives the record of its latest call.

    A rule that only caps, like Cap(1.1), keeps the pipeline's own combination as the nominal one; any other
    chain, like CFG(7) | Cap(1.1), replaces it. Blocks nest: an inner cap takes the outer block's result for
    the pipeline's own. `layout` names the layout of a pipeline that is not in the table. `record` is used
    in place of a new one.
    """
    return _GuidedBlock(pipe, layout, verify, rule, record)


def _tap_of(pipe: Any, layout: Layout | None, verify: bool) -> _Tap:
    """The tap of a pipeline, created if it has none."""
    tap: _Tap | None = getattr(pipe, _TAP, None)
    if tap is None:
        return _Tap(pipe, layout_of(pipe) if layout is None else layout, verify)
    if layout is not None and layout != tap.layout:
        raise ValueError(f"{tap.name} is already guided with another layout; leave that block first")
    return tap
