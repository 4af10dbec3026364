"""The explorer's server: the page's files and a small JSON interface beside them, for this machine only.

    GET  /                     page/index.html; GET /NAME is page/NAME, and nothing else can be read
    POST /api/NAME             a JSON object -> ROUTES[NAME](request, work) as JSON
    POST /api/jobs             {"name": NAME, "request": {...}} -> {"id": ID}: the same in the background;
                               with "page": WORD it takes the place of that page's last job
    GET  /api/jobs/ID          {"state": "running" | "done" | "failed" | "cancelled", "share": 0 to 1,
                               "said": words, "partial" while running, at last "result" or "error"}
    POST /api/jobs/ID/cancel   {} -> {}; a job that is not asked about for 15 seconds is cancelled too
    errors                     {"error": sentence}, with status 400 if the user can correct it

A route is a function of (request, work): it reads its request with `explorer.requests`, calls `work.check()`
a few times a second (it raises Left once the client is gone; do not catch it) or `work.tell(share, words,
partial)`, and returns what `json` can write; numbers that are not finite become null. ValueError, TypeError
and ImportError are sentences for the user. A view adds its routes to ROUTES below.

Bound to 127.0.0.1. The Host header must be this server's (a foreign name that resolves here is refused), a
POST from another origin is refused, no header allows any, and the page may load nothing from elsewhere.
"""

from __future__ import annotations

import select
import socket
import sys
import threading
from collections.abc import Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from . import export, image_view, mixture_view
from .jobs import FAULTS, SENTENCES, Busy, Jobs, Left, Route, Work
from .wire import read_object, sentence, write_json

ROUTES: dict[str, Route] = {**mixture_view.ROUTES, **image_view.ROUTES, **export.ROUTES}

HOST = "127.0.0.1"
PAGE = Path(__file__).parent / "page"
LARGEST_BODY = 256 * 1024
CONNECTIONS, AT_ONCE, PATIENCE = 64, 2, 20.0  # open connections; working requests; seconds in the queue
FAREWELL = 10.0  # seconds for work to notice that the server closes
_KINDS = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".json": "application/json",
}
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Server(ThreadingHTTPServer):
    """Serves until `shutdown`; `jobs` and `gate` are shared by its threads."""

    daemon_threads = True
    request_queue_size = 32

    def __init__(self, port: int = 0) -> None:
        self.jobs, self.closing = Jobs(), False
        self.gate = threading.BoundedSemaphore(AT_ONCE)
        self._open = threading.BoundedSemaphore(CONNECTIONS)
        try:
            super().__init__((HOST, port), Handler)
        except (OSError, OverflowError) as error:
            raise ValueError(
                f"port {port} cannot be used ({error}); give another one, or leave --port out for a free one"
            ) from None

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}/"

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._open.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._open.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that disconnects is not an error of the server."""
        error = sys.exc_info()[1]
        if not isinstance(error, (ConnectionError, TimeoutError)):
            print(f"meancap explore: {type(error).__name__}: {error}", file=sys.stderr)

    def server_close(self) -> None:
        """Stops running work first: the interpreter must not exit while a thread computes."""
        super().server_close()
        self.closing = True
        self.jobs.close()
        for _ in range(AT_ONCE):
            self.gate.acquire(timeout=FAREWELL)


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    server: Server
    protocol_version = "HTTP/1.1"
    timeout = 20  # for a request that stops half-way, and for an idle connection
    server_version, sys_version = "meancap", ""

    def log_message(self, format: str, *args: Any) -> None:
        """Prints nothing: the terminal belongs to the user."""

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """What the base class refuses by itself, such as an unknown method."""
        status = HTTPStatus(code)
        self.close_connection = True  # the rest may be a part of the request that was not understood
        self._json(status, {"error": message or status.phrase})

    def do_GET(self) -> None:
        if not self._is_ours():
            return
        path = self.path.partition("?")[0]
        if path.startswith("/api/jobs/"):
            try:
                self._json(HTTPStatus.OK, self.server.jobs.report(path.removeprefix("/api/jobs/")))
            except ValueError as error:
                self._refuse(HTTPStatus.NOT_FOUND, str(error))
            return
        files = {f"/{one.name}": one for one in PAGE.iterdir() if one.suffix in _KINDS}
        file = files.get("/index.html" if path == "/" else path)
        if file is None:
            self._refuse(HTTPStatus.NOT_FOUND, "there is no such page")
        else:
            self._send(HTTPStatus.OK, file.read_bytes(), _KINDS[file.suffix])

    do_HEAD = do_GET

    def do_POST(self) -> None:
        if not self._is_ours():
            return
        request = self._body()
        if request is None:
            return
        name = self.path.removeprefix("/api/") if self.path.startswith("/api/") else ""
        try:
            self._json(HTTPStatus.OK, self._answer(name, request))
        except Left:
            self.close_connection = True
        except Busy as busy:
            self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, str(busy))
        except _NoRoute as error:
            self._refuse(HTTPStatus.NOT_FOUND, str(error))
        except SENTENCES as error:
            self._refuse(HTTPStatus.BAD_REQUEST, sentence(error))
        except (ConnectionError, TimeoutError):  # the client has left
            self.close_connection = True
        except FAULTS as error:
            self._refuse(HTTPStatus.INTERNAL_SERVER_ERROR, sentence(error))

    def _answer(self, name: str, request: Mapping[str, Any]) -> Any:
        parts = name.split("/")
        if parts[0] == "jobs" and parts[2:] == ["cancel"]:
            self.server.jobs.cancel(parts[1])
            return {}
        if name == "jobs":
            route, inner = _route(request.get("name")), request.get("request")
            page = request.get("page", "")
            if not isinstance(inner, dict) or not isinstance(page, str):
                raise ValueError('a job is {"name": NAME, "request": {...}}, and "page": WORD if you like')
            start = self.server.jobs.start
            return {"id": start(lambda work: route(inner, work), sentence, page, self._waits)}
        route = _route(name)
        work = Work(self._waits)
        if not self.server.gate.acquire(timeout=PATIENCE):
            raise Busy("the machine is busy with other requests; try again in a moment")
        try:
            work.check()  # the client may have left while it waited
            return route(request, work)
        finally:
            self.server.gate.release()

    def _waits(self) -> bool:
        """Whether the client is still connected: a closed connection is readable and gives no bytes."""
        if self.server.closing:
            return False
        readable, _, _ = select.select([self.connection], [], [], 0)
        try:
            return not readable or bool(self.connection.recv(1, socket.MSG_PEEK))
        except OSError:
            return False

    def _is_ours(self) -> bool:
        """Accepts only our own names, so that another site cannot point its name here and read."""
        if self.server.closing:  # a connection may outlive the server
            self.close_connection = True
            return False
        names = {f"{HOST}:{self.server.port}", f"localhost:{self.server.port}"}
        if self.server.port == 80:
            names |= {HOST, "localhost"}
        hosts = self.headers.get_all("Host") or []
        if len(hosts) != 1 or hosts[0].lower() not in names:
            self._refuse(HTTPStatus.FORBIDDEN, f"this server answers only to {self.server.url}")
            return False
        origin = self.headers.get("Origin")
        if origin is not None and origin.lower() not in {f"http://{name}" for name in names}:
            self._refuse(HTTPStatus.FORBIDDEN, "a page of another site may not ask this server")
            return False
        return True

    def _body(self) -> dict[str, Any] | None:
        """The JSON object that was posted; None if it was refused."""
        kind = (self.headers.get("Content-Type") or "").partition(";")[0].strip().lower()
        length = self.headers.get("Content-Length") or ""
        # Unread bytes would be taken for the next request, so a refusal here closes the connection.
        if kind != "application/json":
            self._refuse(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "send JSON, with Content-Type: application/json")
        elif "Transfer-Encoding" in self.headers or not (length.isascii() and length.isdigit()):
            self._refuse(HTTPStatus.LENGTH_REQUIRED, "say how long the request is, with Content-Length")
        elif len(length) > 9 or int(length) > LARGEST_BODY:
            said = f"a request has at most {LARGEST_BODY:,} bytes"
            self._refuse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, said)
        else:
            raw = self.rfile.read(int(length))
            if len(raw) == int(length):
                return self._parsed(raw)
            self.close_connection = True
        return None

    def _parsed(self, raw: bytes) -> dict[str, Any] | None:
        try:
            return read_object(raw)
        except ValueError as error:
            self._refuse(HTTPStatus.BAD_REQUEST, str(error))
            return None

    def _refuse(self, status: HTTPStatus, sentence: str) -> None:
        self.close_connection = status != HTTPStatus.BAD_REQUEST
        self._json(status, {"error": sentence})

    def _json(self, status: HTTPStatus, value: Any) -> None:
        self._send(status, write_json(value), "application/json; charset=utf-8")

    def _send(self, status: HTTPStatus, content: bytes, kind: str) -> None:
        self.send_response(status)
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)


class _NoRoute(LookupError):
    pass


def _route(name: object) -> Route:
    if not isinstance(name, str) or name not in ROUTES:
        raise _NoRoute(f"there is no such question; there are {', '.join(sorted(ROUTES))}")
    return ROUTES[name]
