"""Worker processes end when their parent ends, whatever ended it.

A run is safe against a kill at any moment, so workers may simply be stopped; without this, a worker whose
parent died would go on for hours.
"""

from __future__ import annotations

import os
from multiprocessing import parent_process
from threading import Thread

ENDED = 143  # the exit code of a process that was told to end: 128 + SIGTERM


def end_with_parent() -> None:
    """Called once in a process that `multiprocessing` started; does nothing in any other."""
    parent = parent_process()
    if parent is None:
        return

    def follow() -> None:
        parent.join()  # the system closes a pipe when the parent dies, by whatever signal
        os._exit(ENDED)

    Thread(target=follow, daemon=True).start()
