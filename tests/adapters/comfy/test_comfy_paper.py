"""The paper's eight-point experiment, drawn by ComfyUI's own Euler sampler with the node in its chain."""

import csv
import math
from pathlib import Path

import pytest
import torch
from comfy_host import capped, exact, sampled

import meancap
from meancap import CFG, Cap, Prediction, sample, uniform

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("comfy"),
    pytest.mark.filterwarnings("ignore"),
]

COUNT, STD, N, STEPS = 8, 0.03, 200_000, 50
ANGLES = math.pi / 2 - 2 * math.pi * torch.arange(COUNT) / COUNT
MEANS = torch.stack([ANGLES.cos(), ANGLES.sin()], 1)
TABLE = Path(meancap.__file__).parent / "paper_tables" / "gmm.csv"


def posterior_mean(x, t, weights):
    """E[data | x] for a mixture of N(MEANS_k, STD^2) on x = t data + (1 - t) noise."""
    variance = (t * STD) ** 2 + (1 - t) ** 2
    away = x[:, None] - t * MEANS
    logits = weights.log() - (away**2).sum(2) / (2 * variance)
    each = MEANS + t * STD**2 / variance * away
    return (logits.softmax(1)[..., None] * each).sum(1)


class Circle(torch.nn.Module):
    """The mixture as a network of ComfyUI's: label 1 is the condition, label 0 all eight components."""

    dtype = torch.float32

    def __init__(self, weights, members):
        super().__init__()
        inside = torch.zeros(COUNT)
        inside[list(members)] = 1
        self.weights = {0: weights, 1: weights * inside}

    def forward(self, x, t, context=None, **options):
        sigma, out = float(t[0]) / 1000, torch.empty_like(x)
        for label, weights in self.weights.items():
            chosen = context[:, 0, 0] == label
            flat = x[chosen].flatten(1)
            out[chosen] = ((flat - posterior_mean(flat, 1 - sigma, weights)) / sigma)[..., None, None]
        return out


def rows():
    with TABLE.open(encoding="utf-8") as file:
        return list(csv.DictReader(line for line in file if not line.startswith("#")))


@pytest.mark.parametrize("row", rows(), ids=lambda row: f"{row['members']} {row['guidance']}")
def test_the_papers_table_comes_out_of_comfyui(row):
    members = [int(k) for k in row["members"].strip("{}").split(",")]
    weights = torch.full((COUNT,), 1 / COUNT)
    if len(members) == 2:
        weights[:2] = torch.tensor([0.17, 0.08])
    network, scale = Circle(weights, members), float(row["scale"])
    model = exact((2, 1, 1), network=network)
    if row["gamma"]:
        model = capped(model, float(row["gamma"]))
    x = sampled(model, (N, 2, 1, 1), cfg=scale, steps=STEPS).flatten(1)

    noise = torch.randn(N, 2, 1, 1, generator=torch.manual_seed(1)).flatten(1)
    rule = CFG(scale) | Cap(float(row["gamma"] or "inf"))
    own = sample(
        lambda x, t: Prediction.from_mean(x, t, *(posterior_mean(x, t, network.weights[k]) for k in (1, 0))),
        rule, noise, uniform(STEPS),
    )  # fmt: skip
    # The same noise through two Euler samplers; near a border between components rounding may decide.
    assert float(((x - own).norm(dim=1) < 1e-3).float().mean()) > 0.999

    nearest = torch.cdist(x, MEANS[members]).argmin(1)
    share = torch.bincount(nearest, minlength=len(members)) / N
    paper = torch.tensor([float(v) for v in row["occupancy_percent"].split("/")]) / 100
    # Two independent runs of N samples: five standard errors of their difference, and the table's rounding.
    assert ((share - paper).abs() <= 5 * (2 * paper * (1 - paper) / N).sqrt() + 5e-5).all()
    mean_error = float((x.mean(0) - MEANS[members].T @ (weights[members] / weights[members].sum())).norm())
    assert mean_error == pytest.approx(
        float(row["mean_error"]), abs=5 * math.sqrt(2 * float(x.var(0).max()) / N)
    )
