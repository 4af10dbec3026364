"""`meancap rules` and `meancap pipelines`: what the package knows, printed."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from .command import add_command

_RULES = """\
  meancap rules                    one line per method: name, space it acts in, how sure we are, title
  meancap rules apg mambo_g        all facts of these
  meancap rules --page docs        write docs/rules.md and its drawings
"""
_PIPELINES = """\
  meancap pipelines                what `guided` from meancap.adapters.diffusers supports
  meancap pipelines --markdown     the same as a Markdown table

c is the conditional prediction, u the unconditional one, p a perturbed one; s is the pipeline's own scale and
λ the scale of classifier-free guidance that it means. This package's tests run every pipeline of the list
with random weights; a layout is checked against the pipeline's own result at the first step of a run.
"""


def add_rules(commands: Any) -> None:
    p = add_command(commands, "rules", rules, "list the guidance rules, or print all facts of some", _RULES)
    p.add_argument("names", nargs="*", metavar="NAME", help="a method, such as apg")
    p.add_argument(
        "--page",
        type=Path,
        metavar="DOCS",
        help="write DOCS/rules.md and drawings, figures from DOCS/benchmark",
    )


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


def add_pipelines(commands: Any) -> None:
    p = add_command(
        commands, "pipelines", pipelines, "list the diffusers pipelines that can be guided", _PIPELINES
    )
    p.add_argument("--markdown", action="store_true", help="print a Markdown table")


def pipelines(args: argparse.Namespace) -> int:
    from ..adapters.diffusers.listing import markdown, text

    print(markdown() if args.markdown else text())
    return 0
