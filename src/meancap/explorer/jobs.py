"""Work in progress: it reports how far it is, and it stops when the client no longer waits.

Work   what a route is given beside its request: `tell` reports progress, `check` tests that the client waits
Left   raised by both when the client left or cancelled; a route does not catch it
Jobs   work in the background, asked about by an id that cannot be guessed
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

ABANDONED = 15.0  # seconds without a question, after which a job is cancelled
RUNNING, KEPT = 2, 8
PATIENCE = 20.0  # seconds that a job waits for one of the running to end

# Errors whose text is shown to the user as it is, and errors that are faults of the server.
SENTENCES = (ValueError, TypeError, ImportError)
_OURS = (ArithmeticError, AssertionError, AttributeError, LookupError, MemoryError, OSError, RuntimeError)
FAULTS = (*SENTENCES, *_OURS)

Route = Callable[[Mapping[str, Any], "Work"], Any]


class Left(Exception):
    """The client no longer waits for this work."""


class Busy(Exception):
    """The machine is busy; the text says so."""


class Work:
    """One piece of work, which goes on while `wanted` says that the client waits."""

    def __init__(self, wanted: Callable[[], bool] = lambda: True) -> None:
        self.wanted = wanted
        self.share, self.said, self.partial = 0.0, "", None

    def check(self) -> None:
        """Raises Left if the client has left; call it a few times a second."""
        if not self.wanted():
            raise Left

    def tell(self, share: float, said: str = "", partial: Any = None) -> None:
        """Progress in [0, 1], a few words about it, and what can be shown already."""
        self.check()
        self.share, self.said = min(max(share, 0.0), 1.0), said
        if partial is not None:
            self.partial = partial


class Job:
    """A route that runs in a thread of its own until it ends, is cancelled or forgotten."""

    def __init__(
        self, run: Callable[[Work], Any], failed: Callable[[BaseException], str], page: str = ""
    ) -> None:
        self.id, self.page = secrets.token_urlsafe(12), page
        self.asked, self.cancelled = time.monotonic(), False
        self.state, self.result, self.error = "running", None, ""
        self.work = Work(lambda: not self.cancelled and time.monotonic() - self.asked < ABANDONED)
        self._run, self._failed = run, failed
        self.thread = threading.Thread(target=self._go, daemon=True, name=f"job {self.id}")
        self.thread.start()

    def _go(self) -> None:
        try:
            self.result = self._run(self.work)
            self.state = "done"
        except Left:
            self.state = "cancelled"
        except FAULTS as error:
            self.error = self._failed(error)
            self.state = "failed"
        finally:  # after any other exception the page must not wait for ever
            if self.state == "running":
                self.state, self.error = "failed", "the work ended by itself; see the terminal"

    def report(self) -> dict[str, Any]:
        """What the page is told; asking keeps the job alive."""
        self.asked = time.monotonic()
        seen: dict[str, Any] = {"state": self.state, "share": self.work.share, "said": self.work.said}
        if self.state == "done":
            return {**seen, "result": self.result}
        if self.state == "failed":
            return {**seen, "error": self.error}
        return seen if self.work.partial is None else {**seen, "partial": self.work.partial}


class Jobs:
    """The jobs of one server: a few at a time, and the latest results."""

    def __init__(self) -> None:
        self._jobs: dict[str, Job] = {}
        self._lock = threading.Lock()

    def start(
        self,
        run: Callable[[Work], Any],
        failed: Callable[[BaseException], str],
        page: str = "",
        wanted: Callable[[], bool] = lambda: True,
    ) -> str:
        """The id of a new job, as soon as there is room for it and while it is `wanted`.

        A page that names itself has one job: the earlier ones are cancelled, also those whose id it did
        not receive because it moved on before the answer came.
        """
        end = time.monotonic() + PATIENCE
        while (job := self._begin(run, failed, page)) is None:
            if not wanted():
                raise Left
            if time.monotonic() > end:
                raise Busy(f"{RUNNING} jobs are running already; wait for one to end, or cancel it")
            time.sleep(0.02)
        return job

    def _begin(
        self, run: Callable[[Work], Any], failed: Callable[[BaseException], str], page: str
    ) -> str | None:
        with self._lock:
            running = [job for job in self._jobs.values() if job.state == "running"]
            for job in running:
                job.cancelled |= bool(page) and job.page == page
            if len(running) >= RUNNING:  # a cancelled job needs a moment to stop
                return None
            for old in [job for job in self._jobs.values() if job.state != "running"][: -KEPT + 1]:
                del self._jobs[old.id]
            job = Job(run, failed, page)
            self._jobs[job.id] = job
            return job.id

    def report(self, name: str) -> dict[str, Any]:
        return self._find(name).report()

    def cancel(self, name: str) -> None:
        self._find(name).cancelled = True

    def close(self, seconds: float = 10.0) -> None:
        """Cancels all jobs and waits until they stop."""
        for job in list(self._jobs.values()):
            job.cancelled = True
        for job in list(self._jobs.values()):
            job.thread.join(seconds)

    def _find(self, name: str) -> Job:
        with self._lock:
            if name not in self._jobs:
                raise ValueError("there is no such job; it has ended and its result was dropped")
            return self._jobs[name]
