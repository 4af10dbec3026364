"""Progress on stderr: tqdm's bar if it is installed, nothing otherwise."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

T = TypeVar("T")


class _NoBar:
    """Takes what a command tells a bar, and shows nothing."""

    n, total = 0, 0

    def update(self, count: float = 1) -> None:
        pass

    def set_postfix_str(self, text: str, refresh: bool = True) -> None:
        pass


@contextmanager
def progress(total: int | None, name: str = "", unit: str = "it", **look: Any) -> Iterator[Any]:
    """A bar that the block updates itself; none if there is nothing to do. `look` are options of tqdm."""
    try:
        from tqdm import tqdm  # type: ignore[import-untyped,unused-ignore]
    except ImportError:
        yield _NoBar()
        return
    where = {"file": sys.stderr, "leave": False, "disable": total == 0}
    with tqdm(total=total, desc=name, unit=unit, **where, **look) as line:
        yield line


def bar(steps: Iterable[T], total: int | None, name: str, unit: str = "block") -> Iterator[T]:
    """The steps, with a bar that counts them."""
    with progress(total, name, unit) as line:
        for step in steps:
            yield step
            line.update()
