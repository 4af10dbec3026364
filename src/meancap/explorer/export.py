"""One comparison as one HTML file: the same page with its answers inside, for a web site or a mail.

    link     what the page's address says after #: the view and what differs from its defaults
    answers  what the server said to every question that the page asks in that state
    stops    of the sliders: the link's values and a few others, with less detail; of pictures λ alone

The file needs no server and no network. Its scripts are the page's own, as modules in data: addresses,
because a page that is opened from a disk may import nothing from there; `page/saved.js` gives the answers.
"""

from __future__ import annotations

import base64
import itertools
import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import unquote, unquote_plus

from ..files import write_whole
from . import image_view, mixture_view
from .comparison import with_slider_values
from .jobs import Route, Work
from .requests import Request, only, text
from .wire import write_json

PAGE = Path(__file__).parent / "page"
VIEWS = {"mixture": "Mixture", "images": "Images"}
TIMES = [round(i / 20, 2) for i in range(21)]  # of the mixture's fields, beside the one in the link
SCALES, GAMMAS = (1.0, 3.0, 8.0), (1.0, 1.1, 1.5)  # of the sliders, beside those in the link
STOP_SAMPLES, STOP_PATHS, STOP_POINTS = 5000, 16, 1500  # of another stop: numbers, paths and dots
STOP_TIMES = [0.25, 0.5, 0.75]
_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline' data:; style-src 'unsafe-inline'; img-src data: blob:; "
    "base-uri 'none'; form-action 'none'"
)
_STOPS = {
    "mixture": "; λ and Γ go to the values that were saved",
    "images": "; λ goes to the values that were saved, with finished pictures alone",
}
_BANNER = (
    '<p class="saved">A saved comparison to look around in{stops}. To change its settings, open it with '
    "<code>{command}</code></p>"
)


def export(link: str, path: str | Path, work: Work | None = None) -> Path:
    """Writes the comparison that a link stands for; the file appears whole or not at all."""
    path = Path(path)
    if path.is_dir():
        raise ValueError(f"{path} is a folder; name a file to write, such as {path / 'page.html'}")
    if not path.absolute().parent.is_dir():
        raise ValueError(f"there is no folder {path.parent} to write {path.name} into")
    page = saved_page(link, Work() if work is None else work)
    return write_whole(path, page.encode(errors="replace"))


def saved_page(link: str, work: Work) -> str:
    """The file's text."""
    view, state = read_link(link)
    command = f"meancap explore --state {shlex.quote(hashed(link)[1:])}"
    asked, answers = list(questions(view, state)), []
    stops = slider_stops(view, state)
    movable = any(len(one) > 1 for one in stops.values())
    for name, request, smaller in asked:
        answers.append({"name": name, "request": request, **_answer(name, request | smaller, work)})
        if view == "mixture":  # of many quick questions; the image view's one long question tells by itself
            work.tell(len(answers) / len(asked))
    data = write_json({"link": hashed(link), "command": command, "stops": stops, "answers": answers}).decode()
    return _assembled(
        f"{VIEWS[view]} · meancap",
        _BANNER.format(command=escape(command), stops=_STOPS[view] if movable else ""),
        data,
    )


def hashed(link: str) -> str:
    """The part of an address that the page reads, checked; browsers write λ as %CE%BB, people write λ."""
    read_link(link)
    readable = re.sub(r"(?:%[89A-Fa-f][0-9A-Fa-f])+", lambda letters: unquote(letters[0]), link)
    return f"#{readable[readable.find('#') + 1 :].strip()}"


def read_link(link: str) -> tuple[str, dict[str, Any]]:
    """The view and the state that a link stands for, as the page reads it."""
    view, _, query = link[link.find("#") + 1 :].strip().partition("?")
    if view not in VIEWS:
        raise ValueError(
            f"a state is what stands after # in the page's address and begins with {' or '.join(VIEWS)}; "
            f"got {link[:60]!r}"
        )
    state = defaults(view)
    lists: dict[str, list[str]] = {}
    for pair in filter(None, query.split("&")):
        key, _, raw = pair.partition("=")
        key = "rule" if key == "arm" else key  # what links said before it was renamed
        if key not in state:
            raise ValueError(f"the {view} view has no setting {key[:40]!r}; it has {', '.join(state)}")
        if isinstance(state[key], list):
            lists.setdefault(key, []).append(unquote_plus(raw))
        else:
            state[key] = _typed(key, unquote_plus(raw), state[key])
    return view, state | {key: [] if values == [""] else values for key, values in lists.items()}


def defaults(view: str) -> dict[str, Any]:
    """The state of a view that no link has changed; the page's own script says it, in one literal."""
    source = (PAGE / f"{view}.js").read_text(encoding="utf-8")
    match = re.search(r"^export const defaults = (\{.*?^\});", source, re.M | re.S)
    if match is None:
        raise ValueError(f"page/{view}.js states no defaults")
    literal = re.sub(r"\s*//.*", "", match[1])
    literal = re.sub(r"^\s*(\w+):", r'"\1":', literal, flags=re.M).replace("'", '"')
    value: dict[str, Any] = json.loads(re.sub(r",\s*([}\]])", r"\1", literal))
    return value


def _typed(key: str, said: str, usual: Any) -> Any:
    if isinstance(usual, bool):
        return said == "true"
    if isinstance(usual, str):
        return said
    try:
        value = float(said)
    except ValueError:
        raise ValueError(f"{key} is a number; got {said[:40]!r}") from None
    return int(value) if value.is_integer() else value


def slider_stops(view: str, state: Mapping[str, Any]) -> dict[str, list[float]]:
    """Where a saved page's sliders stop: the state's value, and others where a rule reads the slider.

    Pictures take long and much room, so that theirs are those of λ.
    """

    def moves(**other: float) -> bool:
        here = {"scale": 1.0, "gamma": 1.0}
        return any(
            with_slider_values(rule, **here) != with_slider_values(rule, **{**here, **other})
            for rule in state["rule"]
        )

    return {
        "scale": sorted({float(state["scale"]), *(SCALES if moves(scale=2.0) else ())}),
        "gamma": sorted({float(state["gamma"]), *(GAMMAS if view == "mixture" and moves(gamma=2.0) else ())}),
    }


def questions(view: str, state: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Everything that the page asks while a reader looks at this state, in the page's own words; and what is
    asked for less of, to keep the file small."""
    yield f"{view}/about", {}, {}
    yield from _questions(view, state, TIMES)
    stops = slider_stops(view, state)
    smaller = {
        "images/run": {"last": True},
        "mixture/run": {"points": STOP_POINTS, "n": min(state.get("n", 0), STOP_SAMPLES)},
        "mixture/meter": {"paths": STOP_PATHS},
    }
    for scale, gamma in itertools.product(stops["scale"], stops["gamma"]):
        if (scale, gamma) != (state["scale"], state["gamma"]):
            stop = {**state, "scale": scale, "gamma": gamma}
            for name, request, _ in _questions(view, stop, STOP_TIMES):
                yield name, request, smaller.get(name, {})


def _questions(
    view: str, state: Mapping[str, Any], times: Sequence[float]
) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Those of one position of the sliders."""
    for rule in state["rule"]:
        model = {"model": state["model"]} if view == "images" else {}
        yield f"{view}/check", {"text": rule, "scale": state["scale"], "gamma": state["gamma"], **model}, {}
    shared = {
        "scale": state["scale"],
        "gamma": state["gamma"],
        "steps": state["steps"],
        "rules": state["rule"],
    }
    if view == "images":
        asked = {key: state[key] for key in ("model", "classes", "prompt", "negative", "seeds")}
        for name in ("prompt", "negative"):
            yield "images/prompt", {"prompt": state[name]}, {}
        yield "images/run", {**shared, **asked}, {}
        return
    request = {"scene": state["scene"], **shared, **{key: state[key] for key in ("solver", "n", "seed")}}
    if state["scene"] == "own":
        request |= {"components": _components(state["parts"]), "std": state["std"], "eta": state["eta"]}
    yield "mixture/run", {**request, "quick": False}, {}
    yield "mixture/meter", request, {}
    for index in range(len(state["rule"])):
        for t in sorted({*times, state["t"]}):
            yield "mixture/field", {**request, "t": t, "index": index}, {}


def _components(parts: str) -> list[list[Any]]:
    """x,y,weight,inside;... as the page reads it; an empty list where the text is something else."""
    rows = [one.split(",") for one in parts.split(";") if one]
    try:
        return [[float(x), float(y), float(w), float(inside) == 1] for x, y, w, inside in rows]
    except ValueError:
        return []


def _answer(name: str, request: dict[str, Any], work: Work) -> dict[str, Any]:
    """The server's answer; an error of one rule is part of the page, one of the whole request is raised."""
    routes = {**mixture_view.ROUTES, **image_view.ROUTES}
    try:
        answer = routes[name](request, work)
    except ValueError as error:
        if name.endswith("/run"):
            raise
        return {"error": str(error)}
    return {"result": {key: False if key == "compiling" else value for key, value in answer.items()}}


def _assembled(title: str, banner: str, data: str) -> str:
    """index.html with everything that it refers to put inside."""
    page = (PAGE / "index.html").read_text(encoding="utf-8")
    icon = f"data:image/svg+xml;base64,{_base64((PAGE / 'icon.svg').read_bytes())}"
    sheets = [(PAGE / name).read_text(encoding="utf-8") for name in ("style.css", "images.css")]
    modules = {
        f"page/{file.name}": f"data:text/javascript;base64,{_base64(_portable(file))}"
        for file in sorted(PAGE.glob("*.js"))
        if file.name != "saved.js"
    }
    # "<" could end the element or open a comment; in JSON it has another spelling.
    data = data.replace("<", "\\u003c")
    head = [
        f'<meta http-equiv="Content-Security-Policy" content="{escape(_POLICY)}">',
        f"<style>{_inside(''.join(sheets), 'style')}</style>",
        f'<script type="application/json" id="saved">{data}</script>',
        f"<script>{_inside((PAGE / 'saved.js').read_text(encoding='utf-8'), 'script')}</script>",
        f'<script type="importmap">{json.dumps({"imports": modules})}</script>',
        '<script type="module">import "page/app.js";</script>',
    ]
    page = re.sub(r"<title>.*?</title>", lambda _: f"<title>{escape(title)}</title>", page)
    page = re.sub(r'<link rel="stylesheet"[^>]*>\n?', "", page).replace('"icon.svg"', f'"{icon}"')
    page = re.sub(r'<script type="module".*?</script>\n?', lambda _: "\n".join(head) + "\n", page)
    return page.replace('<main id="view"', f'{banner}\n<main id="view"')


def _portable(file: Path) -> bytes:
    """A module whose imports are names of the import map: ./x.js means nothing inside a data: address."""
    source = file.read_text(encoding="utf-8")
    return re.sub(r"(\bfrom |\bimport )'\./([\w.]+)'", r"\1'page/\2'", source).encode()


def _inside(source: str, element: str) -> str:
    if f"</{element}" in source.lower():
        raise ValueError(f"a file of the page contains </{element}, which would end it inside an export")
    return source


def _base64(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


def route(request: Request, work: Work) -> dict[str, Any]:
    """The same for the page's button."""
    only(request, ("link",))
    return {"html": saved_page(text(request, "link", 20_000), work)}


ROUTES: dict[str, Route] = {"export": route}
