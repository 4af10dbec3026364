"""The catalogue as text for a terminal: a table, and a sheet for each method."""

from __future__ import annotations

from textwrap import wrap

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
    said = [("use when", e.use)] if e.use else []
    said += [*facts(e), *(("defaults", f"{d.model}: {d.values} ({d.source})") for d in e.defaults)]
    said += [("differs", text) for text in e.differs]
    lines = [f"{e.name}: {e.title}"]
    for name, text in said:
        lines += wrap(text, 110, initial_indent=f"  {name:<11}", subsequent_indent=13 * " ")
    return "\n".join(lines)


def facts(e: Entry) -> list[tuple[str, str]]:
    """What is said of a method, line by line: the name of the line, and its text."""
    lines = [("paper", e.paper), ("acts on", _SPACES[e.space]), ("formula", e.formula)]
    if e.kind == "rule":
        lines += [("type", e.text()), ("which is", str(e.rule()) if str(e.rule()) != e.text() else "")]
    else:
        lines += [("lives", _PLACES[e.kind]), ("type", e.text())]
    if e.check:
        numbers = ", ".join(f"{v:g}" for v in e.check)
        lines.append(("check", f"({numbers}) is its guided velocity of the worked example"))
    sure = f"{CONFIDENCE[e.confidence]}; {e.seen}" if e.seen else CONFIDENCE[e.confidence]
    lines += [("state", e.state), ("certainty", sure), ("limits", _limits(e))]
    return [(name, text) for name, text in lines if text]


def _limits(e: Entry) -> str:
    said = []
    if e.kind == "rule" and not e.zero_gap:
        said.append("equal predictions do not give the unguided mean")
    if e.kind == "rule" and not e.unit and "{scale}" in e.call:
        said.append("scale 1 does not give the conditional mean")
    if e.needs:
        said.append(f"needs a further prediction: {', '.join(e.needs)}")
    if e.axes > 2:
        said.append("needs images, not packed tokens")
    if not e.compiles:
        said.append("torch.compile breaks its graph")
    return "; ".join(said)
