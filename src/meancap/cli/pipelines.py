"""`meancap pipelines`: which diffusers pipelines can be guided, and how each lays out its predictions."""

from __future__ import annotations

import argparse
from typing import Any

Commands = Any  # argparse's sub-parsers, whose type has no public name

_EXAMPLES = """\
examples:
  meancap pipelines                what `guided` from meancap.adapters.diffusers supports
  meancap pipelines --markdown     the same as a Markdown table

c is the conditional prediction, u the unconditional one, p a perturbed one; s is the pipeline's own scale and
λ the scale of classifier-free guidance that it means. This package's tests run every pipeline of the list
with random weights; a layout is checked against the pipeline's own result at the first step of a run.
"""


def add_pipelines(commands: Commands) -> None:
    p = commands.add_parser(
        "pipelines", help="list the diffusers pipelines that can be guided", epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    p.add_argument("--markdown", action="store_true", help="print a Markdown table")
    p.set_defaults(run=pipelines)


def pipelines(args: argparse.Namespace) -> int:
    from ..adapters.diffusers.pipeline_table import table_markdown, table_text

    print(table_markdown() if args.markdown else table_text())
    return 0
