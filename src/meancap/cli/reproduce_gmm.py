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
    p.set_defaults(run=_reproduce_gmm)


def _reproduce_gmm(args: argparse.Namespace) -> int:
    import torch

    try:
        from ..gmm.experiment import count_stages, stages
        from ..gmm.figures import FIGURES
        from ..gmm.report import table_text, write_report
        from ..gmm.settings import GMMConfig
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f'reproduce gmm needs {error.name}: pip install "meancap[report]"', name=error.name
        ) from None

    # A block of samples fits the cache of one core; threads that share it only wait for each other.
    torch.set_num_threads(1)
    config = GMMConfig(args.samples, args.seed, args.repeats)
    look = "{l_bar}{bar:30}| {elapsed}<{remaining} {postfix}"
    with progress(count_stages(config) + 2 * len(FIGURES) + 2, bar_format=look) as bar:
        for stage in stages(config, args.out):
            bar.set_postfix_str(stage, refresh=False)
            bar.update()
        for path in write_report(args.out):
            bar.set_postfix_str(path.name, refresh=False)
            bar.update()
    print(table_text(args.out))
    print(
        f"\n{args.out / 'report.html'}   the report, with figures\n{args.out / 'table.csv'}     every number"
    )
    return 0
