"""Train the networks that come with the package, or networks like them.

    fashion      the small SiT, on Fashion-MNIST; some of its labels may be wrong
    scenes       the model that reads sentences, on pictures drawn on the way
    cifar        the model of natural pictures, on the training set of CIFAR-10, in bfloat16
    detector     what reads the pictures of the scenes
    classifier   what scores garments, with the reference of the `fashion` protocol

The weights of the first three are in OUT/model.safetensors, beside log.jsonl; `meancap generate --model
sit:FILE` takes those of `fashion`. The same command in the same folder resumes after a stop.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from meancap_lab.models.data import read_cifar10, read_fashion
from studies.common import add_options, with_given

from .flow import RECIPES, CifarTraining, GarmentTraining, SceneTraining, Training
from .scorers import train_classifier, train_detector

EXAMPLE = "example:\n  python -m studies.training fashion --folder DIR --wrong 0.3 --out train/noisy"
DATA = {"fashion": "Fashion-MNIST", "classifier": "Fashion-MNIST", "cifar": "CIFAR-10"}
STEPS = {"detector": 3000, "classifier": 3744}


def main(argv: Sequence[str] | None = None) -> None:
    top = argparse.ArgumentParser("python -m studies.training", description=__doc__, epilog=EXAMPLE)
    top.formatter_class = argparse.RawDescriptionHelpFormatter
    kinds = top.add_subparsers(dest="network", metavar="NETWORK", required=True)
    for name in (*RECIPES, *STEPS):
        p = kinds.add_parser(name)
        p.add_argument("--out", required=True, type=Path, metavar="DIR", help="the training folder")
        p.add_argument("--threads", type=int, default=1, help="CPU threads (1)")
        if name in DATA:
            p.add_argument("--folder", required=True, type=Path, metavar="DIR", help=f"{DATA[name]}'s files")
        if name in RECIPES:
            add_options(p, RECIPES[name])
            p.add_argument("--start", type=Path, metavar="FILE", help="weights to start from")
        else:
            p.add_argument("--steps", type=int, default=STEPS[name], help=f"of 128 ({STEPS[name]})")
    args = top.parse_args(argv)
    torch.set_num_threads(args.threads)
    args.out.mkdir(parents=True, exist_ok=True)
    if args.network == "classifier":
        return print(train_classifier(args.folder, args.out, args.steps))
    if args.network == "detector":
        return print(train_detector(args.out, args.steps))
    recipe = with_given(args, RECIPES[args.network])
    training: Training
    if args.network == "fashion":
        training = GarmentTraining(args.out, recipe, read_fashion(args.folder), args.start)
    elif args.network == "cifar":
        training = CifarTraining(args.out, recipe, read_cifar10(args.folder), args.start)
    else:
        training = SceneTraining(args.out, recipe, args.start)
    for row in training.rows():
        pace = f"{row['images_per_second']:.0f} pictures/s  {row['minutes_left']:.0f} min left"
        print(f"step {row['step']}  loss {row['loss']:.4f}  {pace}", file=sys.stderr, flush=True)
    return print(training.export(args.out / "model.safetensors"))
