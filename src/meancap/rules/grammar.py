"""From text to rules: `parse("CFG(7) | Cap(1.1)")`. A grammar of its own; nothing is ever evaluated.

chain   := term ('|' term)*
term    := NAME [ '(' [ value | NAME '=' value ] (',' ...)* ')' ]
value   := number | 'text' | True | False | None | '[' value (',' value)* ']' | chain
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from difflib import get_close_matches
from typing import Any

from .. import schedules
from .calibration import auto
from .methods import builds
from .rule import Chain, Rule

_WORDS = {"True": True, "False": False, "None": None, "nan": float("nan")}
_TOKEN = re.compile(
    r"\s*(?:(?P<number>[+-]?(?:inf\b|(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,4})?))"
    r"|(?P<name>[A-Za-z_][A-Za-z_0-9]*)|(?P<text>'[^'\\]*'|\"[^\"\\]*\")|(?P<mark>[()\[\],=|]))"
)
_EQUALS = re.compile(r"\s*=")
_DEEPEST, _LONGEST = 20, 1_000_000
_LISTED = "known are CFG, Cap, CapDisplacement, apg and the others that `meancap rules` lists"


class ParseError(ValueError):
    """A rule text that cannot be read, with the place and what would be."""


def part_classes() -> dict[str, Callable[..., Any]]:
    """Every part and schedule by its name: the dataclasses of `meancap.rules` and `meancap.schedules`."""
    homes = (f"{__package__}.", schedules.__name__)
    kinds: list[type] = [Rule, schedules.Schedule]
    for kind in kinds:  # the list grows by the subclasses of each
        subclasses: list[type] = type.__subclasses__(kind)
        kinds += [sub for sub in subclasses if sub not in kinds]
    return {
        kind.__name__: kind
        for kind in kinds
        if (is_dataclass(kind) or kind is schedules.Values)
        and not issubclass(kind, Chain)
        and kind.__module__.startswith(homes)
    }


def all_names() -> dict[str, Callable[..., Any]]:
    """Everything that can be typed: parts, schedules, methods, `auto`, and rules of other packages."""
    return {**part_classes(), **builds(), "auto": auto}


def parse(text: str, *, extra: Mapping[str, Callable[..., Rule]] | None = None) -> Rule:
    """The rule that a text stands for; `parse(str(rule)) == rule`. `extra` adds rules of your own by name."""
    if not isinstance(text, str):
        raise ParseError(f"a rule is given as text, like 'CFG(7) | Cap(1.1)'; got {type(text).__name__}")
    reader = _Reader(text, {**all_names(), **(extra or {})})
    value = reader.chain()
    if reader.kind:
        raise reader.error("the text should end here, or go on with '|'")
    if not isinstance(value, Rule):
        raise ParseError(f"{text.strip()[:60]!r} is no rule by itself; use it inside one, like CFG(...)")
    return value


class _Reader:
    """One pass over the tokens; each method reads one production of the grammar."""

    def __init__(self, text: str, known: Mapping[str, Callable[..., Any]]) -> None:
        if len(text) > _LONGEST:
            raise ParseError(f"a rule text of {len(text)} characters is too long; {_LONGEST} at most")
        self.text, self.known, self.at, self.depth = text, known, 0, 0
        self.kind, self.token = "", ""
        self.advance()

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
            raise self.error(f"a rule name is needed; {_LISTED}")
        if name not in self.known:
            raise self.error(f"unknown name {name[:40]!r}; {self.nearest(name)}")
        self.advance()
        positional, named = self.arguments() if self.take("(") else ([], {})
        try:
            return self.known[name](*positional, **named)
        except (TypeError, ValueError) as error:
            raise ParseError(f"{name}: {_plain(error)}{_comma_hint(error, positional)}") from None

    def arguments(self) -> tuple[list[Any], dict[str, Any]]:
        positional: list[Any] = []
        named: dict[str, Any] = {}
        while not self.take(")"):
            if positional or named:
                self.need(",", ")")
            key = None
            if self.kind == "name" and _EQUALS.match(self.text, self.at):
                key = self.token
                self.advance()
                self.need("=")
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

    def value(self) -> Any:
        kind, token = self.kind, self.token
        if kind in ("number", "text") or token in _WORDS:
            self.advance()
            return float(token) if kind == "number" else _WORDS.get(token, token[1:-1])
        self.depth += 1
        if self.depth > _DEEPEST:
            raise self.error(f"nested more than {_DEEPEST} deep")
        value = self.items() if self.take("[") else self.chain()
        self.depth -= 1
        return value

    def items(self) -> list[Any]:
        values: list[Any] = []
        while not self.take("]"):
            if values:
                self.need(",", "]")
            values.append(self.value())
        return values

    def take(self, mark: str) -> bool:
        if self.kind == "mark" and self.token == mark:
            self.advance()
            return True
        return False

    def need(self, mark: str, end: str = "") -> None:
        """Takes a mark; `end` is the one that could have closed the list instead."""
        if not self.take(mark):
            wanted = f"{mark!r} or {end!r}" if end and self.kind else repr(end or mark)
            raise self.error(f"{wanted} is needed")

    def advance(self) -> None:
        match = _TOKEN.match(self.text, self.at)
        if match is None:
            rest = self.text[self.at :].strip()
            if not rest:
                self.kind, self.token = "", ""
                return
            self.kind = "mark"
            raise self.error(f"unexpected {rest[:1]!r} in a rule")
        self.kind, self.token, self.at = match.lastgroup or "", match.group(match.lastgroup or 0), match.end()

    def nearest(self, name: str) -> str:
        close = get_close_matches(name[:40].lower(), [known.lower() for known in self.known], n=3)
        names = [known for known in self.known if known.lower() in close]
        return f"nearest are {', '.join(names)}" if names else _LISTED

    def error(self, what: str) -> ParseError:
        place = self.at - len(self.token) if self.kind else len(self.text)
        return ParseError(f"cannot read {self.text[:80]!r} at character {place + 1}: {what}")


def _comma_hint(error: Exception, positional: list[Any]) -> str:
    """What to write if the last two of too many numbers were one with a decimal comma."""
    numbers = [v for v in positional[-2:] if isinstance(v, float)]
    if "positional argument" not in str(error) or len(numbers) < 2 or "missing" in str(error):
        return ""
    return f"; if a decimal comma was meant, write {numbers[0]:g}.{numbers[1]:g}; options have names"


def _plain(error: Exception) -> str:
    """Python's complaint about arguments, without the name of the method it came from."""
    return re.sub(r"^\S*\(\) |^\S*__init__\(\) ", "", str(error))
