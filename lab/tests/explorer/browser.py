"""A server in a thread, a headless Chromium, and pages that may say nothing on the console.

Chromium is the system's (`CHROMIUM` names another); none is ever downloaded. Where it or playwright is
missing, what needs it says "not run".
"""

import http.client
import json
import os
import shutil
import threading
import time
from contextlib import contextmanager

import pytest

READY = '.mixture[data-busy="false"]'
PATIENCE = 60_000  # milliseconds; a loaded machine is slow, and a page that hangs is found anyway


def chromium():
    """Where Chromium is, or None."""
    given = os.environ.get("CHROMIUM")
    names = [given] if given else ["chromium", "chromium-browser", "google-chrome"]
    return next(filter(None, map(shutil.which, names)), None)


@contextmanager
def serving(port=0):
    from meancap_lab.explorer.server import Server

    server = Server(port)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.should_exit = True
        thread.join(30)
        assert not thread.is_alive(), "the server did not end"


@contextmanager
def browsing():
    """A browser, or a skip that says why there is none."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        pytest.skip("not run: playwright is not installed (pip install playwright)")
    found = chromium()
    if found is None:
        pytest.skip("not run: no Chromium here; install it, or name it in CHROMIUM")
    with sync_playwright() as driver:
        root = hasattr(os, "geteuid") and os.geteuid() == 0
        browser = driver.chromium.launch(executable_path=found, args=["--no-sandbox"] if root else [])
        try:
            yield browser
        finally:
            browser.close()


class Tab:
    """One page with everything it complained about, and every address it asked for."""

    def __init__(self, browser, url, **options):
        self.url, self.said, self.asked = url, [], []
        self.refusals = False  # whether the page asks for what is refused, which Chromium reports each time
        self.context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
        self.context.set_default_timeout(PATIENCE)
        self.page = self.context.new_page()
        self.page.on(
            # Not warnings: those are the browser's own, and every version has others.
            "console",
            lambda m: self.said.append(f"{m.text} {m.location['url']}") if m.type == "error" else None,
        )
        self.page.on("pageerror", lambda e: self.said.append(str(e)))
        self.page.on("request", lambda r: self.asked.append(r.url))

    def open(self, link="", ready=READY):
        self.page.goto(self.url + link)
        self.page.wait_for_selector(ready)
        return self.page

    def rest(self):
        """Waits until all that was asked for is shown."""
        self.page.wait_for_selector(READY)

    def close(self):
        self.context.close()
        said = [one for one in self.said if not (self.refusals and "status of 400" in one)]
        assert said == [], said
        assert all(one.startswith((self.url, "data:", "blob:")) for one in self.asked)


def ask(server, name, request, **headers):
    """One POST: status and the JSON that came back."""
    link = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    body = request if isinstance(request, (str, bytes)) else json.dumps(request)
    link.request("POST", f"/api/{name}", body, {"Content-Type": "application/json", **headers})
    answer = link.getresponse()
    found = answer.status, json.loads(answer.read())
    link.close()
    return found


def until(true, seconds=PATIENCE / 1000):
    """Waits for something to become true."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.02)
