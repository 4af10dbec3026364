"""`meancap report`: all scored runs of a folder on one page."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any


def add_report(commands: Any) -> None:
    p = commands.add_parser(
        "report",
        help="put scored runs together: tables, fronts, a page",
        description="Writes report.html, report.md, scores.csv and figures/ into the folder of the runs.",
        epilog="example:\n  meancap score out/fashion/* --protocol fashion\n  meancap report out/fashion",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    p.add_argument("folder", type=Path, metavar="DIR", help="a folder of scored runs")
    p.set_defaults(run=report)


def report(args: argparse.Namespace) -> int:
    if not args.folder.is_dir():
        raise ValueError(f"there is no folder {args.folder}")
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise ImportError(f'a report needs matplotlib: pip install "meancap[report]" ({error})') from error
    from ..report.scores import write_report

    for path in write_report(args.folder):
        print(path)
    return 0
