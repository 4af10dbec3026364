"""Worker processes end when their parent ends, whatever ended it.

A run is safe against a kill at any moment, so workers may simply be stopped; without this, a worker whose
parent died would go on for hours.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import parent_process
from threading import Thread, current_thread, main_thread

ENDED = 143  # the exit code of a process that was told to end: 128 + SIGTERM


@contextmanager
def without_interrupts() -> Iterator[None]:
    """Processes that are started in here never hear Ctrl-C, not even while they import: it is the parent's.

    They inherit it from this process, which does not hear it for that moment either.
    """
    if current_thread() is not main_thread():  # only the main thread may change it
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def end_with_parent() -> None:
    """Called once in a process that `multiprocessing` started; does nothing in any other."""
    parent = parent_process()
    if parent is None:
        return

    def follow() -> None:
        parent.join()  # the system closes a pipe when the parent dies, by whatever signal
        os._exit(ENDED)

    Thread(target=follow, daemon=True).start()
