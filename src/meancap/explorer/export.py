"""One comparison as one HTML file: the same page with its answers inside, for a web site or a mail.

    link     what the page's address says after #: the view and what differs from its defaults
    answers  what the server said to every question that the page asks in that state

The file needs no server and no network. Its scripts are the page's own, as modules in data: addresses,
because a page that is opened from a disk may import nothing from there; `page/saved.js` gives the answers.
"""

from __future__ import annotations

import base64
import json
import re
import shlex
from collections.abc import Iterator, Mapping
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import unquote, unquote_plus

from ..files import write_whole
from . import images, mixture
from .jobs import Route, Work
from .requests import Request, only, text
from .wire import write_json

PAGE = Path(__file__).parent / "page"
VIEWS = {"mixture": "Mixture", "images": "Images"}
TIMES = [round(i / 20, 2) for i in range(21)]  # of the mixture's fields, beside the one in the link
_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline' data:; style-src 'unsafe-inline'; img-src data: blob:; "
    "base-uri 'none'; form-action 'none'"
)
_BANNER = (
    '<p class="saved">A saved comparison to look around in. To change its settings, open it with '
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
    for name, request in asked:
        answers.append({"name": name, "request": request, **_answer(name, request, work)})
        if (
            view == "mixture"
        ):  # many quick questions; the image view asks one long question, which reports its own progress
            work.tell(len(answers) / len(asked))
    data = write_json({"link": hashed(link), "command": command, "answers": answers}).decode()
    return _assembled(f"{VIEWS[view]} · meancap", _BANNER.format(command=escape(command)), data)


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


def questions(view: str, state: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every request that the page makes while a reader looks at this state, exactly as the page makes it."""
    yield f"{view}/about", {}
    for rule in state["rule"]:
        yield f"{view}/check", {"text": rule, "scale": state["scale"], "gamma": state["gamma"]}
    shared = {
        "scale": state["scale"],
        "gamma": state["gamma"],
        "steps": state["steps"],
        "rules": state["rule"],
    }
    if view == "images":
        yield "images/run", {**shared, "classes": state["classes"], "seeds": state["seeds"]}
        return
    request = {"scene": state["scene"], **shared, **{key: state[key] for key in ("solver", "n", "seed")}}
    if state["scene"] == "own":
        request |= {"components": _components(state["parts"]), "std": state["std"], "eta": state["eta"]}
    yield "mixture/run", {**request, "quick": False}
    yield "mixture/meter", request
    for index in range(len(state["rule"])):
        for t in sorted({*TIMES, state["t"]}):
            yield "mixture/field", {**request, "t": t, "index": index}


def _components(parts: str) -> list[list[Any]]:
    """x,y,weight,inside;... as the page reads it; an empty list where the text is something else."""
    rows = [one.split(",") for one in parts.split(";") if one]
    try:
        return [[float(x), float(y), float(w), float(inside) == 1] for x, y, w, inside in rows]
    except ValueError:
        return []


def _answer(name: str, request: dict[str, Any], work: Work) -> dict[str, Any]:
    """The server's answer; an error of one rule is part of the page, one of the whole request is raised."""
    routes = {**mixture.ROUTES, **images.ROUTES}
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
