"""One comparison as one HTML file: the same page with its answers inside, for a web site or a mail.

    link     what follows # in the page's address: the view and what differs from its defaults
    answers  the server's answers to every request that the page sends in that state
    stops    of the sliders: the link's values and a few others, with less detail; for pictures λ alone

The file needs no server and no network. Its scripts are the page's own, as modules in data: addresses,
because a page that is opened from a disk may import nothing from there; `page/saved.js` returns the answers.
"""

from __future__ import annotations

import base64
import itertools
import json
import re
import shlex
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import unquote, unquote_plus

from meancap.files import write_whole

from . import image_view, mixture_view
from .comparison import fill_sliders
from .requests import Request, Route, Work, check_fields, text, write_json

PAGE = Path(__file__).parent / "page"
_State = dict[str, Any]
_VIEWS = {"mixture": "Mixture", "images": "Images"}
_TIMES = [round(i / 20, 2) for i in range(21)]  # of the mixture's fields, beside the one in the link
SCALES, GAMMAS = (1.0, 3.0, 8.0), (1.0, 1.1, 1.5)  # of the sliders, beside those in the link
_STOP_SAMPLES, _STOP_PATHS, _STOP_POINTS = 5000, 16, 1500  # of another stop: numbers, paths and dots
_STOP_TIMES = [0.25, 0.5, 0.75]
_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline' data:; style-src 'unsafe-inline'; img-src data: blob:; "
    "base-uri 'none'; form-action 'none'"
)
_STOPS = {
    "mixture": "; λ and Γ go to the saved values",
    "images": "; λ goes to the saved values, with finished pictures alone",
}
_BANNER = '<p class="saved">A saved comparison{stops}. To change its settings, run <code>{command}</code></p>'


def write_page(link: str, path: str | Path, work: Work | None = None) -> Path:
    """Write the comparison that a link stands for; the file appears whole or not at all."""
    path = Path(path)
    if path.is_dir():
        raise ValueError(f"{path} is a folder; name a file to write, such as {path / 'page.html'}")
    if not path.absolute().parent.is_dir():
        raise ValueError(f"there is no folder {path.parent} for {path.name}; make it first")
    return write_whole(path, saved_page(link, work or Work()).encode(errors="replace"))


def saved_page(link: str, work: Work) -> str:
    """The file's text."""
    view, state = read_link(link)
    command = f"meancap explore --state {shlex.quote(link_hash(link)[1:])}"
    requests, answers, stops = list(page_requests(view, state)), list[_State](), _stops(view, state)
    for name, request, smaller in requests:
        answers.append({"name": name, "request": request, **_answer(name, request | smaller, work)})
        if view == "mixture":  # many quick requests; the image view's one long request reports by itself
            work.tell(len(answers) / len(requests))
    data = write_json({"link": link_hash(link), "command": command, "stops": stops, "answers": answers})
    movable = _STOPS[view] if any(len(one) > 1 for one in stops.values()) else ""
    banner = _BANNER.format(command=escape(command), stops=movable)
    return _assemble(f"{_VIEWS[view]} · meancap", banner, data.decode())


def link_hash(link: str) -> str:
    """The part of an address that the page reads, checked; browsers write λ as %CE%BB, people write λ."""
    read_link(link)
    readable = re.sub(r"(?:%[89A-Fa-f][0-9A-Fa-f])+", lambda letters: unquote(letters[0]), link)
    return f"#{readable[readable.find('#') + 1 :].strip()}"


def read_link(link: str) -> tuple[str, _State]:
    """The view and the state that a link stands for, as the page reads it."""
    view, _, query = link[link.find("#") + 1 :].strip().partition("?")
    if view not in _VIEWS:
        raise ValueError(
            f"a state is what follows # in the page's address and begins with {' or '.join(_VIEWS)}; "
            f"got {link[:60]!r}"
        )
    state = view_defaults(view)
    lists: dict[str, list[str]] = {}
    for pair in filter(None, query.split("&")):
        key, _, raw = pair.partition("=")
        if key not in state:
            raise ValueError(f"the {view} view has no setting {key[:40]!r}; it has {', '.join(state)}")
        if isinstance(state[key], list):
            lists.setdefault(key, []).append(unquote_plus(raw))
        else:
            state[key] = _typed(key, unquote_plus(raw), state[key])
    return view, state | {key: [] if values == [""] else values for key, values in lists.items()}


def view_defaults(view: str) -> _State:
    """The state of a view that no link has changed, from the one literal in the page's own script."""
    source = (PAGE / f"{view}.js").read_text(encoding="utf-8")
    match = re.search(r"^export const defaults = (\{.*?^\});", source, re.M | re.S)
    if match is None:
        raise ValueError(f"page/{view}.js has no literal `defaults`")
    literal = re.sub(r"\s*//.*", "", match[1])
    literal = re.sub(r"^\s*(\w+):", r'"\1":', literal, flags=re.M).replace("'", '"')
    value: _State = json.loads(re.sub(r",\s*([}\]])", r"\1", literal))
    return value


def _typed(key: str, raw: str, usual: Any) -> Any:
    if isinstance(usual, bool):
        return raw == "true"
    if isinstance(usual, str):
        return raw
    try:
        value = float(raw)
    except ValueError:
        raise ValueError(f"{key} must be a number; got {raw[:40]!r}") from None
    return int(value) if value.is_integer() else value


def _stops(view: str, state: _State) -> dict[str, list[float]]:
    """Where a saved page's sliders stop: the state's value, and others if a rule reads the slider.

    Pictures take long and much room, so they have stops of λ alone.
    """

    def moves(**other: float) -> bool:
        here = {"scale": 1.0, "gamma": 1.0}
        return any(
            fill_sliders(rule, **here) != fill_sliders(rule, **{**here, **other}) for rule in state["rule"]
        )

    return {
        "scale": sorted({float(state["scale"]), *(SCALES if moves(scale=2.0) else ())}),
        "gamma": sorted({float(state["gamma"]), *(GAMMAS if view == "mixture" and moves(gamma=2.0) else ())}),
    }


def page_requests(view: str, state: _State) -> Iterator[tuple[str, _State, _State]]:
    """Every request that the page sends in this state, with the changes that keep the file small."""
    yield f"{view}/about", {}, {}
    for name, request in _requests_at(view, state, _TIMES):
        yield name, request, {}
    stops = _stops(view, state)
    smaller = {
        "images/run": {"last": True},
        "mixture/run": {"points": _STOP_POINTS, "n": min(state.get("n", 0), _STOP_SAMPLES)},
        "mixture/meter": {"paths": _STOP_PATHS},
    }
    for scale, gamma in itertools.product(stops["scale"], stops["gamma"]):
        if (scale, gamma) != (state["scale"], state["gamma"]):
            stop = {**state, "scale": scale, "gamma": gamma}
            for name, request in _requests_at(view, stop, _STOP_TIMES):
                yield name, request, smaller.get(name, {})


def _requests_at(view: str, state: _State, times: Sequence[float]) -> Iterator[tuple[str, _State]]:
    """Those for one position of the sliders."""

    def fields(*names: str) -> _State:
        return {name: state[name] for name in names}

    model = fields("model") if view == "images" else {}
    for rule in state["rule"]:
        yield f"{view}/check", {"text": rule, **fields("scale", "gamma"), **model}
    request = {**fields("scale", "gamma", "steps"), "rules": state["rule"]}
    if view == "images":
        for name in ("prompt", "negative"):
            yield "images/prompt", {"prompt": state[name]}
        yield "images/run", {**request, **fields("model", "classes", "prompt", "negative", "seeds")}
        return
    request |= fields("scene", "solver", "n", "seed")
    if state["scene"] == "own":
        request |= {"components": _components(state["parts"]), **fields("std", "eta")}
    yield "mixture/run", {**request, "quick": False}
    yield "mixture/meter", request
    for index in range(len(state["rule"])):
        for t in sorted({*times, state["t"]}):
            yield "mixture/field", {**request, "t": t, "index": index}


def _components(parts: str) -> list[list[Any]]:
    """x,y,weight,inside;... as the page reads it; an empty list for any other text."""
    rows = [one.split(",") for one in parts.split(";") if one]
    try:
        return [[float(x), float(y), float(w), float(inside) == 1] for x, y, w, inside in rows]
    except ValueError:
        return []


def _answer(name: str, request: _State, work: Work) -> _State:
    """The server's answer; an error in one rule is part of the page, one in the whole request is raised."""
    routes = {**mixture_view.ROUTES, **image_view.ROUTES}
    try:
        answer = routes[name](request, work)
    except ValueError as error:
        if name.endswith("/run"):
            raise
        return {"error": str(error)}
    return {"result": {key: False if key == "compiling" else value for key, value in answer.items()}}


def _assemble(title: str, banner: str, data: str) -> str:
    """index.html with everything that it refers to put inside."""
    page = (PAGE / "index.html").read_text(encoding="utf-8")
    icon = f"data:image/svg+xml;base64,{_base64((PAGE / 'icon.svg').read_bytes())}"
    sheet = (PAGE / "style.css").read_text(encoding="utf-8")
    modules = {
        f"page/{file.name}": f"data:text/javascript;base64,{_base64(_portable(file))}"
        for file in sorted(PAGE.glob("*.js"))
        if file.name != "saved.js"
    }
    # "<" could end the element or open a comment; in JSON it has another spelling.
    data = data.replace("<", "\\u003c")
    head = [
        f'<meta http-equiv="Content-Security-Policy" content="{escape(_POLICY)}">',
        f"<style>{sheet}</style>",
        f'<script type="application/json" id="saved">{data}</script>',
        f"<script>{(PAGE / 'saved.js').read_text(encoding='utf-8')}</script>",
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


def _base64(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


def _export(request: Request, work: Work) -> _State:
    """The same for the page's button."""
    check_fields(request, ("link",))
    return {"html": saved_page(text(request, "link", 20_000), work)}


ROUTES: dict[str, Route] = {"export": _export}
