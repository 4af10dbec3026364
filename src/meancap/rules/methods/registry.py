"""Every method in one list: its recipe, where it comes from, how sure we are, what to type.

A method is registered where it is written: the decorator `method` puts its facts beside its recipe, and
everything else reads them here: `parse`, `meancap rules`, the catalogue and its page, the benchmark's
families.

    @method(
        "adaptive projected guidance",             what it is
        "Sadat et al. 2024, arXiv 2410.02416",     where it comes from
        "mean",                                    the space it acts in
        "g <- (scale - 1) (g - its part along m_c)",
        "apg({scale})",                            how it is typed
        family="direction",                        where it stands on the page
        use="a large scale oversaturates",         one sentence that goes on from "use it when"
        seen="...", check=(...),
    )
    def apg(scale, ...): ...

Packages of other people register theirs with `register`, or by an entry point in the group `meancap.rules`.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cache
from importlib.metadata import entry_points
from typing import Any, NamedTuple, TypeVar

from ..protocol.base import Rule

GROUP = "meancap.rules"
CONFIDENCE = {
    "code": "seen in official code, or in code its authors printed or upstreamed",
    "paper": "seen in the paper only",
    "second-hand": "from a third party's code, note or summary",
    "derived": "our own algebra",
}
FAMILIES = {
    "caps": "A fixed scale, and caps",
    "time": "A scale that follows the time",
    "predictions": "A scale read off the predictions",
    "direction": "Another direction: projections, rotations, other references",
    "memory": "Steps compared with the steps before",
    "negative": "Something to avoid: a third prediction",
    "frequency": "Frequencies, bands and pixels",
    "rescaling": "The whole prediction rescaled",
    "production": "What models, servers and nodes ship",
    "elsewhere": "Not rules: around the model, the solver, the laboratory",
    "other": "Of other packages",
}
Build = Callable[..., Any]
Recipe = TypeVar("Recipe", bound=Build)


class Default(NamedTuple):
    """The values a model is run with, and who says so."""

    model: str
    values: str
    source: str


@dataclass(frozen=True)
class Entry:
    """One method: what it is, where it comes from, how sure we are, and what to type.

    family    which of `FAMILIES` it belongs to
    use       when to use it: a clause that goes on from "use it when"
    call      the rule as text, with {scale} for the scale if it has one; Python for a method that is no rule
    kind      'rule', or where it belongs instead: 'model' (wraps predict), 'solver' (moves x), 'laboratory'
    check     the guided velocity of the worked example in `meancap.rules.methods.example`, at the usual scale
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
    family: str = "other"
    use: str = ""
    state: str = "none"
    defaults: tuple[Default, ...] = ()
    confidence: str = "code"
    seen: str = ""
    differs: tuple[str, ...] = ()
    kind: str = "rule"
    scale: float = 4.0
    check: tuple[float, ...] = ()
    zero_gap: bool = True
    unit: bool = True
    axes: int = 2
    compiles: bool = True

    def text(self, scale: float | None = None) -> str:
        """The rule as one would type it, at this scale."""
        return self.call.replace("{scale}", f"{self.scale if scale is None else scale:g}")

    @property
    def needs(self) -> tuple[str, ...]:
        """The further predictions that the rule looks at; none for most."""
        return self.rule().needs if self.kind == "rule" else ()

    def rule(self, scale: float | None = None) -> Rule:
        """The rule itself."""
        from ..text.parse import parse

        if self.kind != "rule":
            raise ValueError(f"{self.name} is not a rule: it belongs to the {self.kind}; see its entry")
        return parse(self.text(scale))


_METHODS: dict[str, Entry] = {}
_BUILDS: dict[str, Build] = {}


def method(
    title: str, paper: str, space: str, formula: str, call: str, *, name: str | None = None, **facts: Any
) -> Callable[[Recipe], Recipe]:
    """Puts a recipe into the catalogue, with its facts. Under another `name` it is an alias."""

    def into(build: Recipe) -> Recipe:
        known = name or build.__name__
        _METHODS[known] = Entry(known, title, paper, space, formula, call, **facts)
        _BUILDS[known] = build
        return build

    return into


def not_a_rule(name: str, title: str, paper: str, space: str, formula: str, call: str, **facts: Any) -> None:
    """Puts a method that is not a rule into the catalogue."""
    _METHODS[name] = Entry(name, title, paper, space, formula, call, **facts)


def register(build: Recipe, *, name: str | None = None, entry: Entry | None = None) -> Recipe:
    """Makes a rule of your own known wherever a rule can be typed; use it on a class or a function.

    `parse`, `--rule`, the benchmark, ComfyUI's rule node and the explorer then know it by its name. Without
    an `entry` the catalogue says what its docstring says. A class must be registered under its own name,
    because that is how a rule is written.
    """
    known = name or build.__name__
    if isinstance(build, type) and known != build.__name__:
        raise ValueError(f"{build.__name__} is written by its own name, so it cannot be called {known!r}")
    if known in builtin_names() and _BUILDS.get(known) is not build:
        raise ValueError(f"{known!r} is a rule of meancap already; register yours under another name")
    _BUILDS[known] = build
    _METHODS[known] = replace(entry, name=known) if entry is not None else _described(known, build)
    return build


def _described(name: str, build: Build) -> Entry:
    """What can be said of a rule without facts."""
    first = (inspect.getdoc(build) or "a rule of another package").partition("\n")[0].rstrip(".")
    parameters = list(inspect.signature(build).parameters.values())
    scaled = bool(parameters) and parameters[0].name == "scale"
    needed = [p for p in parameters[scaled:] if p.default is p.empty and p.kind is not p.VAR_KEYWORD]
    kind = "rule" if not needed else "part"  # what needs other values cannot be typed by its name alone
    call = f"{name}({'{scale}' if scaled else ''})"
    source = f"the package of {build.__module__}"
    return Entry(name, first, source, "any", first, call, confidence="derived", seen=source, kind=kind)


def builds() -> dict[str, Build]:
    """Every recipe by its name: ours, and those of installed packages."""
    _load_installed()
    return dict(_BUILDS)


def builtin_names() -> set[str]:
    """The names that `parse` knew before anybody registered one."""
    from ..text.parse import known_parts

    ours = {
        name
        for name, build in _BUILDS.items()
        if build.__module__.partition(".")[0] == __package__.partition(".")[0]
    }
    return {*known_parts(), *ours}


def catalogue() -> list[Entry]:
    """All methods: of the paper and those it compares with, of production models, and of other packages."""
    _load_installed()
    return [entry for entry in _METHODS.values() if entry.kind != "part"]


def entry(name: str) -> Entry:
    """The entry of that name, in any case."""
    wanted = name.strip()[:40]
    for one in catalogue():
        if one.name.lower() == wanted.lower():
            return one
    names = [one.name for one in catalogue()]
    near = get_close_matches(wanted, names) or names
    raise ValueError(f"no method is called {wanted!r}; there are {', '.join(near)}")


@cache
def _load_installed() -> None:
    """Registers what installed packages offer; one that fails is reported in a warning and left out."""
    for point in entry_points(group=GROUP):
        try:
            register(point.load(), name=point.name)
        except (ImportError, AttributeError, TypeError, ValueError) as error:
            warnings.warn(f"the rule {point.name!r} of {point.value} was left out: {error}", stacklevel=2)
