"""`meancap rules` and `meancap pipelines`: what the package knows, printed."""

from __future__ import annotations

import argparse
from typing import Any

from .command import add_command

_RULES = """\
  meancap rules                    one line per method: name, space it acts in, how sure we are, title
  meancap rules apg mambo_g        the fact sheets of these
  meancap rules cap                methods whose name, family or fact sheet has this word
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
    p.add_argument("names", nargs="*", metavar="NAME", help="a method, such as apg, or a word to search for")


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


def add_pipelines(commands: Any) -> None:
    p = add_command(
        commands, "pipelines", pipelines, "list the diffusers pipelines that can be guided", _PIPELINES
    )
    p.add_argument("--markdown", action="store_true", help="print a Markdown table")


def pipelines(args: argparse.Namespace) -> int:
    from ..adapters.diffusers.pipeline_table import table_markdown, table_text

    print(table_markdown() if args.markdown else table_text())
    return 0
