"""LTX-2's own package: a cap over all that its guider adds. Copy this file; it needs ltx-core and meancap.

    from ltx_core.components.guiders import MultiModalGuider

    with capped(MultiModalGuider, Cap(1.1)) as records:
        pipeline(prompt=..., video_guider_params=..., audio_guider_params=...)   # any of ltx_pipelines
    for shape, record in records.items():
        print(shape, record.summary())

`calculate` gets posterior means (x0) of four passes: with all conditions, without the text, with skipped
layers, and without the other modality. Its result is a sum of three differences, rescaled; the cap moves it
towards the first pass. It gets neither the state nor the time, so that a bound cannot depend on time.

The pipelines build their guiders themselves, so that the method of the class is replaced, and restored after
the block. There is a record for each shape of latents: video, sound, and those of a second stage. Frames that
are given (image to video) count into the lengths, because the guider does not know them.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from meancap.adapters.session import RunRecord, Session
from meancap.path import Affine
from meancap.rules import Rule
from meancap.schedules import Schedule, Values

MEAN = Affine(a=0.0, k=1.0, t=0.0)  # the output is the mean itself; the time is not known


@contextmanager
def capped(guider: type, rule: Rule | str) -> Iterator[dict[tuple[int, ...], RunRecord]]:
    """Caps every result of `guider.calculate` inside the block; yields the records by shape."""
    first, sessions, records, original = Session(rule), {}, {}, guider.calculate
    first.need_caps(guider.__name__)
    numbers = [value for part in first.rule.parts for value in vars(part).values()]
    if any(isinstance(value, Schedule) and not isinstance(value, Values) for value in numbers):
        raise ValueError(f"{guider.__name__} has no time, on which {first.rule} depends; use numbers")

    def calculate(self: Any, cond: Tensor, *passes: Any, **named: Any) -> Tensor:
        nominal = original(self, cond, *passes, **named)
        if cond.dim() == 0:  # this modality is not made
            return nominal
        session = sessions.setdefault(cond.shape, Session(first.rule))
        records[tuple(cond.shape)] = session.record
        if torch.equal(nominal, cond):
            session.record.unguided += 1
            session.record.idle = "every scale of the guider is neutral"
            return nominal
        return session.limit(MEAN, cond, cond, nominal)

    guider.calculate = calculate
    try:
        yield records
    finally:
        guider.calculate = original
