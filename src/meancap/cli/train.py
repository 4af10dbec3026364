"""`meancap train`: the recipe of the shipped model, and of others like it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from .generate import Commands, bar

_EXAMPLES = """\
examples:
  meancap train --data fashion --folder /usr/share/datasets/fashion-mnist --out train/fashion
  meancap train --data cifar10 --folder cifar-10-batches-bin --images 4000000 --width 256 --out train/cifar

Give the same command again to go on after a stop. The weights are in OUT/model.safetensors, which
`meancap generate --model sit:OUT/model.safetensors` takes.
"""


def add_train(commands: Commands) -> None:
    p = commands.add_parser(
        "train",
        help="train a small SiT on Fashion-MNIST or CIFAR-10",
        description="Train a small SiT by flow matching, with class dropout and averaged weights.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    p.add_argument("--data", default="fashion", choices=("fashion", "cifar10"), help="data set (fashion)")
    p.add_argument("--folder", required=True, type=Path, metavar="DIR", help="where its files are")
    p.add_argument("--out", required=True, type=Path, metavar="DIR", help="the training folder")
    p.add_argument("--images", type=int, default=600_000, metavar="N", help="how many to see (600000)")
    p.add_argument("--width", type=int, default=None, help="of the network (128)")
    p.add_argument("--depth", type=int, default=None, help="of the network (5)")
    p.add_argument("--batch", type=int, default=64, help="images in a step (64)")
    p.add_argument("--rate", type=float, default=0.01, help="learning rate of the matrices (0.01)")
    p.add_argument("--seed", type=int, default=0, help="of weights and batches (0)")
    p.add_argument("--threads", type=int, default=None, help="CPU threads (all cores)")
    p.add_argument("--store", default="float16", choices=("float32", "float16", "bfloat16"), help=_STORE)
    p.set_defaults(run=train)


_STORE = "precision of the weights in model.safetensors (float16)"


def train(args: argparse.Namespace) -> int:
    import torch

    from ..models.data import DATA
    from ..runs.train import TrainConfig, Training, small_model

    if args.threads is not None:
        if args.threads < 1:
            raise ValueError(f"--threads must be at least 1; got {args.threads}")
        torch.set_num_threads(args.threads)
    read, _ = DATA[args.data]
    pictures = read(args.folder)
    model = small_model(pictures, args.width, args.depth)
    config = TrainConfig(
        args.images, data=args.data, model=model, batch=args.batch, rate=args.rate, seed=args.seed
    )
    training = Training(args.out, config, pictures)
    try:
        for _ in _shown(training):
            pass
    except KeyboardInterrupt:
        training.save()
        print(
            f"meancap: stopped at step {training.step}; the same command goes on from there", file=sys.stderr
        )
        return 130
    path = training.export(args.out / "model.safetensors", getattr(torch, args.store), pictures.names)
    print(f"{path}: {training.step} steps, {training.seconds / 60:.0f} minutes")
    return 0


def _shown(training: object) -> Iterator[object]:
    from ..runs.train import Training

    assert isinstance(training, Training)
    every = 50
    total = -(-(training.config.steps - training.step) // every)
    for row in bar(training.rows(every), total, "train", "log line"):
        if not sys.stderr.isatty():
            print(f"step {row.step}  images {row.images:,}  loss {row.loss:.4f}", file=sys.stderr)
        yield row
