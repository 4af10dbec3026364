"""Inception score, diversity, alignment, colour: hand-made cases, and peers."""

import math

import pytest
import torch

from meancap_lab.metrics import (
    brightness,
    class_hits,
    class_probability,
    clipped,
    cosine,
    diversity,
    inception_score,
    inception_score_estimate,
    saturation,
)


def test_sure_and_even_predictions_score_the_number_of_classes():
    logits = torch.eye(10).repeat(20, 1) * 1e4  # probabilities of exactly 0: log-softmax must not make a NaN
    assert inception_score(logits) == pytest.approx(10, rel=1e-12)


def test_splits_are_consecutive_and_of_fixed_size_so_order_matters():
    logits = torch.eye(4).repeat_interleave(5000, 0) * 1e4  # 20,000 images sorted by class
    assert inception_score(logits) == pytest.approx(1, abs=1e-9)  # every split holds one class
    mixed = torch.eye(4).repeat(5000, 1) * 1e4
    assert inception_score(mixed) == pytest.approx(4, rel=1e-9)
    assert inception_score(logits[:5000]) == inception_score(
        logits[:5000], split=10**9
    )  # one split up to 5,000


def test_inception_score_is_the_exponential_of_the_mean_divergence_from_the_marginal():
    p = (torch.randn(800, 20, dtype=torch.float64) * 2).softmax(1)
    divergence = (p * (p / p.mean(0)).log()).sum(1).mean()
    assert inception_score(p.log()) == pytest.approx(math.exp(divergence), rel=1e-10)


def test_inception_score_parts_are_its_derivative():
    logits = torch.randn(300, 6, dtype=torch.float64) * 2
    full = inception_score_estimate("IS", logits)
    assert full.parts is not None
    for i in (0, 100, 299):
        without = inception_score(torch.cat((logits[:i], logits[i + 1 :])))
        pseudo = 300 * full.value - 299 * without
        assert full.parts[i].item() == pytest.approx(pseudo, abs=0.05 * full.parts.std().item())


def test_images_of_a_short_last_split_count_for_more_in_the_error():
    # Splits of 1,000 and 100 images count equally: their errors s/sqrt(1000) and s/sqrt(100) are averaged.
    sets = [torch.randn(1100, 6, generator=torch.Generator().manual_seed(i)) * 2 for i in range(100)]
    found = [inception_score_estimate("IS", logits, split=1000) for logits in sets]
    spread = torch.tensor([e.value for e in found], dtype=torch.float64).std().item()
    # The spread of 100 values is itself known to 7 %.
    assert sum(e.error for e in found) / len(found) == pytest.approx(spread, rel=0.25)


def test_a_probability_of_zero_is_a_logit_of_minus_infinity_and_nan_is_refused():
    assert inception_score(torch.eye(5).repeat(4, 1).log()) == pytest.approx(5, rel=1e-12)
    for bad in (math.nan, math.inf):
        logits = torch.randn(8, 3)
        logits[2, 1] = bad
        with pytest.raises(ValueError, match="logits are not finite"):
            inception_score(logits)
        with pytest.raises(ValueError, match="logits are not finite"):
            class_probability(logits, torch.zeros(8).long())


def test_diversity_is_the_mean_distance_within_classes():
    features = torch.tensor([[0.0], [2.0], [10.0], [14.0], [12.0]])
    labels = torch.tensor([0, 0, 1, 1, 1])
    assert diversity(features, labels) == pytest.approx((2 + (4 + 2 + 2) / 3) / 2)
    assert diversity(torch.ones(4, 3), torch.tensor([0, 0, 1, 1])) == 0.0
    with pytest.raises(ValueError, match="class 1 has one"):
        diversity(features[:3], labels[:3])


def test_clip_is_the_raw_cosine():
    a = torch.tensor([[1.0, 0.0], [0.0, 2.0], [1.0, 1.0]])
    b = torch.tensor([[3.0, 0.0], [0.0, -1.0], [1.0, 0.0]])
    assert cosine(a, b).tolist() == pytest.approx([1, -1, math.sqrt(0.5)])


def test_alignment_and_accuracy():
    logits = torch.tensor([[0.0, math.log(3.0)], [5.0, 0.0]])
    labels = torch.tensor([1, 1])
    assert class_probability(logits, labels).tolist() == pytest.approx([0.75, 1 / (1 + math.exp(5))])
    assert class_hits(logits, labels).tolist() == [1, 0]
    with pytest.raises(ValueError, match=r"0\.\.1; got 1 to 2"):
        class_hits(logits, torch.tensor([1, 2]))


def test_saturation_is_pillows_for_every_pair_of_extremes():
    image = pytest.importorskip("PIL.Image")
    numpy = pytest.importorskip("numpy")
    high, low = torch.meshgrid(torch.arange(256), torch.arange(256), indexing="ij")
    pixels = torch.stack((torch.maximum(high, low), torch.minimum(high, low), low), -1).byte()
    theirs = numpy.asarray(image.fromarray(pixels.numpy()).convert("HSV"))[..., 1]
    ours = torch.stack([saturation(row[None, None]) for row in pixels.reshape(-1, 256, 3)[::7]])
    assert ours.flatten().tolist() == pytest.approx((theirs.mean(1) / 255)[::7].tolist(), abs=1e-15)
    single = saturation(pixels.reshape(-1, 1, 1, 3)) * 255
    assert torch.equal(single.round().int().reshape(256, 256), torch.from_numpy(theirs.astype("int32")))


def test_grey_images_have_brightness_and_no_saturation():
    grey = torch.full((2, 4, 4, 1), 51, dtype=torch.uint8)
    assert saturation(grey).tolist() == [0, 0]
    assert brightness(grey).tolist() == pytest.approx([0.2, 0.2])
    grey[0, 0, 0] = 255
    assert clipped(grey).tolist() == [1 / 16, 0]
