"""`meancap reproduce gmm`: the paper's mixture table and figures."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from .command import progress

_EXAMPLE = """\
example:
  meancap reproduce gmm --out out/gmm                   the table of the paper and its figures, half a minute
  meancap reproduce gmm --out out/gmm20 --repeats 20    means and standard deviations instead of one draw

DIR gets table.csv, report.html, report.md, figures/ (PNG and SVG), data/ and run.json. The same command in
the same folder goes on after a stop; a folder with another configuration is refused.
"""


def add_gmm(kinds: Any) -> None:
    p = kinds.add_parser(
        "gmm",
        help="the analytic mixture: the paper's first table and its figures",
        description="Run the nine settings of the paper's mixture table again and compare.",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    p.add_argument("--out", required=True, type=Path, metavar="DIR", help="the run folder")
    p.add_argument(
        "--samples", type=int, default=200_000, metavar="N", help="in each row (200000, as in the paper)"
    )
    p.add_argument("--seed", type=int, default=0, help="of all noise (0)")
    p.add_argument("--repeats", type=int, default=1, metavar="N", help="independent draws of the table (1)")
    p.set_defaults(run=gmm)


def gmm(args: argparse.Namespace) -> int:
    import torch

    try:
        from ..report.gmm import FIGURES, write_report
        from ..runs.gmm import GMMConfig, Result, count_stages, stages
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f'reproduce gmm needs {error.name}: pip install "meancap[report]"', name=error.name
        ) from None

    # A block of samples fits the cache of one core; threads that share it only wait for each other.
    torch.set_num_threads(1)
    config = GMMConfig(args.samples, args.seed, args.repeats)
    table: list[dict[str, str]] = []
    look = "{l_bar}{bar:30}| {elapsed}<{remaining} {postfix}"
    with progress(count_stages(config) + 2 * len(FIGURES) + 2, bar_format=look) as bar:
        for stage in stages(config, args.out):
            table = stage.table if isinstance(stage, Result) else table
            bar.set_postfix_str("" if isinstance(stage, Result) else stage, refresh=False)
            bar.update()
        for path in write_report(args.out):
            bar.set_postfix_str(path.name, refresh=False)
            bar.update()
    print(_shown(table))
    print(
        f"\n{args.out / 'report.html'}   the report, with figures\n{args.out / 'table.csv'}     every number"
    )
    return 0


_DIGITS = {"occupancy_percent": 2, "variance_ratio": 3, "tv": 5, "mean_error": 5}
_HEADS = ("occupancy %", "variance ratio", "TV", "mean error")


def _shown(table: list[dict[str, str]]) -> str:
    """Ours beside the paper's, and the largest |z| of each row."""
    lines = [["A", "guidance", "", *_HEADS, "largest |z|"]]
    for row in table:
        z = [abs(float(v)) for metric in _DIGITS for v in row[f"z_{metric}"].split("/")]
        ours, paper = ([_few(row[before + m], d) for m, d in _DIGITS.items()] for before in ("", "paper_"))
        lines.append([row["members"], row["guidance"], "ours", *ours, f"{max(z):.1f}"])
        lines.append(["", "", "paper", *paper, ""])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def _few(cell: str, digits: int) -> str:
    return " / ".join(f"{float(v):.{digits}f}" for v in cell.split("/"))
