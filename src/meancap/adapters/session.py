"""A rule applied in a host, from call to call, and the record of a run.

A rule that only caps keeps the host's nominal output and moves it towards the conditional one; other chains
replace it (`meancap.rules.respond`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ..path import Affine
from ..prediction import Prediction
from ..record import Record
from ..rules import Rule, Stepper, parse
from ..sampling.checks import need_scale_first
from ..tensors import promoted


class RunRecord(Record):
    """What guidance did in the latest call of a pipeline: per sample and evaluation, and in one line."""

    def __init__(self) -> None:
        self.beside: list[RunRecord] = []  # of the other states of the run, where it has any: its audio
        self.restart()

    def restart(self) -> None:
        """Clears the previous run; every call of a pipeline is a separate run."""
        super().__init__()
        self.about: dict[str, Any] = {}  # pipeline, rule, scheduler, grid: what the numbers belong to
        self.idle = "no step was made yet"  # why the record is empty, where it is
        self.unguided = 0  # steps for which the host made one prediction only
        self.remark = ""  # what else a reader of the numbers must know
        self.shares = False  # whether `scale` is 1 plus the share that is kept of the host's own guidance

    def summary(self) -> str:
        """One line: the requested and the applied scale, and the steps that were not guided."""
        if not len(self):
            return f"nothing was guided: {self.idle}"
        unguided = f"; {self.unguided} more steps were not guided" if self.unguided else ""
        return super().summary() + unguided + (f"; {self.remark}" if self.remark else "")

    def _scale_text(self, s: Mapping[str, Tensor]) -> str:
        if not self.shares:
            return super()._scale_text(s)
        kept = (s["scale"] - 1).nan_to_num()
        low, high = (f"{float(v):.0%}" for v in (kept.min(), kept.max()))
        return f"kept {high if low == high else f'{low} to {high}'} of the host's own guidance"

    def rows(self) -> list[dict[str, float | int | bool]]:
        """One flat row per evaluation and sample; none if nothing was guided."""
        return super().rows() if len(self) else []

    def contents(self) -> dict[str, Any]:
        """What a JSON file of the record holds."""
        beside = {"beside": [one.contents() for one in self.beside]} if self.beside else {}
        return {"about": self.about, **super().contents(), **beside}

    def _figure(self) -> Any:
        """The meter over time, under the rule and the summary."""
        if len(self):
            figure = super()._figure()
        else:
            from matplotlib.figure import Figure

            figure = Figure()
        figure.suptitle(f"{self.about.get('rule', '')}\n{self.summary()}", fontsize=9)
        return figure


def need_cap_inside(rule: Rule, outer: Rule) -> None:
    """Raises an error if the rule of an inner block would replace what the outer block made."""
    if not rule.caps:
        raise ValueError(
            f"{rule} inside a block of {outer} would replace its result, so the outer record would be wrong "
            f"and nothing it caps would be bounded; use one block, such as guided(pipe, 'CFG(7) | Cap(1.1)')"
        )


class Session:
    """One rule, its state between steps, and the record of what it did."""

    def __init__(self, rule: Rule | str) -> None:
        if isinstance(rule, str):
            rule = parse(rule)
        if not isinstance(rule, Rule):
            raise TypeError(
                f"a rule is needed, such as Cap(1.1) or CFG(7) | Cap(1.1); got {type(rule).__name__}"
            )
        need_scale_first(rule)
        self.rule = rule
        self.record = RunRecord()
        self._stepper = Stepper(rule)
        self._beside: list[Session] = []
        self.begin()

    def begin(self) -> None:
        """Starts a new run: clears the rule's state and the record."""
        self._stepper.begin()
        self.record.restart()
        for other in self._beside:
            other.begin()

    def stream(self, index: int) -> Session:
        """The session of one of the states of a run, such as its audio; the first state is this session's."""
        while len(self._beside) < index:
            self._beside.append(Session(self.rule))
            self.record.beside.append(self._beside[-1].record)
        return self._beside[index - 1] if index else self

    def is_idle(self, t: float, *, first: bool = True) -> bool:
        """Whether the rule returns the conditional output at time t, so that a host may skip the other one.

        A host that skips it passes the conditional output in its place, so that the rule's state advances.
        """
        return not self.rule.caps and self._stepper.idle(t, first=first)

    def guide(
        self, how: Affine, x: Tensor, c: Tensor, u: Tensor, nominal: Tensor, *, first: bool = True,
        others: Mapping[str, Tensor] | None = None,
    ) -> Tensor:  # fmt: skip
        """The guided output, in the dtype of `nominal`. `first` is False in the later stages of one step.

        `others` are further outputs of the host by name, for rules that need them.
        """
        with torch.no_grad():
            p = Prediction.from_affine(x, c, u, how)
            if others and self.rule.needs:
                p = p.beside(**others)
            return self._stepper.output(p, nominal, first=first, record=self.record)

    def limit(self, how: Affine, x: Tensor, c: Tensor, nominal: Tensor, *, first: bool = True) -> Tensor:
        """Caps what a host made of its predictions by any formula: the conditional one is enough.

        The record measures the host's own guidance: its gap is |m - m_c| for the host's mean m, and its scale
        is 2 if all of it is kept and 1 if none is.
        """
        self.record.shares = True
        return self.guide(how, x, c, 2 * promoted(c) - promoted(nominal), nominal, first=first)

    def need_caps(self, name: str) -> None:
        """Raises unless the rule only caps and reads no unconditional mean."""
        if not self.rule.caps or any(part.reads_m_u for part in self.rule.parts):
            raise ValueError(
                f"{name} guides by a formula of its own, on whose result only a cap can act, such as "
                f"Cap(1.1) or CapDisplacement(1.15); got {self.rule}"
            )
