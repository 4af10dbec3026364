"""What all commands share: how their parsers are added, and progress on stderr."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from ..runs.processes import launched

T = TypeVar("T")


def add_command(
    commands: Any, name: str, run: Callable[[argparse.Namespace], int], about: str, examples: str
) -> argparse.ArgumentParser:
    """Adds a command whose help ends with `examples`, and returns its parser; `commands` are sub-parsers."""
    p: argparse.ArgumentParser = commands.add_parser(
        name,
        help=about,
        description=f"{about[0].upper()}{about[1:]}.",
        epilog=f"examples:\n{examples}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    p.set_defaults(run=run)
    return p


class _NoBar:
    """Accepts the calls of a progress bar and shows nothing."""

    n, total = 0, 0

    def update(self, count: float = 1) -> None:
        pass

    def set_postfix_str(self, text: str, refresh: bool = True) -> None:
        pass


@contextmanager
def progress(total: int | None, name: str = "", unit: str = "it", **look: Any) -> Iterator[Any]:
    """tqdm's bar, if it is installed, for the block to update; none if there is nothing to do."""
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


def unfinished(what: object, state: str, rank: int, world: int) -> int:
    """Prints what is missing; returns the exit code, which is 0 if a launcher watches the other processes."""
    print(
        f"meancap: {what} is unfinished: {state}, none of process {rank} of {world}; if the other processes "
        "have ended, rerun the command",
        file=sys.stderr,
    )
    return 0 if launched() else 1
