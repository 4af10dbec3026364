"""One sampling run as a hook saw it, and its summary in words.

calls   evaluations of the model; a step of a higher-order sampler makes several
capped  an evaluation in which the cap shortened the displacement
scale   the effective CFG scale: the one at which plain CFG would move m_c as far along the gap
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...record import Measure, span
from ...rules import Rule
from ..record import RunRecord

_MARKS = 256  # values of the result by which a run is recognised


class HookRun:
    """The record of one run, how many calls the hook left unchanged, and a mark of its result."""

    def __init__(self, rule: Rule) -> None:
        self.rule = rule
        self.record = RunRecord()
        self.calls = 0
        self.idle = 0  # calls at cfg 1 or without a negative
        self.at: list[int] = []  # which call each evaluation of the record was, from 1
        self.outside: list[int] = []  # places in the record of the calls before start and after end
        self.later: list[str] = []  # functions of other nodes that change the result after this one
        self.steps: int | None = None
        self._mark: Tensor | None = None

    def made(self, latent: Tensor) -> None:
        """Notes the latent that the host produced."""
        self._mark = _mark(latent)

    def acted(self) -> None:
        """Notes that this call is guided and will be the next entry of the record."""
        self.at.append(self.calls)

    def left_alone(self, measure: Measure) -> None:
        """Notes what the workflow made in a call before start or after end."""
        self.outside.append(len(self.record))
        self.at.append(self.calls)
        self.record.note(measure)

    def is_of(self, latent: Tensor) -> bool:
        """Whether this run made the latent."""
        mark = _mark(latent)
        return self._mark is not None and mark is not None and torch.equal(mark, self._mark)

    @property
    def unit(self) -> str:
        one = "step" if self.steps in (None, self.calls) else "model call"
        return one if self.calls == 1 else f"{one}s"

    def headline(self) -> str:
        """One line, such as: capped 6/20 steps, effective CFG 2.1 to 7.0."""
        if len(self.outside) == len(self.record):
            return f"did nothing in {self.calls} {self.unit}"
        s = self.record.stacked()
        capped = [int(n) for n in s["active"].sum(0)]
        low, high = min(capped), max(capped)
        times = f"{low}" if low == high else f"{low} to {high}"
        many = "" if len(capped) == 1 else f" ({len(capped)} samples)"
        return f"capped {times}/{self.calls} {self.unit}, effective CFG {span(s['scale'])}{many}"

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
        s = self.record.stacked()
        inside = torch.ones(len(self.record), dtype=torch.bool)
        inside[self.outside] = False
        lines = self._limits(s, inside) + self._others()
        if not bool(inside.any()):
            return ["No step lay between start and end.", *lines]
        ratio = float(s["ratio"][inside].max())
        lines.insert(0, f"asked for CFG {span(s['asked'][inside])}; largest |m|/|m_c| {ratio:.3f}")
        if self.rule.caps and not bool(s["active"].any()):
            lines.append("Nothing exceeded the bound: the result is the workflow's own, bit for bit.")
        elif self.rule.caps and len(self.record) == self.calls and bool(s["active"].all()):
            lines.append("Capped throughout: a higher cfg changes nothing; raise gamma for more guidance.")
        if s["scale"].shape[1] > 1:
            lines += [
                f"sample {j + 1}: capped {int(s['active'][:, j].sum())}/{self.calls} {self.unit}, "
                f"effective CFG {span(s['scale'][:, j])}"
                for j in range(s["scale"].shape[1])
            ]
        return lines

    def _limits(self, s: dict[str, Tensor], inside: Tensor) -> list[str]:
        """What the sampler used before start and after end."""
        if not self.outside:
            return []
        acted = [call for call, one in zip(self.at, inside.tolist(), strict=True) if one]
        where = f"It acted on {self.unit} {acted[0]} to {acted[-1]}; outside" if acted else "There"
        ratio = float(s["ratio"][~inside].max())
        return [
            f"{where}, the workflow's own result was used: CFG {span(s['scale'][~inside])}, "
            f"largest |m|/|m_c| {ratio:.3f}."
        ]

    def _others(self) -> list[str]:
        if not self.later:
            return []
        return [
            f"Acting after this node: {', '.join(self.later)}. The sampler used what they made of it, and "
            "the numbers here are not theirs; put this node last."
        ]

    def about(self) -> dict[str, Any]:
        """What the rows of the record belong to, for its file."""
        return {
            "rule": str(self.rule),
            "headline": self.headline(),
            "model_calls": self.calls,
            "steps": self.steps,
            "calls_without_guidance": self.idle,
            "calls": self.at,
            "outside_start_and_end": [self.at[i] for i in self.outside],
            "acting_after": self.later,
        }


def _mark(latent: Tensor) -> Tensor | None:
    if latent.is_nested or not latent.numel():  # several tensors in one: audio and video
        return None
    stride = max(1, latent.numel() // _MARKS)
    shape = torch.tensor(latent.shape, dtype=torch.float32)
    return torch.cat([shape, latent.detach().flatten()[::stride].float().cpu()])
