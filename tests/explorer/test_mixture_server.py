"""The server answers to this machine and to its own page alone, and outlives every reader."""

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

from meancap.cli import main
from meancap.explorer import server as module
from meancap.explorer.jobs import Job, Left
from meancap.explorer.server import Server


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


def posting(server, name):
    """The first lines of a POST."""
    kind = "Content-Type: application/json"
    return f"POST /api/{name} HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\n{kind}\r\n"


def raw(server, text, wait=10.0):
    """Whatever comes back when these bytes are sent; empty if the connection is just closed."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=wait) as link:
        link.sendall(text)
        found = b""
        while part := link.recv(65536):
            found += part
        return found


def test_it_listens_on_the_loopback_alone(server):
    assert server.server_address[0] == "127.0.0.1"


def test_the_page_may_load_from_itself_alone(server):
    status, headers, body = get(server, "/")
    assert status == 200 and b"<title>meancap explorer</title>" in body
    policy = dict(part.strip().split(" ", 1) for part in headers["Content-Security-Policy"].split(";"))
    assert policy["default-src"] == "'none'" and policy["script-src"] == "'self'"
    assert policy["frame-ancestors"] == "'none'" and "http" not in headers["Content-Security-Policy"]
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert not [name for name in headers if name.lower().startswith("access-control-")]


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
    status, _, body = get(server, path)
    assert status == 404 and set(json.loads(body)) == {"error"}


@pytest.mark.parametrize(
    "host", ["example.org", "example.org:{port}", "127.0.0.1", "127.0.0.1:{port}.example.org", ""]
)
def test_a_foreign_name_that_points_here_is_refused(server, host):
    status, _, body = get(server, "/", Host=host.format(port=server.port))
    assert status == 403 and b"answers only to" in body


@pytest.mark.parametrize(
    "origin", ["http://example.org", "null", "https://127.0.0.1:{port}", "http://localhost"]
)
def test_a_page_of_another_site_cannot_ask(server, origin):
    status, found = ask(server, "mixture/about", {}, Origin=origin.format(port=server.port))
    assert status == 403 and "another site" in found["error"]


def test_our_own_page_can(server):
    for name in ("127.0.0.1", "localhost"):
        at = f"{name}:{server.port}"
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


def test_a_length_that_is_a_lie_or_missing_is_refused(server):
    head = posting(server, "mixture/about")
    for line in (
        "",
        "Content-Length: -1\r\n",
        "Content-Length: 99999999999\r\n",
        "Transfer-Encoding: chunked\r\n",
    ):
        assert raw(server, (head + line + "\r\n").encode()).split(b" ", 2)[1] in (b"411", b"413")


@pytest.mark.parametrize(
    "line", ["PUT / HTTP/1.1", "OPTIONS /api/mixture/run HTTP/1.1", "GET / HTTP/9.9", "a b c d e"]
)
def test_other_methods_and_nonsense_get_a_sentence(server, line):
    found = raw(server, f"{line}\r\nHost: 127.0.0.1:{server.port}\r\n\r\n".encode())
    assert set(json.loads(found[found.index(b"{") :])) == {"error"} and b"Access-Control" not in found


def test_an_unknown_question_is_named(server):
    status, found = ask(server, "mixture/nothing", {})
    assert status == 404 and "mixture/run" in found["error"]


def test_readers_that_leave_do_no_harm(server, capsys, monkeypatch):
    ended, run = [], module.ROUTES["mixture/run"]

    def watched(request, work):
        ended.append(run(request, work))
        return ended[-1]

    monkeypatch.setitem(module.ROUTES, "mixture/run", watched)
    body = json.dumps({"n": 20000, "scene": "under", "rules": ["CFG(λ)"] * 4}).encode()
    head = posting(server, "mixture/run")
    for _ in range(4):
        with socket.create_connection(("127.0.0.1", server.port)) as link:
            link.sendall(head.encode() + f"Content-Length: {len(body)}\r\n\r\n".encode() + body)
        with socket.create_connection(("127.0.0.1", server.port)) as link:
            link.sendall(head.encode() + b"Content-Length: 500\r\n\r\n{")  # half a request
    assert ask(server, "mixture/about", {})[0] == 200
    for _ in range(module.AT_ONCE):
        assert server.gate.acquire(timeout=60)
    for _ in range(module.AT_ONCE):
        server.gate.release()
    assert ended == [], "the work of those who left is dropped"
    assert capsys.readouterr().err == ""


def test_a_request_that_stops_half_way_is_given_up(server, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(module.Handler, "timeout", 0.3)
        assert raw(server, b"GET / HT", 60) == b""
    assert get(server, "/")[0] == 200


def test_an_answer_that_nobody_takes_is_no_fault(server, monkeypatch, capsys):
    def stuck(*_):
        raise TimeoutError("timed out")

    with monkeypatch.context() as patch:
        patch.setattr(module.Handler, "_send", stuck)
        assert raw(server, (posting(server, "mixture/about") + "Content-Length: 2\r\n\r\n{}").encode()) == b""
    assert capsys.readouterr().err == ""


def test_a_fault_of_ours_is_a_sentence_and_not_a_trace(server, monkeypatch, capsys):
    def broken(request, work):
        raise RuntimeError("the tensor\nis tired")

    monkeypatch.setitem(module.ROUTES, "broken", broken)
    status, found = ask(server, "broken", {})
    assert (status, found["error"]) == (500, "this could not be worked out (the tensor is tired)")
    assert "RuntimeError" in capsys.readouterr().err


def test_few_work_at_once_and_the_others_wait(monkeypatch):
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
    with serving() as own:
        found = []
        threads = [threading.Thread(target=lambda: found.append(ask(own, "slow", {})[0])) for _ in range(8)]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
    assert found == [200] * 8 and most[0] <= module.AT_ONCE


def test_a_job_tells_its_progress_and_its_result(server, monkeypatch):
    go = threading.Event()

    def counted(request, work):
        work.tell(0.5, "half", partial={"seen": 1})
        assert go.wait(60)
        return {"double": 2 * request["n"]}

    monkeypatch.setitem(module.ROUTES, "counted", counted)
    _, begun = ask(server, "jobs", {"name": "counted", "request": {"n": 4}})

    def report():
        return json.loads(get(server, f"/api/jobs/{begun['id']}")[2])

    until(lambda: report()["share"] == 0.5)
    assert {**report()} == {"state": "running", "share": 0.5, "said": "half", "partial": {"seen": 1}}
    go.set()
    until(lambda: report()["state"] == "done")
    assert report()["result"] == {"double": 8}


def test_a_job_can_be_cancelled_and_fails_in_a_sentence(server, monkeypatch):
    def endless(request, work):
        while True:
            work.tell(0.1)
            time.sleep(0.01)

    def wrong(request, work):
        raise ValueError("no such garment")

    monkeypatch.setitem(module.ROUTES, "endless", endless)
    monkeypatch.setitem(module.ROUTES, "wrong", wrong)

    def state(begun):
        return json.loads(get(server, f"/api/jobs/{begun['id']}")[2])

    _, begun = ask(server, "jobs", {"name": "endless", "request": {}})
    assert ask(server, f"jobs/{begun['id']}/cancel", {})[0] == 200
    until(lambda: state(begun)["state"] == "cancelled")
    _, begun = ask(server, "jobs", {"name": "wrong", "request": {}})
    until(lambda: state(begun)["state"] == "failed")
    assert state(begun)["error"] == "no such garment"
    assert get(server, "/api/jobs/unknown")[0] == 404
    assert ask(server, "jobs", {"name": "wrong"})[0] == 400


def test_a_page_s_next_job_takes_the_place_of_its_last(server, monkeypatch):
    running, most = set(), [0]

    def endless(request, work):
        running.add(request["n"])
        most[0] = max(most[0], len(running))
        try:
            while True:
                time.sleep(0.1)  # a cancelled job needs this long to notice
                work.tell(0.1)
        finally:
            running.discard(request["n"])

    monkeypatch.setitem(module.ROUTES, "endless", endless)
    monkeypatch.setattr("meancap.explorer.jobs.ABANDONED", 600.0)
    begun = [
        ask(server, "jobs", {"name": "endless", "request": {"n": n}, "page": "a slider moves"})
        for n in range(6)
    ]
    assert [status for status, _ in begun] == [200] * 6
    until(lambda: running == {5})
    assert most[0] <= 2
    # Another page has room beside it, a third has not and hears so; who leaves the queue takes no room.
    assert ask(server, "jobs", {"name": "endless", "request": {"n": 6}, "page": "another"})[0] == 200
    monkeypatch.setattr("meancap.explorer.jobs.PATIENCE", 0.3)
    status, found = ask(server, "jobs", {"name": "endless", "request": {"n": 7}, "page": "a third"})
    assert status == 503 and "2 jobs are running already" in found["error"]
    with pytest.raises(Left):
        server.jobs.start(lambda work: None, str, "a third", lambda: False)
    assert ask(server, "jobs", {"name": "endless", "request": {}, "page": 3})[0] == 400
    for page in ("a slider moves", "another"):
        for job in server.jobs._jobs.values():
            job.cancelled |= job.page == page
    until(lambda: not running)


def test_a_job_that_nobody_asks_about_stops(monkeypatch):
    monkeypatch.setattr("meancap.explorer.jobs.ABANDONED", 0.1)
    left = []

    def endless(work):
        try:
            while True:
                work.check()
                time.sleep(0.01)
        except Left:
            left.append(True)
            raise

    job = Job(endless, str)
    job.thread.join(60)
    assert left and job.state == "cancelled"


def test_closing_ends_what_is_under_way(monkeypatch):
    begun, ended = [], []

    def endless(request, work):
        begun.append(True)
        try:
            while True:
                work.check()
                time.sleep(0.01)
        finally:
            ended.append(True)

    monkeypatch.setitem(module.ROUTES, "endless", endless)
    with serving() as own:
        link = socket.create_connection(("127.0.0.1", own.port))
        link.sendall((posting(own, "endless") + "Content-Length: 2\r\n\r\n{}").encode())
        ask(own, "jobs", {"name": "endless", "request": {}})
        until(lambda: len(begun) == 2)
    assert len(ended) == 2
    link.close()


def test_a_taken_port_is_a_sentence(server, capsys):
    assert main(["explore", "--no-browser", "--port", str(server.port)]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and f"port {server.port} cannot be used" in said
    assert main(["explore", "--no-browser", "--port", "70000"]) == 2
    assert "65535" in capsys.readouterr().err


@pytest.mark.parametrize("port", [-1, 70000])
def test_a_port_that_is_none_is_refused(port):
    with pytest.raises(ValueError, match="cannot be used"):
        Server(port)


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
