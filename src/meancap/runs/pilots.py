"""Which models a pilot can be run on: problems of the laboratory, and class-conditional networks."""

from __future__ import annotations

from ..lab.problems import problem
from ..sampling import noise
from .calibrate import Pilot


def pilots(model: str, samples: int, seed: int = 0, batch: int = 50) -> list[Pilot]:
    """Predictor and noise of each batch; the classes of a network take turns, so that all count alike."""
    kind, _, where = model.partition(":")
    if samples < 1 or batch < 1:
        raise ValueError(f"a pilot needs samples, and a batch of at least one; got {samples} and {batch}")
    seeds = range(seed * 1_000_003, seed * 1_000_003 + samples)
    if kind == "lab" and where:
        exact = problem(where).model()
        start = noise(seeds, (exact.condition.mixture.means.shape[1],)).double()
        return [(exact.predict, start)]
    if kind not in ("fashion", "sit") or (kind == "sit") != bool(where):
        raise ValueError(f"a pilot needs lab:PROBLEM, fashion or sit:PATH; got {model!r}")
    from ..models.classes import fashion, open_sit

    # The pilot looks at latents, so nothing needs to be decoded.
    network = fashion() if kind == "fashion" else open_sit(where, decode=lambda x: x)
    batches: list[Pilot] = []
    for low in range(0, samples, batch):
        members = range(low, min(low + batch, samples))
        labels = [i % network.classes for i in members]
        batches.append((network.predict(labels), noise([seeds[i] for i in members], network.shape)))
    return batches
