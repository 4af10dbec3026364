"""DiffSynth-Studio: every pipeline guides in one method, `cfg_guided_model_fn`, which is overridden here.

with guided(pipe, Cap(1.1)) as record:
    pipe(prompt, cfg_scale=7)

latents   the state, in the method's shared inputs; two of them if a call predicts video and audio
sigma     from the pipeline's flow scheduler, at the step that the method receives
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from ..path import Affine
from ..rules import Rule
from .session import RunRecord, Session, need_cap_inside, override

_STATES = (("latents",), ("video_latents", "audio_latents"))


class _Guide:
    """Replaces `cfg_guided_model_fn`: observes the two predictions and caps the result."""

    def __init__(self, rule: Rule | str) -> None:
        self.session = Session(rule)
        self.place = -1  # of the latest step among the scheduler's

    def __call__(
        self,
        original: Callable[..., Any],
        pipe: Any,
        model_fn: Callable[..., Any],
        cfg_scale: float,
        inputs_shared: dict[str, Any],
        *inputs: Any,
        **others: Any,
    ) -> Any:
        heard: list[Any] = []

        def hear(**arguments: Any) -> Any:
            heard.append(model_fn(**arguments))
            return heard[-1]

        self._enter(_place(pipe.scheduler, others))
        how = _edge(pipe.scheduler, self.place)
        idle = cfg_scale != 1 and self.session.is_idle(float(how.t))
        # At scale 1 the method makes the conditional prediction alone.
        nominal = original(hear, 1.0 if idle else cfg_scale, inputs_shared, *inputs, **others)
        if idle:
            heard = heard[:1] * 2
        if len(heard) < 2:
            self.session.record.idle = f"cfg_scale was {cfg_scale}, which makes one prediction per step"
            self.session.record.unguided += 1
            return nominal
        c, u, results = (_parts(one) for one in (*heard[:2], nominal))
        states = _states(inputs_shared, len(results), type(pipe).__name__)
        guided = tuple(
            self.session.stream(i).guide(how, *four)
            for i, four in enumerate(zip(states, c, u, results, strict=True))
        )
        return guided if isinstance(nominal, tuple) else guided[0]

    def _enter(self, place: int) -> None:
        """A run begins at the first step, or if the steps have gone back."""
        if place == 0 or place < self.place:
            self.session.begin()
        self.place = place


def _parts(output: Any) -> tuple[Tensor, ...]:
    return output if isinstance(output, tuple) else (output,)


def _states(shared: dict[str, Any], streams: int, name: str) -> list[Tensor]:
    names = _STATES[streams - 1] if streams <= len(_STATES) else ()
    if not names or any(shared.get(one) is None for one in names):
        raise NotImplementedError(
            f"{name} keeps no {' and '.join(names) or 'known states'} for its {streams} predictions, so "
            "its posterior means cannot be computed"
        )
    return [shared[one] for one in names]


def _place(scheduler: Any, others: dict[str, Any]) -> int:
    """The step's place in the schedule; pipelines that do not count their steps pass the timestep."""
    if others.get("progress_id") is not None:
        return int(others["progress_id"])
    time = others["timestep"].flatten()[0].to(scheduler.timesteps)
    return int((scheduler.timesteps - time).abs().argmin())


def _edge(scheduler: Any, place: int) -> Affine:
    """m = x - sigma v: noise is at sigma 1 there, and the velocity is noise - data."""
    if not type(scheduler).__name__.startswith("FlowMatch"):
        raise NotImplementedError(
            f"{type(scheduler).__name__} does not follow the linear path; only flow models can be guided"
        )
    sigma = float(scheduler.sigmas[place])
    after = float(scheduler.sigmas[place + 1]) if place + 1 < len(scheduler.sigmas) else 0.0
    return Affine(1.0, -sigma, t=1 - sigma, t_next=1 - after)


@contextmanager
def guided(pipe: Any, rule: Rule | str) -> Iterator[RunRecord]:
    """Guides a DiffSynth pipeline inside a `with` block, and gives the record of its latest call.

    A rule that only caps keeps the pipeline's own result as the nominal one; any other chain replaces it.
    """
    if not hasattr(pipe, "cfg_guided_model_fn"):
        raise TypeError(
            f"a DiffSynth pipeline is needed, with cfg_guided_model_fn; got {type(pipe).__name__}"
        )
    guide = _Guide(rule)
    for outer in getattr(pipe.__dict__.get("cfg_guided_model_fn"), "methods", ()):
        need_cap_inside(guide.session.rule, outer.session.rule)
    undo = override(pipe, "cfg_guided_model_fn", guide)
    try:
        yield guide.session.record
    finally:
        undo()
