"""The explorer's server: the page's files and a small JSON interface, for this machine only.

    GET  /                     page/index.html; GET /NAME returns page/NAME, and nothing else can be read
    POST /api/NAME             a JSON object -> ROUTES[NAME](request, work) as JSON
                               With Accept: application/x-ndjson the answer is lines: {"share": 0 to 1,
                               "said": words, "partial"} while it computes, then {"result"} or {"error"}
    errors                     {"error": sentence}, with status 400 if the user can correct it

A Starlette application run by uvicorn. It listens on 127.0.0.1. Host and Origin must be exactly this server's
(Starlette's own host check ignores the port), so that another site can neither point its name here nor post;
the page may load nothing from elsewhere. Routes compute in threads, which stop when the client leaves.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.requests import Request as Call
from starlette.responses import FileResponse, Response, StreamingResponse
from starlette.routing import Route as At
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from . import export, image_view, mixture_view
from .requests import Left, Request, Route, Work, one_line, read_object, write_json

ROUTES: dict[str, Route] = {**mixture_view.ROUTES, **image_view.ROUTES, **export.ROUTES}

_HOST = "127.0.0.1"
_LARGEST_BODY = 256 * 1024
_LINES = "application/x-ndjson"
AT_ONCE, PATIENCE = 2, 20.0  # requests of either kind that compute at the same time; seconds in the queue
STALLED = 20.0  # seconds after which a connection without a whole request is closed
_PAUSE = 0.25  # seconds between two lines of progress
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
_FILES = {one.name: one for one in export.PAGE.iterdir()}

# Errors whose text is a sentence for the user, and errors that are faults of the server.
_SENTENCES = (ValueError, TypeError, ImportError)
_FAULTS = (ArithmeticError, AssertionError, AttributeError, LookupError, MemoryError, OSError, RuntimeError)
_ERRORS = (HTTPException, Left, ClientDisconnect, *_SENTENCES, *_FAULTS)


class Server(uvicorn.Server):
    """Listens as soon as it is made; `run()` calls `ready` and serves until Ctrl-C or until `should_exit`."""

    def __init__(self, port: int = 0, ready: Callable[[], None] = lambda: None) -> None:
        self.socket, self._ready = _listen(port), ready
        self.port = int(self.socket.getsockname()[1])
        self.url = f"http://{_HOST}:{self.port}/"
        self._quick, self._long = asyncio.Semaphore(AT_ONCE), asyncio.Semaphore(AT_ONCE)
        app = Starlette(
            routes=[
                At("/api/{name:path}", self._answer, methods=["POST"]),
                At("/", _send_file),
                At("/{name}", _send_file),
            ],
            exception_handlers=dict.fromkeys(_ERRORS, _error_response),
        )
        app.router.redirect_slashes = False
        super().__init__(
            uvicorn.Config(
                _Guard(app, self.port),
                http=_Protocol,
                ws="none",
                lifespan="off",
                log_config=None,
                log_level="critical",  # the terminal belongs to the user
                server_header=False,
                limit_concurrency=512,
                timeout_keep_alive=int(STALLED),
                timeout_graceful_shutdown=10,
            )
        )

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        super().run(sockets or [self.socket])

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._ready()

    async def _answer(self, call: Call) -> Response:
        route, request = _route(call.path_params["name"]), await _read_body(call)
        work, end = self._watch(call)
        if call.headers.get("accept") == _LINES:
            return StreamingResponse(self._lines(route, request, work, end), media_type=_LINES)
        try:
            return _json(await self._run(route, request, work, self._quick))
        finally:
            end()

    async def _lines(
        self, route: Route, request: Request, work: Work, end: Callable[[], None]
    ) -> AsyncIterator[bytes]:
        """Progress a few times a second, then the result or the error."""
        run = asyncio.ensure_future(self._run(route, request, work, self._long))
        run.add_done_callback(lambda ended: ended.cancelled() or ended.exception())  # nobody may wait for it
        last: dict[str, Any] = {}
        try:
            while not (await asyncio.wait([run], timeout=_PAUSE))[0]:
                yield write_json({"share": work.share, "said": work.said, "partial": work.partial}) + b"\n"
            last["result"] = run.result()
        except _ERRORS as error:
            last["error"] = _explain(error)[1]
        finally:
            end()
        yield write_json(last) + b"\n"

    async def _run(self, route: Route, request: Request, work: Work, turn: asyncio.Semaphore) -> Any:
        """The route's result, computed in a thread when it is this request's turn."""
        try:
            await asyncio.wait_for(turn.acquire(), PATIENCE)
        except TimeoutError:
            raise HTTPException(503, "the server is busy with other requests; try again later") from None
        try:
            work.check()  # the client may have left while it waited
            return await asyncio.to_thread(route, request, work)
        finally:
            turn.release()

    def _watch(self, call: Call) -> tuple[Work, Callable[[], None]]:
        """Work that is wanted until the client closes its connection, and a function that ends the watch."""
        gone = threading.Event()

        async def wait() -> None:
            while (await call.receive())["type"] != "http.disconnect":
                pass
            gone.set()

        def end() -> None:
            gone.set()
            watcher.cancel()

        watcher = asyncio.ensure_future(wait())
        return Work(lambda: not (gone.is_set() or self.should_exit)), end


class _Guard:
    """Accepts requests for our own name alone, and adds the headers that confine the page."""

    def __init__(self, app: ASGIApp, port: int) -> None:
        names = [f"{_HOST}:{port}", f"localhost:{port}", *([_HOST, "localhost"] if port == 80 else [])]
        self.app, self.hosts, self.origins = app, names, [f"http://{name}" for name in names]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        hosts, origins = headers.getlist("host"), headers.getlist("origin")
        app = self.app
        if len(hosts) != 1 or hosts[0].lower() not in self.hosts:
            app = _json({"error": f"this server accepts requests only for http://{self.hosts[0]}/"}, 403)
        elif any(origin.lower() not in self.origins for origin in origins):
            app = _json({"error": "a page of another site may not send requests to this server"}, 403)
        await app(scope, receive, send_guarded)


class _Protocol(H11Protocol):
    """uvicorn's, which by itself never closes a connection whose request does not arrive."""

    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._look_again()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)

    def _look_again(self) -> None:
        self._timer = self.loop.call_later(STALLED, self._close_if_stalled, self.cycle)

    def _close_if_stalled(self, earlier: object) -> None:
        """Close if no request has begun since the earlier look and none is under way."""
        if self.cycle is earlier and (self.cycle is None or self.cycle.response_complete):
            self.transport.abort()
        else:
            self._look_again()


def _listen(port: int) -> socket.socket:
    found = socket.socket()
    try:
        if os.name == "posix":  # elsewhere it would let two programs share the port
            found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((_HOST, port))
        found.listen(128)
    except (OSError, OverflowError) as error:
        found.close()
        raise ValueError(
            f"port {port} cannot be used ({error}); pass another one, or leave --port out for a free one"
        ) from None
    return found


def _route(name: object) -> Route:
    if not isinstance(name, str) or name not in ROUTES:
        raise HTTPException(404, f"unknown endpoint; available: {', '.join(sorted(ROUTES))}")
    return ROUTES[name]


async def _send_file(call: Call) -> Response:
    file = _FILES.get(call.path_params.get("name", "index.html"))
    if file is None:
        raise HTTPException(404, "unknown page")
    # Named here, because the tables of some systems call a script text/plain.
    return FileResponse(file, media_type="text/javascript" if file.suffix == ".js" else None)


async def _read_body(call: Call) -> Request:
    """The JSON object that was posted."""
    kind = call.headers.get("content-type", "").partition(";")[0].strip().lower()
    length = call.headers.get("content-length", "")
    if kind != "application/json":
        raise HTTPException(415, "send JSON, with Content-Type: application/json")
    if not length.isdigit():
        raise HTTPException(411, "send the length of the request in Content-Length")
    if int(length) > _LARGEST_BODY:
        raise HTTPException(413, f"a request may have at most {_LARGEST_BODY:,} bytes")
    try:
        return read_object(await asyncio.wait_for(call.body(), STALLED))
    except TimeoutError:
        raise HTTPException(408, "the request did not arrive") from None


def _json(value: Any, status: int = 200) -> Response:
    # What was refused may be followed by bytes that are no request, so its connection is closed.
    headers = {"Connection": "close"} if status not in (200, 400) else None
    return Response(write_json(value), status, headers, "application/json")


def _explain(error: Exception) -> tuple[int, str]:
    """Status and sentence; a fault of the server is printed as well, never with a traceback."""
    if isinstance(error, HTTPException):
        return error.status_code, error.detail
    if isinstance(error, (Left, ClientDisconnect)):
        return 503, "the server is closing"
    line = one_line(error)
    if isinstance(error, _SENTENCES):
        return 400, line
    print(f"meancap explore: {type(error).__name__}: {line}", file=sys.stderr)
    return 500, f"this could not be computed ({line})"


async def _error_response(call: Call, error: Exception) -> Response:
    status, sentence = _explain(error)
    return _json({"error": sentence}, status)
