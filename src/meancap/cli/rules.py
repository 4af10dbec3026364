"""`meancap rules`: lists every guidance rule, or prints all facts of some."""

from __future__ import annotations

import argparse
from typing import Any


def add_rules(commands: Any) -> None:
    p = commands.add_parser(
        "rules",
        help="list the guidance rules, or say all about one",
        description="Without a name, one line per method: name, space it acts in, how sure we are, title.",
        epilog="example:\n  meancap rules apg mambo_g\n  meancap rules --page > docs/rules.md",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    p.add_argument("names", nargs="*", metavar="NAME", help="a method, such as apg")
    p.add_argument("--page", action="store_true", help="the whole catalogue as Markdown")
    p.set_defaults(run=rules)


def rules(args: argparse.Namespace) -> int:
    from ..rules.methods.registry import entry
    from ..rules.text.listing import catalogue_table, entry_text, page

    if args.page and args.names:
        raise ValueError("--page is the whole catalogue; leave the names out")
    if args.page:
        print(page(), end="")
    elif args.names:
        print("\n\n".join(entry_text(e) for e in [entry(name) for name in args.names]))
    else:
        print(catalogue_table())
    return 0
