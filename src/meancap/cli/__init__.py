"""The command line: parse and print, nothing more.

Each command has a module here with a function `add_NAME(commands)` that adds its parser and sets `run`, a
function of the parsed options that returns an exit code. Modules import what they need inside `run`, so that
`--help` is quick. Bad input is one sentence on stderr and exit code 2.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from .. import __version__
from .bench import add_bench
from .calibrate import add_calibrate
from .demo import add_demo
from .explore import add_explore
from .generate import add_generate
from .pictures import add_pictures
from .pipelines import add_pipelines
from .report import add_report
from .reproduce import add_reproduce
from .rules import add_rules
from .score import add_score
from .train import add_train
from .weights import add_weights

# Every command, in the order of `meancap --help`.
COMMANDS: tuple[Callable[[Any], None], ...] = (
    add_generate,
    add_score,
    add_weights,
    add_report,
    add_reproduce,
    add_train,
    add_pictures,
    add_pipelines,
    add_rules,
    add_bench,
    add_calibrate,
    add_demo,
    add_explore,
)


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one sentence, without the usage lines; sub-commands inherit it."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n")


def parser() -> argparse.ArgumentParser:
    top = Parser(
        prog="meancap",
        description="Guidance for flow-matching models.",
        epilog="example:\n  meancap reproduce gmm --out out/gmm",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action="version", version=f"meancap {__version__}")
    commands = top.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for add in COMMANDS:
        add(commands)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; returns its exit code."""
    options = parser().parse_args(argv)
    try:
        code = int(options.run(options) or 0)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # The reader of the pipe, such as `head`, has closed it; Python must not write the rest when it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (ValueError, OSError, ImportError) as error:
        print(f"meancap: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("meancap: stopped; what was finished is kept", file=sys.stderr)
        return 130
