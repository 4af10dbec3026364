"""What the catalogue says of one method."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from .base import Rule

CONFIDENCE = {
    "code": "seen in official code, or in code its authors printed or upstreamed",
    "paper": "seen in the paper only",
    "second-hand": "from a third party's code, note or summary",
    "derived": "our own algebra",
}


class Default(NamedTuple):
    """The values a model is run with, and who says so."""

    model: str
    values: str
    source: str


@dataclass(frozen=True)
class Entry:
    """One method: what it is, where it comes from, how sure we are, and what to type.

    call      the rule as text, with {scale} for the scale if it has one; for what is no rule, Python
    kind      'rule', or where it lives instead: 'model' (wraps predict), 'solver' (moves x), 'laboratory'
    zero_gap  whether equal predictions give the unguided mean
    unit      whether scale 1 gives the conditional mean
    axes      the fewest axes a tensor needs, the batch included
    compiles  whether torch.compile takes it into one graph
    """

    name: str
    title: str
    paper: str
    space: str
    formula: str
    call: str
    state: str = "none"
    defaults: tuple[Default, ...] = ()
    confidence: str = "code"
    seen: str = ""
    differs: tuple[str, ...] = ()
    kind: str = "rule"
    scale: float = 4.0
    zero_gap: bool = True
    unit: bool = True
    axes: int = 2
    compiles: bool = True

    def text(self, scale: float | None = None) -> str:
        """The rule as one would type it, at this scale."""
        return self.call.replace("{scale}", f"{self.scale if scale is None else scale:g}")

    def rule(self, scale: float | None = None) -> Rule:
        """The rule itself."""
        from .text import parse

        if self.kind != "rule":
            raise ValueError(f"{self.name} is no rule: it lives on the {self.kind} side; see its entry")
        return parse(self.text(scale))
