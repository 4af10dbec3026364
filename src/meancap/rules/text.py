"""From text to rules: `parse("CFG(7) | Cap(1.1)")`. A grammar of its own; nothing is ever evaluated.

chain   := term ('|' term)*
term    := NAME [ '(' [ value | NAME '=' value ] (',' ...)* ')' ]
value   := number | 'text' | True | False | None | '[' value (',' value)* ']' | chain
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Any

from .. import schedules
from . import production, recipes, schedulers
from .adaptive import Aligned, Converged, Damp, PowerLaw
from .base import Chain, Rule
from .cap import Cap, CapDisplacement
from .elementwise import Automatic, Mahiro, Skim, Tonemap
from .feedback import Feedback, Sliding
from .frequency import Frequencies, FreSca
from .gain import CFGPP, FromUnconditional, Gain, Normalise
from .phases import Phases, StepInterval, ZeroInit
from .reference import Rectify, Rotation, Tangential, ZeroStar
from .renorm import EnergyMatch, Renorm
from .scale import CFG, Clip, Interval
from .shape import Momentum, Project, Rescale
from .threshold import Mimic, Threshold

# fmt: off
PARTS: dict[str, Callable[..., Any]] = {
    c.__name__: c
    for c in (
        CFG, Gain, FromUnconditional, CFGPP, Interval, StepInterval, Clip, Normalise,
        Project, Rescale, Momentum, Cap, CapDisplacement,
        Damp, PowerLaw, Aligned, Converged,
        ZeroStar, Tangential, Rectify, Rotation,
        Renorm, EnergyMatch, Threshold, Mimic, Frequencies, FreSca,
        Sliding, Feedback, Phases, ZeroInit,
        Skim, Automatic, Mahiro, Tonemap,
    )
}
RECIPES: dict[str, Callable[..., Any]] = {
    f.__name__: f
    for f in (
        recipes.pmc, recipes.pmc_displacement,
        recipes.apg, recipes.apg_diffusers, recipes.apg_comfy, recipes.apg_mix,
        recipes.c2fg, recipes.limited_interval, recipes.tv_cfg, recipes.dg_cfg,
        recipes.cfgpp, recipes.cfgpp_adg, recipes.power_law,
        recipes.smc, recipes.recfg, recipes.cfg_zero_star, recipes.cfg_zero_star_comfy,
        recipes.tcfg, recipes.rescaled, recipes.dynamic_threshold, recipes.mimic, recipes.fdg, recipes.fresca,
        recipes.mambo_g, recipes.fbg, recipes.beta_cfg, recipes.adg, recipes.adamag, recipes.vags,
        recipes.adaptive_guidance,
        production.z_image, production.lumina2, production.qwen_image, production.longcat, production.bagel,
        production.cfg_norm, production.ep_cfg, production.skimmed, production.skimmed_linear,
        production.automatic, production.mahiro, production.tonemap,
    )
}
SCHEDULES: dict[str, Callable[..., Any]] = {
    c.__name__: c
    for c in (
        schedules.Constant, schedules.Given, schedules.Linear, schedules.Cosine, schedules.Exponential,
        schedules.Piecewise,
        schedulers.Ramp, schedulers.Decay, schedulers.Beta, schedulers.DG, schedulers.Steps,
    )
}
# fmt: on
_WORDS = {"True": True, "False": False, "None": None, "inf": float("inf"), "nan": float("nan")}
_TOKEN = re.compile(
    r"\s*(?:(?P<number>[+-]?(?:inf\b|(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,4})?))"
    r"|(?P<name>[A-Za-z_][A-Za-z_0-9]*)|(?P<text>'[^'\\]*'|\"[^\"\\]*\")|(?P<mark>[()\[\],=|]))"
)
_EQUALS = re.compile(r"\s*=")
_DEEPEST, _LONGEST = 20, 1_000_000


class ParseError(ValueError):
    """A rule text that cannot be read, with the place and what would be."""


def parse(text: str, *, extra: Mapping[str, Callable[..., Rule]] | None = None) -> Rule:
    """The rule that a text stands for; `parse(str(rule)) == rule`. `extra` adds rules of your own by name."""
    if not isinstance(text, str):
        raise ParseError(f"a rule is given as text, like 'CFG(7) | Cap(1.1)'; got {type(text).__name__}")
    found = _Reader(text, {**PARTS, **RECIPES, **SCHEDULES, **(extra or {})}).whole()
    if not isinstance(found, Rule):
        raise ParseError(f"{text.strip()[:60]!r} is no rule by itself; use it inside one, like CFG(...)")
    return found


class _Reader:
    """One pass over the tokens; each method reads one production of the grammar."""

    def __init__(self, text: str, known: Mapping[str, Callable[..., Any]]) -> None:
        if len(text) > _LONGEST:
            raise ParseError(f"a rule text of {len(text)} characters is too long; {_LONGEST} at most")
        self.text, self.known, self.at, self.depth = text, known, 0, 0
        self.kind, self.token = "", ""
        self.advance()

    def whole(self) -> Any:
        found = self.chain()
        if self.kind:
            raise self.error("the text should end here, or go on with '|'")
        return found

    def chain(self) -> Any:
        terms = [self.term()]
        while self.take("|"):
            terms.append(self.term())
            if not all(isinstance(term, Rule) for term in terms[-2:]):
                raise self.error("'|' joins rules")
        return terms[0] if len(terms) == 1 else Chain(tuple(part for term in terms for part in term.parts))

    def term(self) -> Any:
        name = self.token
        if self.kind != "name":
            raise self.error(f"a rule name is needed; known are {self.names()}")
        if name not in self.known:
            raise self.error(f"unknown name {name[:40]!r}; {self.nearest(name)}")
        self.advance()
        positional, named = self.arguments() if self.take("(") else ([], {})
        try:
            return self.known[name](*positional, **named)
        except (TypeError, ValueError) as error:
            raise ParseError(f"{name}: {_plain(error)}") from None

    def arguments(self) -> tuple[list[Any], dict[str, Any]]:
        positional: list[Any] = []
        named: dict[str, Any] = {}
        while not self.take(")"):
            if positional or named:
                self.need(",")
            key = self.keyword()
            value = self.value()
            if key is None and named:
                raise self.error("a value by position cannot follow one by name")
            if key is None:
                positional.append(value)
            elif key in named:
                raise self.error(f"{key[:40]} is given twice")
            else:
                named[key] = value
        return positional, named

    def keyword(self) -> str | None:
        if self.kind != "name" or not _EQUALS.match(self.text, self.at):
            return None
        key = self.token
        self.advance()
        self.need("=")
        return key

    def value(self) -> Any:
        self.depth += 1
        if self.depth > _DEEPEST:
            raise self.error(f"nested more than {_DEEPEST} deep")
        found = self.atom()
        self.depth -= 1
        return found

    def atom(self) -> Any:
        kind, token = self.kind, self.token
        if kind == "number":
            self.advance()
            return float(token)
        if kind == "text":
            self.advance()
            return token[1:-1]
        if kind == "name" and token in _WORDS:
            self.advance()
            return _WORDS[token]
        if self.take("["):
            return self.items()
        return self.chain()

    def items(self) -> list[Any]:
        found: list[Any] = []
        while not self.take("]"):
            if found:
                self.need(",")
            found.append(self.value())
        return found

    def take(self, mark: str) -> bool:
        if self.kind == "mark" and self.token == mark:
            self.advance()
            return True
        return False

    def need(self, mark: str) -> None:
        if not self.take(mark):
            raise self.error(f"{mark!r} is needed")

    def advance(self) -> None:
        match = _TOKEN.match(self.text, self.at)
        if match is None:
            rest = self.text[self.at :].strip()
            if not rest:
                self.kind, self.token = "", ""
                return
            self.kind = "mark"
            raise self.error(f"{rest[:1]!r} does not belong in a rule")
        self.kind, self.token, self.at = match.lastgroup or "", match.group(match.lastgroup or 0), match.end()

    def names(self) -> str:
        return ", ".join(sorted(self.known, key=str.lower))

    def nearest(self, name: str) -> str:
        close = get_close_matches(name[:40].lower(), [known.lower() for known in self.known], n=3)
        found = [known for known in self.known if known.lower() in close]
        return f"nearest are {', '.join(found)}" if found else f"known are {self.names()}"

    def error(self, what: str) -> ParseError:
        place = self.at - len(self.token) if self.kind else len(self.text)
        return ParseError(f"cannot read {self.text[:80]!r} at character {place + 1}: {what}")


def _plain(error: Exception) -> str:
    """Python's complaint about arguments, without the name of the method it came from."""
    return re.sub(r"^\S*\(\) |^\S*__init__\(\) ", "", str(error))
