"""The Frechet distance: closed forms, invariances, and the same digits as everybody else's."""

import pytest
import torch
from peers import peer

from meancap_lab.metrics import Gaussian, frechet_distance, frechet_estimate, gaussian, kernel_estimate
from meancap_lab.metrics.distances import trace_of_root


def covariance(d, seed, rank=None):
    g = torch.Generator().manual_seed(seed)
    a = torch.randn(d, rank or 2 * d, generator=g, dtype=torch.float64)
    return a @ a.T / a.shape[1]


def features(n, d, seed, dtype=torch.float32):
    g = torch.Generator().manual_seed(seed)
    mix = torch.randn(d, d, generator=g, dtype=torch.float64) / d**0.5
    return (torch.randn(n, d, generator=g, dtype=torch.float64) @ mix + seed / 10).to(dtype)


def test_between_commuting_gaussians_it_is_a_sum_of_squares():
    q = torch.linalg.qr(covariance(12, 0)).Q
    a, b = torch.rand(2, 12, dtype=torch.float64) + 0.1
    mean_a, mean_b = torch.randn(2, 12, dtype=torch.float64)
    expected = (mean_a - mean_b).square().sum() + (a.sqrt() - b.sqrt()).square().sum()
    found = frechet_distance(Gaussian(mean_a, q * a @ q.T), Gaussian(mean_b, q * b @ q.T))
    assert found == pytest.approx(expected.item(), rel=1e-12)


@pytest.mark.parametrize("power", [-400, -266, 256, 400])
def test_products_of_tiny_or_huge_covariances_stay_within_range(power):
    a, b = features(300, 20, 1, torch.float64), features(200, 20, 2, torch.float64)
    s = 2.0**power
    assert frechet_distance(s * a, s * b) == pytest.approx(s * s * frechet_distance(a, b), rel=1e-12)
    assert frechet_estimate("FD", s * a, s * b).value == frechet_distance(s * a, s * b)


@pytest.mark.parametrize(("rank_a", "rank_b"), [(40, 40), (10, 40), (40, 10), (10, 15), (15, 10)])
def test_singular_covariances_give_the_nuclear_norm_of_their_factors(rank_a, rank_b):
    g = torch.Generator().manual_seed(7)
    a = torch.randn(30, rank_a, generator=g, dtype=torch.float64)
    b = torch.randn(30, rank_b, generator=g, dtype=torch.float64)
    expected = torch.linalg.svdvals(a.T @ b).sum().item()
    assert trace_of_root(a @ a.T, b @ b.T).item() == pytest.approx(expected, rel=1e-12)


def test_a_gaussian_far_from_the_origin_has_numpys_covariance():
    x = features(5000, 16, 3) * 100 + 1e4
    torch.testing.assert_close(gaussian(x).covariance, torch.cov(x.double().T), rtol=1e-10, atol=1e-8)


@pytest.mark.parametrize("source", ["random", "real"])
def test_it_equals_torchmetrics_to_ten_digits(source, real_features):
    fid = peer("torchmetrics.image.fid")
    a, b = _pair(source, real_features)
    x, y = gaussian(a), gaussian(b)
    theirs = fid._compute_fid(x.mean, x.covariance, y.mean, y.covariance).item()
    assert frechet_distance(a, b) == pytest.approx(theirs, rel=1e-10)


def test_parts_predict_what_leaving_an_image_out_does():
    a, b = features(400, 6, 1, torch.float64), features(500, 6, 2, torch.float64)
    full = frechet_estimate("FD", a, b)
    assert full.parts is not None
    chosen = range(0, 400, 20)
    without = [frechet_distance(torch.cat((a[:i], a[i + 1 :])), b) for i in chosen]
    pseudo = 400 * full.value - 399 * torch.tensor(without, dtype=torch.float64)
    parts = full.parts[list(chosen)]
    # A derivative against a finite difference: equal up to second order, and up to the bias they all share.
    apart = (pseudo - pseudo.mean()) - (parts - parts.mean())
    assert apart.abs().max() < 0.05 * parts.std()


def test_bad_features_are_refused_in_a_sentence():
    good = torch.randn(10, 4)
    for bad, words in (
        (torch.randn(10, 5), "same extractor"),
        (torch.randn(1, 4), "two samples"),
        (torch.randn(10), "one row per image"),
        (torch.randint(0, 9, (10, 4)), "floating-point"),
        (torch.randn(0, 4), "empty"),
        (torch.randn(10, 0), "empty"),
        (good / 0, "not finite"),
    ):
        with pytest.raises(ValueError, match=words):
            frechet_distance(good, bad)
    with pytest.raises(TypeError, match=r"torch\.from_numpy"):
        frechet_distance(good, good.numpy())


def _pair(source, real):
    if source == "random":
        return features(800, 64, 1), features(900, 64, 2)
    return real[:4000], real[4000:] * 1.1 + 0.02


def test_kernel_distance_equals_a_sum_over_pairs():
    real, fake = torch.randn(7, 3, dtype=torch.float64), torch.randn(5, 3, dtype=torch.float64)

    def k(a, b):
        return (float(a @ b) / 3 + 1) ** 3

    own = sum(k(a, b) for i, a in enumerate(fake) for j, b in enumerate(fake) if i != j) / 20
    theirs = sum(k(a, b) for i, a in enumerate(real) for j, b in enumerate(real) if i != j) / 42
    across = sum(k(a, b) for a in fake for b in real) / 35
    found = kernel_estimate("KD", real, fake).value
    assert found == pytest.approx(own + theirs - 2 * across, rel=1e-12)
