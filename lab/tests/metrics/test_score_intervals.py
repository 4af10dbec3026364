"""Intervals that hold what they promise, and differences that profit from pairing."""

import math

import pytest
import torch

from meancap_lab.metrics import (
    Score,
    bootstrap,
    difference,
    frechet_estimate,
    kernel_estimate,
    manifold_estimates,
    mean_estimate,
)
from meancap_lab.metrics.per_image import diversity_estimate


def draws(n, seed, d=8):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(n, d, generator=g) * 0.8 + 0.1


def test_the_interval_covers_the_truth_as_often_as_it_says():
    hits = 0
    for seed in range(300):
        g = torch.Generator().manual_seed(seed)
        values = torch.empty(60).exponential_(generator=g)
        low, high = bootstrap(values)
        hits += low <= 1 <= high
    assert (low, high) == bootstrap(values)  # the same seed, the same interval
    # Of 300 intervals at 95 % about 285 cover, plus or minus 15 (four errors); skewed values lose a few.
    assert 262 <= hits <= 299


@pytest.mark.parametrize(
    ("name", "least", "most"),
    # The spread of 60 values is itself known to 9 %: three of those. Two shares have errors too wide.
    [(name, 0.73, 1.27) for name in ("FD", "KD", "diversity", "density")]
    + [(name, 0.8, 2.2) for name in ("recall", "coverage")],
)
def test_standard_errors_agree_with_the_spread_over_independent_runs(name, least, most):
    reference = draws(1500, 10**6) / 0.8
    labels = torch.arange(400) % 4

    def once(seed):
        x = draws(400, seed)
        if name == "FD":
            return frechet_estimate(name, x, reference)
        if name == "KD":
            return kernel_estimate(name, reference, x)
        if name == "diversity":
            return diversity_estimate(name, x, labels)
        return next(e for e in manifold_estimates(reference, x) if e.name == name)

    found = [once(seed) for seed in range(60)]
    spread = torch.tensor([e.value for e in found]).std().item()
    claimed = sum(e.error for e in found) / len(found)
    assert least * spread <= claimed <= most * spread


def test_paired_differences_are_sharper_than_unpaired_ones():
    reference = draws(2000, 99) / 0.8
    x = draws(500, 1)
    y = x + 0.02 * torch.randn(500, 8)
    a, b = frechet_estimate("FD", x, reference), frechet_estimate("FD", y, reference)
    paired, apart = difference(a, b), difference(a, b, paired=False)
    assert paired.value == apart.value == a.value - b.value
    assert paired.error < 0.3 * apart.error
    assert apart.error == pytest.approx(math.hypot(a.error, b.error), rel=1e-6)


def test_a_run_minus_itself_is_exactly_nothing():
    a = mean_estimate("CLIP", torch.rand(100))
    d = difference(a, a)
    assert (d.value, d.error, d.interval()) == (0.0, 0.0, (0.0, 0.0))


def test_differences_of_different_things_are_refused():
    a, b = mean_estimate("CLIP", torch.rand(10)), mean_estimate("IS", torch.rand(10))
    with pytest.raises(ValueError, match="one metric"):
        difference(a, b)
    with pytest.raises(ValueError, match="same images"):
        difference(a, mean_estimate("CLIP", torch.rand(11)))


def test_few_images_give_a_frechet_distance_without_an_interval():
    few = frechet_estimate("FD", torch.randn(20, 32), torch.randn(500, 32))
    assert few.interval() is None and few.value > 0 and math.isnan(few.error)


def test_a_score_tells_its_protocol():
    score = mean_estimate("CLIP", torch.tensor([0.3, 0.32, 0.34])).score("clip-b32: CLIP ViT-B/32")
    assert isinstance(score, Score)
    assert score.n == 3 and score.interval is not None
    assert str(score).startswith("CLIP 0.32 [") and str(score).endswith("(n = 3; clip-b32: CLIP ViT-B/32)")
