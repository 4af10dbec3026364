"""Endpoint statistics are those that the paper defines."""

import pytest
import torch

from meancap_lab.mixtures import Condition, Mixture
from meancap_lab.mixtures import branches as module
from meancap_lab.mixtures.branches import branches, labels
from meancap_lab.mixtures.condition import PAIR, SINGLE, STD, TRIPLE


def draws(condition, n, seed=0):
    return condition.conditional.sample(n, torch.Generator().manual_seed(seed))


def test_statistics_are_the_formulas_of_the_appendix():
    condition = TRIPLE.condition()
    x = draws(condition, 5000) + torch.tensor([0.01, -0.02])
    found, label = branches(condition, x), labels(condition, x)
    counts = torch.bincount(label, minlength=3).double()
    assert torch.equal(found.occupancy, counts / len(x))
    for k in range(3):
        covariance = torch.cov(x[label == k].T)  # unbiased
        assert float(found.variance_ratio[k]) == pytest.approx(
            float(covariance.trace()) / (2 * STD**2), rel=1e-9
        )
    assert found.tv == pytest.approx(0.5 * float((counts / len(x) - 1 / 3).abs().sum()))
    target = condition.conditional.means.mean(0)
    assert found.mean_error == pytest.approx(float((x.mean(0) - target).norm()), rel=1e-9)


def test_labels_are_map_and_not_the_nearest_centre():
    """The border between a heavy and a light branch is moved towards the light one, here by 9e-4."""
    condition = PAIR.condition()
    heavy, light = condition.conditional.means
    middle, away = (heavy + light) / 2, (light - heavy) / (light - heavy).norm()
    x = torch.stack([middle + 5e-4 * away, middle + 1.3e-3 * away])
    assert labels(condition, x).tolist() == [0, 1]


def test_variance_along_the_ray_and_across_it_are_told_apart():
    condition = SINGLE.condition()  # its ray is the second axis
    x = condition.conditional.means + torch.randn(40_000, 2, dtype=torch.float64) * torch.tensor([0.03, 0.06])
    found = branches(condition, x)
    assert float(found.radial_ratio) == pytest.approx(4, rel=0.05)
    assert float(found.tangential_ratio) == pytest.approx(1, rel=0.05)
    assert float(found.variance_ratio) == pytest.approx(2.5, rel=0.05)


def test_chunks_do_not_matter_and_float32_samples_are_counted_in_float64(monkeypatch):
    condition, x = TRIPLE.condition(), draws(TRIPLE.condition(), 10_000).float()
    whole = branches(condition, x)
    assert whole.variance_ratio.dtype == torch.float64
    monkeypatch.setattr(module, "_CHUNK", 999)
    torch.testing.assert_close(
        branches(condition, x).variance_ratio, whole.variance_ratio, rtol=1e-12, atol=0
    )
    assert branches(condition, x).occupancy.tolist() == whole.occupancy.tolist()


def test_full_covariances_are_measured_against_their_own_trace():
    cov = torch.tensor([[[0.04, 0.01], [0.01, 0.02]], [[0.01, 0.0], [0.0, 0.03]]], dtype=torch.float64)
    means = torch.tensor([[2.0, 1.0], [-2.0, 0.5]], dtype=torch.float64)
    condition = Condition(Mixture(torch.cat([means, -means]), cov=torch.cat([cov, cov])), (0, 1))
    found = branches(condition, draws(condition, 100_000))
    for ratio in (found.variance_ratio, found.radial_ratio, found.tangential_ratio):
        assert ratio.tolist() == pytest.approx([1, 1], abs=0.05)


def test_a_branch_with_one_sample_has_no_variance():
    found = branches(TRIPLE.condition(), TRIPLE.condition().conditional.means[:1])
    assert found.occupancy.tolist() == [1, 0, 0] and found.variance_ratio.isnan().all()
