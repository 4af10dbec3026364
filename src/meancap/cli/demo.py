"""`meancap demo`: the shipped models under no guidance, strong guidance and the cap, from the same noise."""

from __future__ import annotations

import argparse
from pathlib import Path

from .generate import Commands, need_matplotlib
from .progress import bar


def add_demo(commands: Commands) -> None:
    p = commands.add_parser(
        "demo",
        help="see what the cap does, on a real model, in a minute or two",
        description="The shipped models without guidance, with strong guidance and with the cap.",
        epilog="example:\n  meancap demo --out demo",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    p.add_argument("--out", type=Path, default=Path("demo"), metavar="DIR", help="folder (demo)")
    p.set_defaults(run=demo)


def demo(args: argparse.Namespace) -> int:
    need_matplotlib("demo")
    import torch

    from ..models.data import FASHION
    from ..report.demo import write_demo
    from ..runs.reproduce import BLOCKS, make_demo, open_demo, open_scenes

    torch.set_num_threads(1)
    for _ in bar(make_demo(args.out), BLOCKS, "demo"):
        pass
    report = write_demo(open_demo(args.out), open_scenes(args.out), args.out, FASHION)
    print(report.read_text(encoding="utf-8"))
    for path, what in (
        (args.out / "demo.png", "the picture"),
        (args.out / "gallery.html", "every sample"),
        (report, "this page"),
    ):
        print(f"{what:14}{path}")
    return 0
