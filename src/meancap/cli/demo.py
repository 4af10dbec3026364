"""`meancap demo`: the shipped model under no guidance, strong guidance and the cap, from the same noise."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from .generate import Commands, bar, need_matplotlib

if TYPE_CHECKING:
    from ..runs.folder import Run

SCALE, GAMMA = 8, 1.1


def add_demo(commands: Commands) -> None:
    p = commands.add_parser(
        "demo",
        help="see what the cap does, on a real model, in a minute or two",
        description="The Fashion-MNIST model without guidance, with strong guidance and with the cap.",
        epilog="example:\n  meancap demo --out demo",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    p.add_argument("--out", type=Path, default=Path("demo"), metavar="DIR", help="folder (demo)")
    p.set_defaults(run=demo)


def demo(args: argparse.Namespace) -> int:
    need_matplotlib("demo")
    import torch

    from ..models.classes import fashion
    from ..report.demo import write_demo
    from ..runs.folder import Run
    from ..runs.generate import class_run, run
    from ..runs.reproduce import score
    from ..sampling import uniform

    torch.set_num_threads(1)
    model = fashion()
    rules = {
        "no guidance": "CFG(1)",
        f"CFG {SCALE}": f"CFG({SCALE})",
        f"CFG {SCALE}, capped at {GAMMA}": f"CFG({SCALE}) | Cap({GAMMA})",
    }
    runs: dict[str, Run] = {}
    for title, rule in rules.items():
        folder = args.out / title.replace(" ", "-").replace(",", "")
        config = class_run(model, rule, per_class=12, times=uniform(32), batch=40, diagnostics=True)
        for _ in bar(run(folder, model, config), config.blocks, title):
            pass
        runs[title] = Run.open(folder)
    score([one.folder for one in runs.values()], "fashion")
    report = write_demo(runs, args.out, model.names)
    print(report.read_text(encoding="utf-8"))
    for path, what in (
        (args.out / "demo.png", "the picture"),
        (args.out / "gallery.html", "every sample"),
        (report, "this page"),
    ):
        print(f"{what:14}{path}")
    return 0
