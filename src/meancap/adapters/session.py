"""A rule applied in a host, from call to call: the stepper, the record, and the host's way of stating a mean.

A rule that only caps keeps the host's nominal output and moves it towards the conditional one; other chains
replace it (`meancap.rules.respond`).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ..path import Affine
from ..prediction import Prediction
from ..rules import Rule, Stepper, parse
from ..sampling.checks import need_cap_last
from .record import RunRecord


class Session:
    """One rule, its state between steps, and the record of what it did."""

    def __init__(self, rule: Rule | str, record: RunRecord | None = None) -> None:
        if isinstance(rule, str):
            rule = parse(rule)
        if not isinstance(rule, Rule):
            raise TypeError(
                f"a rule is needed, such as Cap(1.1) or CFG(7) | Cap(1.1); got {type(rule).__name__}"
            )
        need_cap_last(rule)
        self.rule = rule
        self.record = RunRecord() if record is None else record
        self._stepper = Stepper(rule)
        self.begin()

    def begin(self) -> None:
        """Starts a new run: clears the rule's state and the record."""
        self._stepper.begin()
        self.record.restart()

    def guide(
        self,
        how: Affine,
        x: Tensor,
        c: Tensor,
        u: Tensor,
        nominal: Tensor,
        *,
        first: bool = True,
        others: Mapping[str, Tensor] | None = None,
    ) -> Tensor:
        """The guided output, in the dtype of `nominal`. `first` is False in the later stages of one step.

        `others` are further outputs of the host by name, for rules that look at them.
        """
        with torch.no_grad():
            p = Prediction.from_affine(x, c, u, how)
            if others and self.rule.needs:
                p = p.beside(**others)
            return self._stepper.output(p, nominal, first=first, record=self.record)
