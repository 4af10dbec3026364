"""One sampling run as a hook saw it, and what can be said of it in words.

calls   evaluations of the model; a step of a higher-order sampler makes several
capped  an evaluation in which the cap shortened the displacement
scale   the effective CFG scale: the one at which plain CFG would move m_c as far along the gap
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...rules import Rule
from ..record import RunRecord

_MARKS = 256  # values of the result by which a run is recognised


class Run:
    """The record of one run, how much of it the hook had to leave alone, and a mark of its result."""

    def __init__(self, rule: Rule) -> None:
        self.rule = rule
        self.record = RunRecord()
        self.calls = 0
        self.idle = 0  # calls at cfg 1 or without a negative
        self.steps: int | None = None
        self._mark: Tensor | None = None

    def made(self, latent: Tensor) -> None:
        """Told by the host what came out."""
        self._mark = _mark(latent)

    def is_of(self, latent: Tensor) -> bool:
        """Whether this run made the latent."""
        mark = _mark(latent)
        return self._mark is not None and mark is not None and torch.equal(mark, self._mark)

    @property
    def unit(self) -> str:
        one = "step" if self.steps in (None, self.calls) else "model call"
        return one if self.calls == 1 else f"{one}s"

    def headline(self) -> str:
        """One line, such as: capped 6/20 steps, effective CFG 2.1 → 7.0."""
        if not len(self.record):
            return f"did nothing in {self.calls} {self.unit}"
        s = self.record.stacked()
        capped = [int(n) for n in s["active"].sum(0)]
        low, high = min(capped), max(capped)
        times = f"{low}" if low == high else f"{low} to {high}"
        many = "" if len(capped) == 1 else f" (mean of {len(capped)} samples)"
        return f"capped {times}/{self.calls} {self.unit}, effective CFG {_from_to(s['scale'].mean(1))}{many}"

    def text(self) -> str:
        """The headline, and what a user should know about it."""
        return "\n".join([f"{self.rule}: {self.headline()}", *self._remarks()])

    def _remarks(self) -> list[str]:
        if not self.calls:
            return ["This model has not been sampled yet: feed the report from the sampler that uses it."]
        if self.idle == self.calls:
            return [
                "The sampler's cfg is 1 or it has no negative, so there is no guidance here to work on.",
                "Distilled models (Flux dev or schnell, Turbo, Lightning) run at cfg 1: nothing to cap.",
            ]
        if not len(self.record):
            return ["No step lay between start and end."]
        s = self.record.stacked()
        low, high = float(s["asked"].min()), float(s["asked"].max())
        asked = f"{high:.1f}" if high - low < 0.05 else f"{low:.1f} to {high:.1f}"
        found = [f"asked for CFG {asked}; largest |m|/|m_c| {float(s['ratio'].max()):.3f}"]
        if self.rule.caps and not bool(s["active"].any()):
            found.append("Nothing exceeded the bound: the result is the workflow's own, bit for bit.")
        elif self.rule.caps and len(self.record) == self.calls and bool(s["active"].all()):
            found.append("Capped throughout: a higher cfg changes nothing; raise gamma for more guidance.")
        if s["scale"].shape[1] > 1:
            found += [
                f"sample {j + 1}: capped {int(s['active'][:, j].sum())}/{self.calls} {self.unit}, "
                f"effective CFG {_from_to(s['scale'][:, j])}"
                for j in range(s["scale"].shape[1])
            ]
        return found

    def about(self) -> dict[str, Any]:
        """What the rows of the record belong to, for its file."""
        return {
            "rule": str(self.rule),
            "headline": self.headline(),
            "model_calls": self.calls,
            "steps": self.steps,
            "calls_without_guidance": self.idle,
        }


def _from_to(scale: Tensor) -> str:
    return f"{float(scale[0]):.1f} → {float(scale[-1]):.1f}"


def _mark(latent: Tensor) -> Tensor | None:
    if latent.is_nested or not latent.numel():  # several tensors in one: audio and video
        return None
    stride = max(1, latent.numel() // _MARKS)
    shape = torch.tensor(latent.shape, dtype=torch.float32)
    return torch.cat([shape, latent.detach().flatten()[::stride].float().cpu()])
