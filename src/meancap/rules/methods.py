"""Every method in one list: `catalogue()`, `meancap rules`, the page docs/rules.md and the benchmark read it.

The docstring of a recipe is its fact sheet, so `help(meancap.rules.apg)` prints it. After a title and a
description it has fixed fields, each on a line of its own; longer texts go on in indented lines:

    formula: g <- (scale - 1) (g - its part along m_c)
    space: mean                                   what it acts on: any, mean, velocity, noise, score or state
    source: Sadat et al. 2024, arXiv 2410.02416
    evidence: paper; equation 7                   a key of CONFIDENCE, code if left out; what we compared with
    use when: a large scale oversaturates
    state: the running sum of gaps                what it remembers between steps; left out for none
    defaults:                                     published values, optional
        - SDXL: scale 15, radius 15 (paper)
    notes:                                        where ports and readings differ, optional
        - its authors act on denoised means

The decorator `method` registers the recipe, with the facts that tests compute with. The module that defines a
recipe is its family. Other packages use `register`, or an entry point in the group `meancap.rules`.
"""

from __future__ import annotations

import inspect
import re
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from importlib.metadata import entry_points
from textwrap import wrap
from typing import Any, NamedTuple, TypeVar

from .rule import Rule

CONFIDENCE = {
    "code": "seen in official code, or in code its authors printed or upstreamed",
    "paper": "seen in the paper only",
    "second-hand": "from a third party's code, note or summary",
    "derived": "our own algebra",
}
FAMILIES = {
    "scale": "A fixed scale",
    "caps": "Caps",
    "time": "A scale that follows the time",
    "adaptive": "A scale read off the predictions",
    "density_ratio": "A scale read off the density ratio",
    "direction": "Another direction: projections, rotations, other references",
    "memory": "Steps compared with the steps before",
    "negative": "Further predictions: other conditions, something to avoid, a weaker model",
    "frequency": "Coarse and fine parts of images",
    "elementwise": "Elements, pixels and channels",
    "rescaling": "The whole prediction rescaled",
    "elsewhere": "Not rules: around the model, the solver, the laboratory",
    "other": "Of other packages",
}
_SPACES = {
    "any": "any parametrisation alike",
    "mean": "posterior means",
    "velocity": "velocities",
    "noise": "noise estimates",
    "score": "scores",
    "state": "the state x itself",
}
_PLACES = {
    "model": "model side: wraps predict (`meancap.sampling`)",
    "solver": "solver side: moves x, or asks the loop for more (`meancap.sampling`)",
    "laboratory": "laboratory: trained on a mixture",
}
_ENTRY_POINTS = "meancap.rules"
_REQUIRED = ("formula", "space", "source", "evidence", "use when")
_FIELD = re.compile(rf"^({'|'.join((*_REQUIRED, 'state', 'defaults', 'notes'))}):(?= |$)", re.MULTILINE)
_DEFAULT = re.compile(r"(.+?): (.+) \((.+?)\)$")

Build = Callable[..., Any]
Recipe = TypeVar("Recipe", bound=Build)
_Scaled = Callable[[Any], Rule]  # CFG, or another rule of a scale alone


class Default(NamedTuple):
    """The values a model is run with, and the source of them."""

    model: str
    values: str
    source: str


@dataclass(frozen=True)
class Entry:
    """One method: what it is, where it comes from, how sure we are, and what to type.

    use       when to use it: a clause that goes on from "use it when"
    call      the rule as text, with {scale} for the scale if it has one; Python for a method that is no rule
    kind      'rule', or where it belongs instead: 'model' (wraps predict), 'solver' (moves x), 'laboratory'
    check     the guided velocity of the worked example in tests/rules/rule_cases.py, at the usual scale
    zero_gap  whether equal predictions give the unguided mean
    unit      whether scale 1 gives the conditional mean
    axes      the fewest axes a tensor needs, the batch included
    form_of   the recipe of which this is a form, a port with another base point, space or defaults
    """

    name: str
    title: str
    formula: str
    space: str
    source: str
    evidence: str
    use: str
    state: str
    call: str
    defaults: tuple[Default, ...] = ()
    notes: tuple[str, ...] = ()
    family: str = "other"
    confidence: str = "code"
    kind: str = "rule"
    scale: float = 4.0
    check: tuple[float, ...] = ()
    zero_gap: bool = True
    unit: bool = True
    axes: int = 2
    form_of: str = ""

    def text(self, scale: float | None = None) -> str:
        """The rule as one would type it, at this scale."""
        return self.call.replace("{scale}", f"{self.scale if scale is None else scale:g}")

    @property
    def needs(self) -> tuple[str, ...]:
        """The further predictions that the rule needs; none for most."""
        return self.rule().needs if self.kind == "rule" else ()

    def rule(self, scale: float | None = None) -> Rule:
        """The rule itself."""
        from .grammar import parse

        if self.kind != "rule":
            raise ValueError(f"{self.name} is not a rule: it belongs to the {self.kind}; see its entry")
        return parse(self.text(scale))


class _Method(NamedTuple):
    """What was registered under a name: a recipe, or the sheet of a method that is no rule."""

    build: Build | None
    sheet: str | None
    facts: dict[str, Any]


_METHODS: dict[str, _Method] = {}


def _declare(name: str, one: _Method) -> None:
    """Adds a method; raises an error if its fact sheet lacks a field or has one of a wrong form."""
    if sys.flags.optimize < 2:  # python -OO removes docstrings
        _entry(name, one)
    _METHODS[name] = one


def method(*, name: str | None = None, **facts: Any) -> Callable[[Recipe], Recipe]:
    """Puts a recipe into the catalogue; `facts` are fields of `Entry` that its docstring does not have.

    A part that is a method by itself is its own recipe, under a `name` in lower case.
    """

    def register_recipe(build: Recipe) -> Recipe:
        _declare(name or build.__name__, _Method(build, build.__doc__, facts))
        return build

    return register_recipe


def recipe(
    name: str, kind: type[Rule], *, first: _Scaled | None = None, then: _Scaled | None = None, **facts: Any
) -> Callable[..., Rule]:
    """The method that is one part with a scale: `first(scale) | kind(...)` or `kind(...) | then(scale)`.

    Its options are the fields of the part, those with a default by name; its fact sheet is the part's.
    """
    fields = inspect.signature(kind).parameters.values()
    options = [p if p.default is p.empty else p.replace(kind=p.KEYWORD_ONLY) for p in fields]
    scale = inspect.Parameter("scale", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation="Scale")
    signature = inspect.Signature([scale, *options], return_annotation="Rule")

    def build(*args: Any, **given: Any) -> Rule:
        values = signature.bind(*args, **given).arguments
        scale = values.pop("scale")
        rule = kind(**values)
        rule = first(scale) | rule if first else rule
        return rule | then(scale) if then else rule

    build.__dict__["__signature__"] = signature
    return method(**facts)(_named(build, name, kind.__module__, kind.__doc__))


def _named(build: Recipe, name: str, module: str, doc: str | None) -> Recipe:
    build.__name__ = build.__qualname__ = name
    build.__module__, build.__doc__ = module, doc
    return build


def form(of: Build, name: str, call: str, **facts: Any) -> None:
    """Lists another form of a recipe in the catalogue: a port with its own base point, space or defaults.

    It is typed as `call`; its name only labels it on pages and in the benchmark.
    """
    whole = next(known for known, one in _METHODS.items() if one.build is of)
    family = {"family": of.__module__.rpartition(".")[2], "form_of": whole}
    _declare(name, _Method(None, of.__doc__, {**family, "call": call, **facts}))


def not_a_rule(name: str, kind: str, call: str, sheet: str, **facts: Any) -> None:
    """Puts a method that is not a rule into the catalogue."""
    _declare(name, _Method(None, sheet, {"family": "elsewhere", "kind": kind, "call": call, **facts}))


def register(build: Recipe, *, name: str | None = None) -> Recipe:
    """Makes a rule of your own known wherever a rule can be typed; use it on a class or a function.

    `parse`, `--rule`, the benchmark, ComfyUI's rule node and the explorer then know it by its name. The
    catalogue reads its docstring: a fact sheet, or at least one line. A class must be registered under its
    own name, because that is how a rule is written.
    """
    key = name or build.__name__
    if isinstance(build, type) and key != build.__name__:
        raise ValueError(f"{build.__name__} prints under its own name, so it cannot be registered as {key!r}")
    if key in builtin_names() and (key not in _METHODS or _METHODS[key].build is not build):
        raise ValueError(f"{key!r} is a rule of meancap already; register yours under another name")
    sheet = inspect.getdoc(build) or "A rule of another package."
    facts: dict[str, Any] = {"confidence": "derived"}
    if not _FIELD.search(sheet):
        first, source = sheet.partition("\n")[0].rstrip("."), f"the package of {build.__module__}"
        facts |= {"title": first, "formula": first, "space": "any", "source": source, "evidence": source}
        facts |= {"use": "", "state": ""}
        sheet = ""
    _METHODS[key] = _Method(build, sheet, facts)
    return build


def catalogue(*, forms: bool = False) -> list[Entry]:
    """All methods by family: ours and those of other packages; with `forms`, their other forms as well."""
    if sys.flags.optimize > 1:
        raise RuntimeError("the catalogue reads docstrings, which python -OO removes; run python without -OO")
    _load_installed()
    order = list(FAMILIES)
    entries = [_entry(name, one) for name, one in _METHODS.items()]
    listed = [e for e in entries if e.kind != "part" and (forms or not e.form_of)]
    return sorted(listed, key=lambda e: order.index(e.family))


def builds() -> dict[str, Build]:
    """Every recipe by its name: ours, and those of installed packages."""
    _load_installed()
    return {name: one.build for name, one in _METHODS.items() if one.build is not None}


def builtin_names() -> set[str]:
    """The names that `parse` knew before anybody registered one."""
    from .grammar import part_classes

    ours = __name__.partition(".")[0]
    made = {n for n, one in _METHODS.items() if one.build and one.build.__module__.partition(".")[0] == ours}
    return {*part_classes(), *made}


def entry(name: str) -> Entry:
    """The entry of that name, in any case."""
    wanted, entries = name.strip()[:40], catalogue(forms=True)
    for one in entries:
        if one.name.lower() == wanted.lower():
            return one
    names = [one.name for one in entries]
    near = get_close_matches(wanted, names) or names
    raise ValueError(f"unknown method {wanted!r}; available: {', '.join(near)}")


def search(word: str) -> list[Entry]:
    """The methods with this word in name, family, fact sheet or parts, in any case."""
    wanted = word.strip().lower()
    found = []
    for e in catalogue():
        lines = [text for name, text in facts(e) if name != "certainty"]
        models = [d.model for d in e.defaults]
        texts = (e.name, e.family, FAMILIES[e.family], e.title, e.evidence, e.use, *e.notes, *models, *lines)
        if any(wanted in text.lower() for text in texts):
            found.append(e)
    return found


def _forms_of(e: Entry) -> list[Entry]:
    return [one for one in catalogue(forms=True) if one.form_of == e.name]


def _entry(name: str, one: _Method) -> Entry:
    """The entry of what was registered under a name; its docstring is read here."""
    facts = dict(one.facts)
    if one.build is not None:
        home, _, module = one.build.__module__.rpartition(".")
        facts["family"] = module if home.startswith(__package__) and module in FAMILIES else "other"
        parameters = list(inspect.signature(one.build).parameters.values())
        scaled = bool(parameters) and parameters[0].name == "scale"
        if "call" not in facts:  # its name and a scale are enough, or it is only a part
            needed = [p for p in parameters[scaled:] if p.default is p.empty and p.kind is not p.VAR_KEYWORD]
            facts["call"] = f"{name}({'{scale}' if scaled else ''})"
            facts["kind"] = "part" if needed else "rule"
    if "title" not in facts:
        facts = {**_read_sheet(facts.get("form_of") or name, one.sheet or ""), **facts}
    return Entry(name=name, **facts)


@cache
def _read_sheet(name: str, sheet: str) -> dict[str, Any]:
    """The fields of a fact sheet; raises if one is missing."""
    about, *pieces = _FIELD.split(inspect.cleandoc(sheet))
    fields = dict(zip(pieces[::2], pieces[1::2], strict=True))
    texts = {field: " ".join(fields.get(field, "").split()) for field in (*_REQUIRED, "state")}
    if missing := [field for field in _REQUIRED if not texts[field]]:
        raise ValueError(
            f"the docstring of {name} lacks {', '.join(missing)}; a fact sheet has the fields "
            f"{', '.join(_REQUIRED)} (see meancap.rules.methods)"
        )
    if texts["space"] not in _SPACES:
        raise ValueError(f"the space of {name} must be one of {', '.join(_SPACES)}; got {texts['space']!r}")
    lists = {
        field: [" ".join(item.split()) for item in fields.get(field, "").split("\n    - ")[1:]]
        for field in ("defaults", "notes")
    }
    defaults = [_DEFAULT.match(text) for text in lists["defaults"]]
    if None in defaults:
        raise ValueError(f"the defaults in the docstring of {name} are lines '- model: values (source)'")
    texts |= {"use": texts.pop("use when"), "state": texts["state"] or "none"}
    title, _, _ = " ".join(about.partition("\n\n")[0].split()).partition(". ")
    sure, _, evidence = texts["evidence"].partition("; ")
    if sure in CONFIDENCE:
        texts |= {"confidence": sure, "evidence": evidence}
    return {
        **texts,
        "title": title.rstrip("."),
        "defaults": tuple(Default(*match.groups()) for match in defaults if match),
        "notes": tuple(lists["notes"]),
    }


@cache
def _load_installed() -> None:
    """Registers what installed packages offer; one that fails is reported in a warning and left out."""
    for point in entry_points(group=_ENTRY_POINTS):
        try:
            register(point.load(), name=point.name)
        except (ImportError, AttributeError, TypeError, ValueError) as error:
            warnings.warn(
                f"the rule {point.name!r} of {point.value} cannot be loaded and is skipped: {error}",
                stacklevel=2,
            )


def catalogue_table(entries: list[Entry] | None = None) -> str:
    """One line per method: its name, the space it acts in, how sure we are, its title."""
    rows = catalogue() if entries is None else entries
    width, wide = (max(len(getattr(e, f)) for e in rows) for f in ("name", "space"))
    return "\n".join(f"{e.name:<{width}}  {e.space:<{wide}}  {e.confidence:<11}  {e.title}" for e in rows)


def entry_text(e: Entry) -> str:
    """The fact sheet of one method, for a terminal."""
    rows = [("use when", e.use)] if e.use else []
    rows += [*facts(e), *(("defaults", f"{d.model}: {d.values} ({d.source})") for d in e.defaults)]
    rows += [("notes", text) for text in e.notes]
    lines = [f"{e.name}: {e.title}"]
    for name, text in rows:
        lines += wrap(text, 110, initial_indent=f"  {name:<11}", subsequent_indent=13 * " ")
    return "\n".join(lines)


def facts(e: Entry) -> list[tuple[str, str]]:
    """The facts of a method line by line: the name of the line, and its text."""
    lines = [("source", e.source), ("acts on", _SPACES[e.space]), ("formula", e.formula)]
    if e.kind == "rule":
        lines += [("type", e.text()), ("which is", str(e.rule()) if str(e.rule()) != e.text() else "")]
        lines += [("form", f"{one.text()} ({one.name})") for one in _forms_of(e)]
    else:
        lines += [("lives", _PLACES[e.kind]), ("type", e.text())]
    if e.check:
        numbers = ", ".join(f"{v:g}" for v in e.check)
        lines.append(("check", f"({numbers}) is its guided velocity of the worked example"))
    sure = f"{CONFIDENCE[e.confidence]}; {e.evidence}" if e.evidence else CONFIDENCE[e.confidence]
    lines += [("state", e.state), ("certainty", sure), ("limits", _limits(e))]
    return [(name, text) for name, text in lines if text]


def _limits(e: Entry) -> str:
    limits = []
    if e.kind == "rule" and not e.zero_gap:
        limits.append("equal predictions do not give the unguided mean")
    if e.kind == "rule" and not e.unit and "{scale}" in e.call:
        limits.append("scale 1 does not give the conditional mean")
    if e.needs:
        limits.append(f"needs a further prediction: {', '.join(e.needs)}")
    if e.axes > 2:
        limits.append("needs images, not packed tokens")
    return "; ".join(limits)
