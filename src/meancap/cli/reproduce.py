"""`meancap reproduce KIND`: an experiment of the paper, from one command."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from .reproduce_gmm import add_gmm
from .reproduce_images import add_fashion, add_imagenet, add_sd35

# Every kind, in the order of `meancap reproduce --help`; each function adds its parser and sets `run`.
KINDS: tuple[Callable[[Any], None], ...] = (add_gmm, add_imagenet, add_sd35, add_fashion)


def add_reproduce(commands: Any) -> None:
    p = commands.add_parser(
        "reproduce",
        help="run an experiment of the paper",
        epilog="example:\n  meancap reproduce gmm --out out/gmm",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    kinds = p.add_subparsers(title="experiments", metavar="KIND", required=True)
    for add in KINDS:
        add(kinds)
