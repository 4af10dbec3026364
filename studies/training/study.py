"""Train the networks that come with the package, or networks like them.

    fashion      the small SiT, on Fashion-MNIST; some of its labels may be wrong
    scenes       the model that reads sentences, on pictures drawn on the way
    detector     what reads the pictures of the scenes
    classifier   what scores garments, with the reference of the `fashion` protocol

The weights are in OUT/model.safetensors, beside log.jsonl and loss.png. `meancap generate --model sit:FILE`
takes those of `fashion`. The same command in the same folder resumes after a stop.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from meancap.files import sha256_of
from meancap.models.data import fashion
from meancap.report.style import BLUE, COLUMN, look, panels, save_png
from meancap.scenes import SceneNetConfig, load_scene_net

from .classifier import run_classifier
from .detector import DetectorConfig, run_detector
from .garments import SMALL, TrainConfig, Training
from .loop import LogLine, TrainingLoop, read_log
from .scenes import SceneTrainConfig, SceneTraining

Export = Callable[[Path, torch.dtype], Path]
EXAMPLE = """\
examples:
  python -m studies.training fashion --folder /usr/share/datasets/fashion-mnist --out train/fashion
  python -m studies.training fashion --folder DIR --label-noise 0.3 --out train/noisy
  python -m studies.training scenes --out train/scenes
  python -m studies.training scenes --wrong 0.2 --start train/scenes/model.safetensors --out train/wrong
  python -m studies.training detector --out train/detector
"""


def parser() -> argparse.ArgumentParser:
    as_written = argparse.RawDescriptionHelpFormatter
    top = argparse.ArgumentParser(
        prog="python -m studies.training", description=__doc__, epilog=EXAMPLE, formatter_class=as_written
    )
    kinds = top.add_subparsers(metavar="NETWORK", required=True)

    def add(name: str, about: str, run: Callable[[argparse.Namespace], Path]) -> argparse.ArgumentParser:
        p = kinds.add_parser(name, help=about, description=about)
        p.add_argument("--out", required=True, type=Path, metavar="DIR", help="the training folder")
        p.add_argument("--seed", type=int, default=0, help="of weights and batches (0)")
        p.add_argument("--threads", type=int, help="CPU threads (all cores)")
        p.set_defaults(run=run)
        return p

    def add_recipe(p: argparse.ArgumentParser, images: int) -> None:
        p.add_argument("--images", type=int, default=images, metavar="N", help=f"how many to see ({images})")
        for name in ("width", "depth", "batch"):
            p.add_argument(f"--{name}", type=int, metavar="N", help=f"{name}, other than the recipe's")
        p.add_argument("--rate", type=float, help="learning rate of the matrices, other than the recipe's")
        p.add_argument("--start", type=Path, metavar="FILE", help="weights to start from")
        kinds = ("float32", "float16", "bfloat16")
        p.add_argument("--store", default="float16", choices=kinds, help="precision of the file (float16)")

    p = add("fashion", "a SiT on Fashion-MNIST", train_garments)
    p.add_argument("--folder", required=True, type=Path, metavar="DIR", help="the files of Fashion-MNIST")
    p.add_argument("--label-noise", type=float, metavar="P", help="share of wrong labels (0)")
    add_recipe(p, 600_000)
    p = add("scenes", "the model that reads sentences", train_scenes)
    p.add_argument("--wrong", type=float, metavar="P", help="share of wrong captions (0)")
    add_recipe(p, 250_000)
    p = add("detector", "what reads the pictures of the scenes", train_detector)
    p.add_argument("--steps", type=int, default=3000, metavar="N", help="of 128 renders each (3000)")
    p = add("classifier", "what scores garments", lambda args: run_classifier(args.folder, args.out))
    p.add_argument("--folder", required=True, type=Path, metavar="DIR", help="the files of Fashion-MNIST")
    return top


def main(argv: Sequence[str] | None = None) -> None:
    args = parser().parse_args(argv)
    if args.threads is not None:
        torch.set_num_threads(args.threads)
    print(args.run(args))


def train_garments(args: argparse.Namespace) -> Path:
    pictures = fashion(args.folder)
    _, channels, size, _ = pictures.images.shape
    width = args.width or SMALL.width
    model = replace(
        SMALL, size=size, channels=channels, classes=len(pictures.names), width=width,
        depth=args.depth or SMALL.depth, heads=max(1, width // 32),
    )  # fmt: skip
    begun = "" if args.start is None else sha256_of(args.start)
    given = _given(args, "batch", "rate", "label_noise")
    config = TrainConfig(args.images, data=args.data, model=model, seed=args.seed, start=begun, **given)
    training = Training(args.out, config, pictures, args.start)
    return _run(training, args, lambda path, dtype: training.export(path, dtype, pictures.names))


def train_scenes(args: argparse.Namespace) -> Path:
    model, begun = SceneNetConfig(**_given(args, "width", "depth")), ""
    if args.start is not None:
        model, begun = load_scene_net(args.start)[0].config, sha256_of(args.start)
    given = _given(args, "batch", "rate", "wrong")
    config = SceneTrainConfig(args.images, model=model, seed=args.seed, start=begun, **given)
    training = SceneTraining(args.out, config, args.start)
    return _run(training, args, training.export)


def train_detector(args: argparse.Namespace) -> Path:
    return run_detector(args.out, DetectorConfig(args.steps, seed=args.seed))


def _run(
    training: TrainingLoop, args: argparse.Namespace, export: Callable[[Path, torch.dtype], Path]
) -> Path:
    try:
        for row in training.rows():
            print(f"step {row.step}  images {row.images:,}  loss {row.loss:.4f}", file=sys.stderr, flush=True)
    except KeyboardInterrupt:
        training.save()
        raise
    with look():
        save_png(draw_loss(read_log(args.out)), args.out / "loss.png")
    return export(args.out / "model.safetensors", getattr(torch, args.store))


def draw_loss(rows: Sequence[LogLine]):
    """The loss over the pictures seen."""
    figure, axes = panels(1, 1, COLUMN, 2.0)
    place = axes[0, 0]
    place.plot([r.images / 1000 for r in rows], [r.loss for r in rows], color=BLUE, linewidth=1)
    place.set_xlabel("pictures seen (thousands)")
    place.set_ylabel("loss")
    return figure


def _given(args: argparse.Namespace, *names: str) -> dict[str, Any]:
    """The options that were given; the recipe has the others."""
    return {name: getattr(args, name) for name in names if getattr(args, name) is not None}
