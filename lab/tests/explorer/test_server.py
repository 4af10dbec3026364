"""The server accepts requests from this machine and its own page alone, and outlives every client."""

import http.client
import json
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest
from browser import ask, serving, until

from meancap_lab.cli import main
from meancap_lab.explorer import server as module
from meancap_lab.explorer.requests import Left
from meancap_lab.explorer.server import Server


def get(server, path, **headers):
    link = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    link.putrequest("GET", path, skip_host="Host" in headers)
    for name, value in headers.items():
        link.putheader(name, value)
    link.endheaders()
    answer = link.getresponse()
    found = answer.status, answer.headers, answer.read()
    link.close()
    return found


def posting(server, name, body=None):
    """The bytes of a POST; without a body only its first lines."""
    kind = "Content-Type: application/json"
    head = f"POST /api/{name} HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\n{kind}\r\n"
    return head if body is None else (head + f"Content-Length: {len(body)}\r\n\r\n{body}").encode()


def connect(server, data=b"", wait=60.0):
    link = socket.create_connection(("127.0.0.1", server.port), timeout=wait)
    link.sendall(data)
    return link


def raw(server, data):
    """Whatever comes back when these bytes are sent; empty if the connection is just closed."""
    with connect(server, data) as link:
        link.settimeout(60)
        found = b""
        while part := link.recv(65536):
            found += part
        return found


@pytest.fixture
def endless(monkeypatch):
    """A route that runs until nobody waits; the lists of those begun and ended."""
    begun, ended = [], []

    def route(request, work):
        begun.append(request)
        try:
            while True:
                work.tell(0.5, "half", partial={"seen": 1})
                time.sleep(0.01)
        except Left:
            ended.append(request)
            raise

    monkeypatch.setitem(module.ROUTES, "endless", route)
    return begun, ended


def test_it_listens_on_the_loopback_alone(server):
    assert server.socket.getsockname()[0] == "127.0.0.1"


def test_the_page_may_load_from_itself_alone(server):
    status, headers, body = get(server, "/")
    assert status == 200 and b"<title>meancap explorer</title>" in body
    policy = dict(part.strip().split(" ", 1) for part in headers["Content-Security-Policy"].split(";"))
    assert policy["default-src"] == "'none'" and policy["script-src"] == policy["style-src"] == "'self'"
    assert policy["frame-ancestors"] == "'none'" and "http" not in headers["Content-Security-Policy"]
    assert headers["X-Content-Type-Options"] == "nosniff" and headers["Cache-Control"] == "no-store"
    assert not [name for name in headers if name.lower().startswith("access-control-")]
    assert get(server, "/app.js")[1]["Content-Type"].startswith("text/javascript")


@pytest.mark.parametrize(
    "path",
    [
        "/../server.py",
        "/%2e%2e/server.py",
        "/..%2fserver.py",
        "//etc/passwd",
        "/page/../../server.py",
        "/server.py",
        "/__init__.py",
        "/app.js/",
        "/.",
        "/api",
    ],
)
def test_nothing_beside_the_page_can_be_read(server, path):
    status, headers, body = get(server, path)
    assert status == 404 and set(json.loads(body)) == {"error"} and "Content-Security-Policy" in headers
    status, found = ask(server, path, {})
    assert status == 404 and "mixture/run" in found["error"], "the list of endpoints"


@pytest.mark.parametrize(
    "host", ["example.org", "example.org:{port}", "127.0.0.1", "127.0.0.1:{port}.example.org", ""]
)
def test_a_foreign_name_that_points_here_is_refused(server, host):
    status, _, body = get(server, "/", Host=host.format(port=server.port))
    assert status == 403 and b"accepts requests only for" in body


@pytest.mark.parametrize(
    "origin", ["http://example.org", "null", "https://127.0.0.1:{port}", "http://localhost"]
)
def test_a_page_of_another_site_cannot_ask_but_ours_can(server, origin):
    status, found = ask(server, "mixture/about", {}, Origin=origin.format(port=server.port))
    assert status == 403 and "another site" in found["error"]
    for at in (f"127.0.0.1:{server.port}", f"localhost:{server.port}"):
        assert ask(server, "mixture/about", {}, Origin=f"http://{at}", Host=at)[0] == 200


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (b"{}", {"Content-Type": "text/plain"}, 415),
        (b"not json", {}, 400),
        (b"[1]", {}, 400),
        (b'{"n": NaN}', {}, 400),
        (b'{"n": 1e999}', {}, 400),
        (b"[" * 100_000, {}, 400),
        (b'{"n": ' + b"9" * 5000 + b"}", {}, 400),
        (b"{" + b" " * 300_000 + b"}", {}, 413),
        (b"\xff\xfe", {}, 400),
    ],
)
def test_a_bad_body_is_answered_by_a_sentence(server, body, headers, status):
    found = ask(server, "mixture/run", body, **headers)
    assert found[0] == status and set(found[1]) == {"error"}
    assert "Traceback" not in found[1]["error"] and len(found[1]["error"]) < 400


@pytest.mark.parametrize(
    "line",
    ["", "Content-Length: -1\r\n", "Content-Length: 99999999999\r\n", "Transfer-Encoding: chunked\r\n"],
)
def test_a_length_that_is_a_lie_or_missing_is_refused(server, line):
    found = raw(server, (posting(server, "mixture/about") + line + "\r\n").encode())
    assert found.split(b" ", 2)[1] in (b"400", b"411", b"413")


@pytest.mark.parametrize("line", ["PUT / HTTP/1.1", "OPTIONS /api/mixture/run HTTP/1.1", "a b c d e"])
def test_other_methods_and_nonsense_are_refused(server, line):
    head = f"{line}\r\nHost: 127.0.0.1:{server.port}\r\nConnection: close\r\n\r\n"
    found = raw(server, head.encode())
    assert found.split(b" ", 2)[1] in (b"400", b"405") and b"Access-Control" not in found


def test_the_page_survives_seventy_slow_and_idle_connections(server):
    """Nothing sent, half a head, half a body: the page still loads and computes."""
    starts = [b"", b"GET / HT", posting(server, "mixture/about").encode() + b"Content-Length: 500\r\n\r\n{"]
    links = [connect(server, starts[i % 3]) for i in range(70)]
    try:
        assert get(server, "/")[0] == 200 and ask(server, "mixture/about", {})[0] == 200
    finally:
        for link in links:
            link.close()


def test_a_request_that_stops_half_way_is_given_up(server, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(module, "STALLED", 0.3)
        whole = f"GET / HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\n\r\n".encode()
        for start in (b"", b"GET / HT", whole + b"GET / HT"):
            raw(server, start)  # returns because the server closes
        half = posting(server, "mixture/about") + "Content-Length: 500\r\n\r\n{"
        assert raw(server, half.encode()).split(b" ", 2)[1] == b"408"
    assert get(server, "/")[0] == 200


def test_clients_that_leave_do_no_harm_and_their_work_stops(server, endless, capsys):
    begun, ended = endless
    for kind in ("", "Accept: application/x-ndjson\r\n"):
        for n in range(3):
            head, _, body = posting(server, "endless", json.dumps({"n": n})).partition(b"\r\n\r\n")
            with connect(server, head + b"\r\n" + kind.encode() + b"\r\n" + body):
                until(lambda n=n, kind=kind: len(begun) == n + 1 + 3 * bool(kind))
            until(lambda n=n, kind=kind: len(ended) == n + 1 + 3 * bool(kind))
    with connect(server, posting(server, "mixture/about").encode() + b"Content-Length: 500\r\n\r\n{"):
        pass  # half a request
    assert ask(server, "mixture/about", {})[0] == 200
    assert capsys.readouterr().err == ""


def test_a_fault_of_ours_is_a_sentence_and_not_a_trace(server, monkeypatch, capsys):
    def broken(request, work):
        raise RuntimeError("the tensor\nis tired")

    monkeypatch.setitem(module.ROUTES, "broken", broken)
    status, found = ask(server, "broken", {})
    assert (status, found["error"]) == (500, "this could not be computed (the tensor is tired)")
    assert capsys.readouterr().err == "meancap explore: RuntimeError: the tensor is tired\n"


def test_few_work_at_once_and_the_others_wait_or_are_told_so(server, endless, monkeypatch):
    now, most, lock = [0], [0], threading.Lock()

    def slow(request, work):
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        time.sleep(0.05)
        with lock:
            now[0] -= 1
        return {}

    monkeypatch.setitem(module.ROUTES, "slow", slow)
    found = []
    threads = [threading.Thread(target=lambda: found.append(ask(server, "slow", {})[0])) for _ in range(8)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert found == [200] * 8 and most[0] <= module.AT_ONCE
    begun, ended = endless
    busy = [connect(server, posting(server, "endless", "{}")) for _ in range(module.AT_ONCE)]
    until(lambda: len(begun) == module.AT_ONCE)
    monkeypatch.setattr(module, "PATIENCE", 0.2)
    status, answer = ask(server, "slow", {})
    assert status == 503 and "try again" in answer["error"]
    for link in busy:
        link.close()
    until(lambda: len(ended) == module.AT_ONCE)


def lines(server, name, request):
    """The lines of a long answer, as they come."""
    link = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    headers = {"Content-Type": "application/json", "Accept": "application/x-ndjson"}
    link.request("POST", f"/api/{name}", json.dumps(request), headers)
    with link.getresponse() as answer:
        assert answer.status == 200
        yield from map(json.loads, answer)
    link.close()


def test_long_work_reports_its_progress_then_its_result_or_a_sentence(server, monkeypatch):
    go = threading.Event()

    def counted(request, work):
        work.tell(0.5, "half", partial={"seen": 1})
        assert go.wait(60)
        return {"double": 2 * request["n"]}

    def wrong(request, work):
        raise ValueError("no such garment")

    monkeypatch.setitem(module.ROUTES, "counted", counted)
    monkeypatch.setitem(module.ROUTES, "wrong", wrong)
    seen = lines(server, "counted", {"n": 4})
    while (line := next(seen))["share"] != 0.5:
        pass
    assert line == {"share": 0.5, "said": "half", "partial": {"seen": 1}}
    go.set()
    assert list(seen)[-1] == {"result": {"double": 8}}
    assert list(lines(server, "wrong", {}))[-1] == {"error": "no such garment"}


def test_closing_ends_what_is_under_way(endless):
    begun, ended = endless
    with serving() as own:
        links = [connect(own, posting(own, "endless", "{}"))]
        seen = lines(own, "endless", {})
        next(seen)
        until(lambda: len(begun) == 2)
    assert len(ended) == 2 and list(seen)[-1] == {"error": "the server is closing"}
    links[0].close()


def test_a_port_that_cannot_be_used_is_a_sentence(server, capsys):
    assert main(["explore", "--no-browser", "--port", str(server.port)]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and f"port {server.port} cannot be used" in said
    assert main(["explore", "--no-browser", "--port", "70000"]) == 2
    assert "65535" in capsys.readouterr().err
    for port in (-1, 70000):
        with pytest.raises(ValueError, match="cannot be used"):
            Server(port)


@pytest.mark.parametrize("package", ["starlette", "uvicorn"])
def test_a_missing_package_is_a_sentence_with_the_command(package, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, package, None)
    assert main(["explore", "--no-browser"]) == 2
    assert 'pip install "./lab[explore]"' in capsys.readouterr().err


def test_ctrl_c_ends_it_cleanly():
    command = [sys.executable, "-m", "meancap", "explore", "--no-browser"]

    def heard():  # a shell that starts tests in the background has them ignore the signal
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, preexec_fn=heard, **pipes) as run:
        try:
            line = run.stdout.readline()
            assert line.startswith("meancap explorer: http://127.0.0.1:")
            run.send_signal(signal.SIGINT)
            rest, said = run.communicate(timeout=120)
        finally:
            run.kill()
    assert run.returncode == 0 and said == "" and "ended" in rest
