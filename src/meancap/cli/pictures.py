"""`meancap pictures`: sheets, the meter and a gallery from run folders, without any model."""

from __future__ import annotations

import argparse
from pathlib import Path

from .generate import Commands, need_matplotlib

_EXAMPLE = """\
example:
  meancap pictures runs/none runs/fixed runs/cap --out pictures

Runs stand side by side if they share their seeds and their classes or prompts. Written are sheet.png (rows
are seeds, columns are rules), panels.png (rows are classes), gallery.html, and for runs made with
--diagnostics mechanism.png and meter.png.
"""


def add_pictures(commands: Commands) -> None:
    p = commands.add_parser(
        "pictures",
        help="matched sheets, the guidance meter and a gallery from runs",
        description="Draw finished runs side by side.",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    p.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="finished run folders")
    p.add_argument("--out", required=True, type=Path, metavar="DIR", help="where to put the pictures")
    p.add_argument("--rows", type=int, default=10, metavar="N", help="samples in the sheet (10)")
    p.add_argument("--gallery", type=int, default=40, metavar="N", help="samples in the gallery (40)")
    p.set_defaults(run=pictures)


def pictures(args: argparse.Namespace) -> int:
    need_matplotlib("pictures")
    from ..report.pictures import draw_all
    from ..runs.folder import Run

    if args.rows < 1 or args.gallery < 1:
        raise ValueError("--rows and --gallery must be at least 1")
    for path in draw_all([Run.open(path) for path in args.runs], args.out, args.rows, args.gallery):
        print(path)
    return 0
