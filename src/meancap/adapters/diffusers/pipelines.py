"""One line for a classic pipeline: observes the denoiser, and acts where the scheduler steps.

    with guided(pipe, Cap(1.1)) as record:
        pipe(prompt, guidance_scale=7)

The denoiser's outputs are observed and not changed. When the pipeline passes its own guided prediction to
`scheduler.step`, the rule gets the true state, the true sigma and both predictions, and passes on its result.
After the block the pipeline is as it was.
"""

from __future__ import annotations

import warnings
from contextlib import AbstractContextManager
from typing import Any

from ...rules import Rule
from ..record import RunRecord
from ..session import Session
from .layouts import Layout
from .table import layout_of
from .tap import TAP, Tap

_UNUSED = (
    "guided(pipe, rule) guides nothing by itself; write `with guided(pipe, rule) as record:` round the call, "
    "or guide_pipeline(pipe, rule)"
)


class GuidedBlock(AbstractContextManager[RunRecord]):
    """The `with` block of `guided`; it does nothing before it is entered, and warns if it never was."""

    def __init__(self, pipe: Any, rule: Rule | str, layout: Layout | None, verify: bool) -> None:
        self._given = (pipe, rule, layout, verify)
        self._entered: tuple[Tap, Session] | None = None
        self._used = False

    def __enter__(self) -> RunRecord:
        self._used = True
        pipe, rule, layout, verify = self._given
        tap = tap_of(pipe, layout, verify)
        session = tap.push(Session(rule))
        self._entered = tap, session
        return session.record

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if self._entered is None:
            return
        (tap, session), self._entered = self._entered, None
        tap.pop(session)
        if kind is None:
            tap.say_if_idle(session)

    def __del__(self) -> None:
        if not self._used:
            warnings.warn(_UNUSED, stacklevel=2)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"guided() has no {name!r} before it is entered: {_UNUSED}")


def guided(pipe: Any, rule: Rule | str, *, layout: Layout | None = None, verify: bool = True) -> GuidedBlock:
    """Guides a pipeline by `rule` inside a `with` block, and gives the record of its latest call.

    A rule that only caps, like Cap(1.1), keeps the pipeline's own combination as the nominal one; any other
    chain, like CFG(7) | Cap(1.1), replaces it. Blocks nest: an inner rule takes the outer one's result for
    the pipeline's own. `layout` names the layout of a pipeline that is not in the table.
    """
    return GuidedBlock(pipe, rule, layout, verify)


def guide_pipeline(
    pipe: Any, rule: Rule | str, *, layout: Layout | None = None, verify: bool = True
) -> RunRecord:
    """Guides a pipeline until `unguide(pipe)`, for notebooks; a second call replaces the first rule."""
    session = Session(rule)
    unguide(pipe)
    tap = tap_of(pipe, layout, verify)
    tap.standing = tap.push(session, first=True)
    return session.record


def unguide(pipe: Any) -> None:
    """Takes back `guide_pipeline`; a pipeline that is not guided stays as it is."""
    tap = getattr(pipe, TAP, None)
    if tap is not None and tap.standing is not None:
        standing, tap.standing = tap.standing, None
        tap.pop(standing)


def tap_of(pipe: Any, layout: Layout | None, verify: bool) -> Tap:
    """The tap of a pipeline, made where it has none yet."""
    tap: Tap | None = getattr(pipe, TAP, None)
    if tap is None:
        return Tap(pipe, layout_of(pipe) if layout is None else layout, verify)
    if layout is not None and layout != tap.layout:
        raise ValueError(f"{tap.name} is already guided with another layout; leave that block first")
    return tap
