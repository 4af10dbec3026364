"""Chooses the seeds and the prompts of `meancap demo`: python -m tools.demo_prompts (minutes on one core).

Candidates are all prompts of two objects that differ in shape and in colour, one left of the other, and the
seeds 0 to 7. For each seed, the chosen prompt has the λ = 1 picture that the detector finds least likely,
among the prompts that plain CFG(3) draws right. The demo shows the two seeds with the lowest likelihoods. The
cap takes no part in the choice.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from meancap import noise, parse, sample
from meancap.sampling import shifted
from meancap_lab.models.scenes.law import COLOURS, SHAPES
from meancap_lab.models.scenes.measure import detector, measure_pictures
from meancap_lab.models.scenes.model import scenes
from meancap_lab.models.scenes.prompt import Prompt, Thing, codes
from meancap_lab.runs.generate import SHIFT

_THINGS = [Thing(shape, colour) for shape in SHAPES for colour in COLOURS]
_PAIRS = [(a, b) for a in _THINGS for b in _THINGS if a.shape != b.shape and a.colour != b.colour]
CANDIDATES = [str(Prompt(a, b, "left")) for a, b in _PAIRS]
SEEDS = range(8)


def pictures(prompts: list[str], rule: str, seed: int) -> Tensor:
    """One picture of each prompt from the same noise, as the demo makes it."""
    model = scenes()
    start = noise([seed] * len(prompts), model.shape)
    return model.decode(sample(model.predict(prompts), parse(rule), start, shifted(32, SHIFT)))


def log_likelihood(images: Tensor, prompts: list[str]) -> Tensor:
    """(n,) the detector's log-probability of everything that the prompt fixes."""
    shape_1, colour_1, shape_2, colour_2, place, _ = codes(prompts).T
    answers = (place // 2, shape_1, colour_1, shape_2, colour_2)
    with torch.no_grad():
        _, logits = detector()(images.float() / 255)
    return -sum(F.cross_entropy(a, b, reduction="none") for a, b in zip(logits, answers, strict=True))


def choose(seed: int, prompts: list[str]) -> tuple[float, str]:
    """The least likely prompt at λ = 1 that CFG(3) draws right, after its log-likelihood."""
    values = log_likelihood(pictures(prompts, "CFG(1)", seed), prompts)
    for index in values.argsort().tolist():
        one = [prompts[index]]
        guided = measure_pictures(detector(), pictures(one, "CFG(3)", seed), codes(one))
        if bool(guided.right["all"] & guided.drawn):
            return float(values[index]), prompts[index]
    raise ValueError(f"CFG(3) draws no prompt right from seed {seed}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    chosen = {}
    for seed in SEEDS:
        chosen[seed] = choose(seed, CANDIDATES)
        print(seed, *chosen[seed], flush=True)
    print("the demo shows the seeds", *sorted(sorted(SEEDS, key=lambda seed: chosen[seed][0])[:2]))
