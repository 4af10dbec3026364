"""`meancap rules`: lists every guidance rule, or prints all facts of some."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any


def add_rules(commands: Any) -> None:
    p = commands.add_parser(
        "rules",
        help="list the guidance rules, or say all about one",
        description="Without a name, one line per method: name, space it acts in, how sure we are, title.",
        epilog="example:\n  meancap rules apg mambo_g\n  meancap rules --page docs",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    p.add_argument("names", nargs="*", metavar="NAME", help="a method, such as apg")
    p.add_argument(
        "--page",
        type=Path,
        metavar="DOCS",
        help="write DOCS/rules.md and drawings, figures from DOCS/benchmark",
    )
    p.set_defaults(run=rules)


def rules(args: argparse.Namespace) -> int:
    from ..rules.methods.registry import entry
    from ..rules.text.listing import catalogue_table, entry_text

    if args.page is not None and args.names:
        raise ValueError("--page is the whole catalogue; leave the names out")
    if args.page is not None:
        from ..report.rules_page import write_rules_page

        written = write_rules_page(args.page)
        print(f"{written[0]}, and {len(written) - 1} drawings in {args.page / 'rules'}")
    elif args.names:
        print("\n\n".join(entry_text(e) for e in [entry(name) for name in args.names]))
    else:
        print(catalogue_table())
    return 0
