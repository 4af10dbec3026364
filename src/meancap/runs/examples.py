"""Examples with trusted labels to learn a scale from: problems of the laboratory, and Fashion-MNIST."""

from __future__ import annotations

from pathlib import Path

import torch

from ..lab.problems import problem
from .learned_scale import Examples


def examples(
    model: str, count: int, *, data: str | Path | None = None, seed: int = 0, batch: int = 50
) -> list[Examples]:
    """Predictors under the examples' own labels, and the examples, batch by batch.

    `lab:PROBLEM` draws from its truth; `fashion` and `sit:PATH` take test pictures of Fashion-MNIST.
    """
    kind, _, where = model.partition(":")
    if count < 1 or batch < 1:
        raise ValueError(f"a scale needs examples, and a batch of at least one; got {count} and {batch}")
    draw = torch.Generator().manual_seed(seed)
    if kind == "lab" and where:
        chosen = problem(where)
        return [(chosen.model().predict, chosen.condition().conditional.sample(count, draw))]
    if kind not in ("fashion", "sit") or (kind == "sit") != bool(where):
        raise ValueError(f"a scale is learned for lab:PROBLEM, fashion or sit:PATH; got {model!r}")
    if data is None:
        raise ValueError("a network's scale needs --data DIR, the folder of Fashion-MNIST's idx files")
    from ..models.checkpoint import load_sit
    from ..models.classes import SHIPPED, fashion, open_sit
    from ..models.data import fashion as pictures

    path = SHIPPED if kind == "fashion" else Path(where)
    network = fashion() if kind == "fashion" else open_sit(path)
    pixels = load_sit(path)[1]
    if pixels is None:
        raise ValueError(f"{path.name} makes latents; a scale can be learned for models of pixels only")
    test = pictures(data, train=False)
    order = torch.randperm(len(test.images), generator=draw)[:count]
    return [
        (network.predict(test.labels[part].tolist()), pixels.data(test.images[part]))
        for part in torch.split(order, batch)
    ]
