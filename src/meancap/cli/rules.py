"""`meancap rules`: lists every guidance rule, or prints the fact sheets of some."""

from __future__ import annotations

import argparse
from typing import Any


def add_rules(commands: Any) -> None:
    p = commands.add_parser(
        "rules",
        help="list the guidance rules, or say all about one",
        description="Without a name, one line per method: name, space it acts in, how sure we are, title. "
        "With a word that is no name, the methods whose name, family or fact sheet has it.",
        epilog="example:\n  meancap rules apg mambo_g\n  meancap rules cap",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    p.add_argument("names", nargs="*", metavar="NAME", help="a method, such as apg, or a word to search for")
    p.set_defaults(run=rules)


def rules(args: argparse.Namespace) -> int:
    from ..rules.catalogue import catalogue_table, entry, entry_text, search

    sheets = []
    for name in args.names:
        try:
            sheets.append(entry_text(entry(name)))
        except ValueError:
            if not (matches := search(name)):
                raise
            sheets.append(catalogue_table(matches))
    print("\n\n".join(sheets) if sheets else catalogue_table())
    return 0
