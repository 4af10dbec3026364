"""The command line: parse and print, nothing more.

Each command has a function `add_NAME(commands)` that adds its parser and sets `run`, a function of the parsed
options that returns an exit code. Modules import what they need inside `run`, so that `--help` is quick. Bad
input is one sentence on stderr and exit code 2.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from meancap import __version__

from .lab_commands import add_bench, add_calibrate, add_conformance
from .run_commands import add_generate, add_prompts, add_reproduce
from .score_commands import add_demo, add_pictures, add_report, add_score, add_weights
from .show_commands import add_audit, add_explore, add_pipelines, add_rules

# Every command, in the order of `meancap --help`.
COMMANDS: tuple[Callable[[Any], None], ...] = (
    add_generate,
    add_score,
    add_weights,
    add_report,
    add_reproduce,
    add_prompts,
    add_pictures,
    add_pipelines,
    add_audit,
    add_rules,
    add_bench,
    add_calibrate,
    add_conformance,
    add_demo,
    add_explore,
)


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one sentence, without the usage lines; sub-commands inherit it."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n")


def parser() -> argparse.ArgumentParser:
    top = _Parser(
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
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the shell, as in `meancap rules >&-`
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115
    try:
        options = parser().parse_args(argv)
        _check_out(getattr(options, "out", None), getattr(options, "out_is_file", False))
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


def _check_out(out: Path | None, out_is_file: bool) -> None:
    if out is not None and out.is_file() and not out_is_file:
        raise ValueError(f"--out {out} is a file; give a folder")
    if out is not None and out.is_symlink() and not out.exists():
        raise ValueError(
            f"--out {out} is a link to {out.readlink()}, which does not exist; make it or give another folder"
        )
