"""TRELLIS.2: a rule in its samplers. Copy this file; it needs TRELLIS.2 and meancap.

    with guided(pipeline.shape_slat_sampler, Cap(1.1)) as record:
        mesh = pipeline.run(image)[0]
    print(record.summary())

    x_t     the state (1 - t) data + s noise, s = sigma_min + (1 - sigma_min) t
    v       the prediction; the mean is  (1 - sigma_min) x_t - s v

Guide each of the three samplers by a block of its own. The first makes a dense tensor. The others have a list
of voxels for each sample: the rule acts on each sample alone, and `record.beside` has the records of the
samples after the first. A cap keeps the sampler's formula, its rescaling and its interval.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from meancap.adapters.session import RunRecord, Session, override
from meancap.path import Affine
from meancap.rules import Rule


class Guide:
    """Replaces a sampler's `_inference_model`: observes both predictions and guides their result."""

    def __init__(self, rule: Rule | str) -> None:
        self.session, self.last = Session(rule), -1.0

    def __call__(
        self, original: Any, sampler: Any, model: Any, x_t: Any, t: float, cond: Any = None, **more: Any
    ) -> Any:
        heard: dict[bool, Any] = {}

        def hear(x: Any, time: Any, condition: Any, **others: Any) -> Any:
            heard[condition is cond] = out = model(x, time, condition, **others)
            return out

        if t > self.last:  # times fall within a run
            self.session.begin()
        self.last = t
        nominal = original(hear, x_t, t, cond, **more)
        if len(heard) < 2:
            self.session.record.unguided += 1
            self.session.record.idle = "guidance_strength is 0 or 1, or guidance_interval excludes every step"
            return nominal
        low = sampler.sigma_min
        s = low + (1 - low) * t
        how = Affine(1 - low, -s, t=(1 - t) / (1 - t + s), unit=1 / (1 - t + s))
        four = (x_t, heard[True], heard[False], nominal)
        if isinstance(nominal, torch.Tensor):
            return self.session.guide(how, *four)
        feats = []
        for i, rows in enumerate(x_t.layout):  # channels first, as in the dense tensor
            sample = (v.feats[rows].T[None] for v in four)
            feats.append(self.session.stream(i).guide(how, *sample)[0].T)
        return nominal.replace(torch.cat(feats))


@contextmanager
def guided(sampler: Any, rule: Rule | str) -> Iterator[RunRecord]:
    """Guides one sampler inside the block, and yields the record of its latest run."""
    if not hasattr(sampler, "_inference_model") or not hasattr(sampler, "sigma_min"):
        raise TypeError(f"a flow sampler of TRELLIS.2 is needed; got {type(sampler).__name__}")
    guide = Guide(rule)
    undo = override(sampler, "_inference_model", guide)
    try:
        yield guide.session.record
    finally:
        undo()
