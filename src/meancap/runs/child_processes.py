"""Processes that help another one end with it, however it ended.

A run is safe against a kill at any moment, so they need no farewell; but a process that nobody waits for
would go on for hours, unseen.
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
