"""`meancap train`: the recipe of the shipped model, and of others like it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .command import bar

if TYPE_CHECKING:
    import torch

    from ..runs.loop import LogLine, TrainingLoop

    Export = Callable[[Path, torch.dtype], Path]

_EXAMPLES = """\
examples:
  meancap train --data fashion --folder /usr/share/datasets/fashion-mnist --out train/fashion
  meancap train --data cifar10 --folder cifar-10-batches-bin --images 4000000 --width 256 --out train/cifar
  meancap train --folder /usr/share/datasets/fashion-mnist --label-noise 0.3 --out train/noisy
  meancap train scenes --out train/scenes                       the model that reads sentences
  meancap train scenes --wrong 0.2 --start train/scenes/model.safetensors --out train/wrong
  meancap train detector --out train/detector                   what reads its pictures

Give the same command again to go on after a stop. The weights are in OUT/model.safetensors, which
`meancap generate --model sit:OUT/model.safetensors` takes.
"""


def add_train(commands: Any) -> None:
    p = commands.add_parser(
        "train",
        help="train a shipped model again, or one like it",
        description="Train a small flow model: a SiT on a data set, or the model of the scenes.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    p.add_argument("kind", nargs="?", choices=("scenes", "detector"), help="instead of a data set")
    p.add_argument("--data", default="fashion", choices=("fashion", "cifar10"), help="data set (fashion)")
    p.add_argument("--folder", type=Path, metavar="DIR", help="where its files are")
    p.add_argument("--out", required=True, type=Path, metavar="DIR", help="the training folder")
    p.add_argument("--images", type=int, metavar="N", help="how many to see (600000; scenes: 250000)")
    p.add_argument("--width", type=int, default=None, help="of the network (128)")
    p.add_argument("--depth", type=int, default=None, help="of the network (5; scenes: 4)")
    p.add_argument("--batch", type=int, help="images in a step (64; scenes: 32; detector: 128)")
    p.add_argument("--rate", type=float, help="learning rate of the matrices (0.01; scenes: 0.005)")
    p.add_argument("--seed", type=int, default=0, help="of weights and batches (0)")
    p.add_argument("--threads", type=int, default=None, help="CPU threads (all cores)")
    p.add_argument("--wrong", type=float, metavar="P", help="scenes: share of wrong captions (0)")
    p.add_argument("--start", type=Path, metavar="FILE", help="weights to go on from")
    p.add_argument("--label-noise", type=float, metavar="P", help="data sets: share of wrong labels (0)")
    p.add_argument("--store", default="float16", choices=("float32", "float16", "bfloat16"), help=_STORE)
    p.set_defaults(run=train)


_STORE = "precision of the weights in model.safetensors (float16)"


def train(args: argparse.Namespace) -> int:
    import torch

    if args.threads is not None:
        if args.threads < 1:
            raise ValueError(f"--threads must be at least 1; got {args.threads}")
        torch.set_num_threads(args.threads)
    if args.kind == "detector":
        return _detector(args)
    training, export = _scenes(args) if args.kind == "scenes" else _pictures(args)
    try:
        for _ in _shown(training):
            pass
    except KeyboardInterrupt:
        training.save()
        print(
            f"meancap: stopped at step {training.step}; the same command goes on from there", file=sys.stderr
        )
        return 130
    path = export(args.out / "model.safetensors", getattr(torch, args.store))
    print(f"{path}: {training.step} steps, {training.seconds / 60:.0f} minutes")
    return 0


def _pictures(args: argparse.Namespace) -> tuple[TrainingLoop, Export]:
    from ..files import sha256_of
    from ..models.data import DATA
    from ..runs.train import SMALL, TrainConfig, Training

    if args.folder is None:
        raise ValueError(f"give --folder DIR, where the files of {args.data} are")
    _refuse(args, "meancap train scenes", "wrong")
    read, _ = DATA[args.data]
    pictures = read(args.folder)
    _, channels, size, _ = pictures.images.shape
    model = replace(SMALL, size=size, channels=channels, classes=len(pictures.names))
    width = args.width or SMALL.width
    model = replace(model, width=width, depth=args.depth or SMALL.depth, heads=max(1, width // 32))
    images = 600_000 if args.images is None else args.images
    begun = "" if args.start is None else sha256_of(args.start)
    given = _given(args, "batch", "rate", "label_noise")
    config = TrainConfig(images, data=args.data, model=model, seed=args.seed, start=begun, **given)
    training = Training(args.out, config, pictures, args.start)
    return training, lambda path, dtype: training.export(path, dtype, pictures.names)


def _scenes(args: argparse.Namespace) -> tuple[TrainingLoop, Export]:
    from ..files import sha256_of
    from ..runs.train_scenes import SceneTrainConfig, SceneTraining
    from ..scenes.model import SceneNetConfig, load_scene_net

    _refuse(args, "a data set", "folder", "label_noise")
    model = SceneNetConfig(**_given(args, "width", "depth"))
    begun = ""
    if args.start is not None:
        _refuse(args, "a random start; weights bring their own", "width", "depth")
        model, begun = load_scene_net(args.start)[0].config, sha256_of(args.start)
    images = 250_000 if args.images is None else args.images
    config = SceneTrainConfig(
        images, model=model, seed=args.seed, start=begun, **_given(args, "batch", "rate", "wrong")
    )
    training = SceneTraining(args.out, config, args.start)
    return training, training.export


def _detector(args: argparse.Namespace) -> int:
    from ..runs.train_detector import DetectorConfig, run_detector

    _refuse(
        args,
        "models, not the detector",
        "folder",
        "images",
        "width",
        "depth",
        "rate",
        "wrong",
        "start",
        "label_noise",
    )
    config = DetectorConfig(seed=args.seed, **_given(args, "batch"))
    for _ in bar(run_detector(args.out, config), config.steps, "detector", "step"):
        pass
    path = args.out / "scene_detector.json"
    print(path.read_text(encoding="utf-8"), end="")
    return 0


def _given(args: argparse.Namespace, *names: str) -> dict[str, Any]:
    """The options that were given."""
    return {name: getattr(args, name) for name in names if getattr(args, name) is not None}


def _refuse(args: argparse.Namespace, what: str, *names: str) -> None:
    if given := _given(args, *names):
        raise ValueError(f"--{next(iter(given)).replace('_', '-')} goes with {what}")


def _shown(training: TrainingLoop) -> Iterator[LogLine]:
    every = 50
    total = -(-(training.recipe.steps - training.step) // every)
    for row in bar(training.rows(every), total, "train", "log line"):
        if not sys.stderr.isatty():
            print(f"step {row.step}  images {row.images:,}  loss {row.loss:.4f}", file=sys.stderr)
        yield row
