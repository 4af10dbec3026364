"""Measures the gap |m_c - m_u| of the bundled model of garments on noised test pictures, class by class.

python -m tools.fashion_gaps --data DIR      writes lab/src/meancap_lab/explorer/fashion_gaps.json again

DIR holds the idx files of Fashion-MNIST.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch

import meancap_lab.explorer
from meancap import Record, noise, sample
from meancap.files import write_whole
from meancap_lab.models.checkpoint import load_sit
from meancap_lab.models.classes import SHIPPED, fashion
from meancap_lab.models.data import FASHION, read_fashion
from meancap_lab.runs.path_matching import Follow, digits
from meancap_lab.torch_settings import torch_settings

OUT = Path(meancap_lab.explorer.__file__).with_name("fashion_gaps.json")
TIMES = (0.0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
EXAMPLES, BATCH = 400, 50


def class_gaps(label: int, data: Path, count: int) -> tuple[float, ...]:
    """The rms gap at each time but the last, over the first test pictures of a class."""
    model, pixels, test = fashion(), load_sit(SHIPPED)[1], read_fashion(data, train=False)
    assert pixels is not None
    squares = []
    for part in (test.labels == label).nonzero().flatten()[:count].split(BATCH):
        pictures, record = pixels.data(test.images[part]), Record()
        start = noise(part.tolist(), pictures.shape[1:])
        sample(model.predict([label] * len(part)), Follow(pictures), start, TIMES, record=record)
        squares.append(record.stacked()["gap"].double().square())
    return digits(*torch.cat(squares, 1).mean(1).sqrt())


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--data", type=Path, required=True, metavar="DIR", help="idx files of Fashion-MNIST")
    data = p.parse_args().data
    with torch_settings(threads=1):
        rows = [json.dumps(class_gaps(label, data, EXAMPLES)) for label in range(len(FASHION))]
    head = f'"times": {json.dumps(TIMES[:-1])},\n "examples": {EXAMPLES}'
    write_whole(OUT, f'{{\n {head},\n "gap": [\n  ' + ",\n  ".join(rows) + "\n ]\n}\n")


if __name__ == "__main__":
    main()
