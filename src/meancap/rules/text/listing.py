"""The catalogue as text: a table, a sheet for each method, the page docs/rules.md."""

from __future__ import annotations

from textwrap import wrap

from ..methods.elsewhere import LEFT_OUT, NAME_ONLY
from ..methods.registry import CONFIDENCE, Entry, catalogue

_SPACES = {
    "any": "any parametrisation alike",
    "mean": "posterior means",
    "velocity": "velocities",
    "noise": "noise estimates",
    "score": "scores",
    "state": "the state x itself",
}
_PLACES = {
    "rule": "a rule",
    "model": "model side: wraps predict (`meancap.sampling`)",
    "solver": "solver side: moves x, or asks the loop for more (`meancap.sampling`)",
    "laboratory": "laboratory: trained on a mixture (`meancap.lab`)",
}


def catalogue_table() -> str:
    """One line per method."""
    entries = catalogue()
    width, wide = (max(len(getattr(e, f)) for e in entries) for f in ("name", "space"))
    return "\n".join(f"{e.name:<{width}}  {e.space:<{wide}}  {e.confidence:<11}  {e.title}" for e in entries)


def entry_text(e: Entry) -> str:
    """Everything that is said of one method, for a terminal."""
    facts = [*_facts(e), *(("defaults", f"{d.model}: {d.values} ({d.source})") for d in e.defaults)]
    facts += [("differs", text) for text in e.differs]
    lines = [f"{e.name}: {e.title}"]
    for name, text in facts:
        lines += wrap(text, 110, initial_indent=f"  {name:<11}", subsequent_indent=13 * " ")
    return "\n".join(lines)


def _facts(e: Entry) -> list[tuple[str, str]]:
    facts = [("paper", e.paper), ("acts on", _SPACES[e.space]), ("formula", e.formula)]
    if e.kind == "rule":
        facts += [("type", e.text()), ("which is", str(e.rule()) if str(e.rule()) != e.text() else "")]
    else:
        facts += [("lives", _PLACES[e.kind]), ("type", e.text())]
    if e.check:
        numbers = ", ".join(f"{v:g}" for v in e.check)
        facts.append(("check", f"({numbers}) is its guided velocity of the worked example"))
    sure = f"{CONFIDENCE[e.confidence]}; {e.seen}" if e.seen else CONFIDENCE[e.confidence]
    facts += [("state", e.state), ("certainty", sure), ("limits", _limits(e))]
    return [(name, text) for name, text in facts if text]


def _limits(e: Entry) -> str:
    said = []
    if e.kind == "rule" and not e.zero_gap:
        said.append("equal predictions do not give the unguided mean")
    if e.kind == "rule" and not e.unit and "{scale}" in e.call:
        said.append("scale 1 does not give the conditional mean")
    if e.axes > 2:
        said.append("needs images, not packed tokens")
    if not e.compiles:
        said.append("torch.compile breaks its graph")
    return "; ".join(said)


def page() -> str:
    """The whole catalogue as the Markdown page docs/rules.md."""
    entries = catalogue()
    rows = [
        f"| [`{e.name}`](#{e.name.lower()}) | {_md(e.title)} | {e.space} | {e.confidence} |" for e in entries
    ]
    body = [line for e in entries for line in _section(e)]
    named, missing = (
        [f"- **{_md(name)}**: {_md(why)}." for name, why in part] for part in (NAME_ONLY, LEFT_OUT)
    )
    last = ["", "## Known by name only", "", *named, "", "## Not here", "", *missing]
    return "\n".join([_HEAD, *rows, *body, *last]) + "\n"


_HEAD = """# Every rule

Every guidance method here, with its source, its formula, its published values, and where ports of it differ.
Generated from `meancap.rules.catalogue()` by `meancap rules --page`; edit the entries, not this page.

Time runs from noise at 0 to data at 1; scale 1 is the conditional prediction. Every reduction is over one
sample. `| Cap(gamma)` may follow any rule and keeps its bound. The names can be typed wherever a rule is:
`parse`, the command line, a configuration.

| name | method | acts on | certainty |
|---|---|---|---|"""


def _section(e: Entry) -> list[str]:
    lines = ["", f"## {e.name}", "", f"{_md(e.title[:1].upper() + e.title[1:])}.", ""]
    for name, text in _facts(e):
        code = name in ("formula", "type", "which is")
        lines.append(f"- {name}: `{text}`" if code else f"- {name}: {_md(text)}")
    if e.defaults:
        lines += ["", "| model | values | source |", "|---|---|---|"]
        lines += [f"| {_md(d.model)} | {_md(d.values)} | {_md(d.source)} |" for d in e.defaults]
    if e.differs:
        lines += ["", "Where ports and readings differ:", "", *(f"- {_md(text)}" for text in e.differs)]
    return lines


def _md(text: str) -> str:
    """Plain text inside Markdown: stars, underscores and bars mean themselves."""
    for mark in "\\*_|<":
        text = text.replace(mark, "\\" + mark)
    return text
