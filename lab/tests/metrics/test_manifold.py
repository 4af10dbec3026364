"""Precision, recall, density, coverage: known answers, brute force, and the other implementations."""

from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from peers import peer

from meancap_lab.metrics import kernel_estimate, manifold_estimates, precision_recall, recall_at
from meancap_lab.metrics import manifold as engine


def brute(real, generated, k):
    """All four by whole float64 distance matrices."""
    real, generated = real.double(), generated.double()

    def radius(x):
        apart = (x[:, None] - x[None]).square().sum(-1)
        apart.fill_diagonal_(torch.inf)
        return apart.sort(1).values[:, k - 1]

    across = (real[:, None] - generated[None]).square().sum(-1)
    in_real = across <= radius(real)[:, None]
    in_generated = across <= radius(generated)[None]
    precision, recall = in_real.any(0).double().mean(), in_generated.any(1).double().mean()
    density, coverage = in_real.double().sum(0).mean() / k, in_real.any(1).double().mean()
    return precision.item(), recall.item(), density.item(), coverage.item()


@given(
    n=st.integers(5, 60),
    m=st.integers(5, 60),
    d=st.integers(1, 12),
    k=st.integers(1, 4),
    seed=st.integers(0, 10**6),
    grid=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_it_equals_brute_force_with_ties_too(n, m, d, k, seed, grid):
    g = torch.Generator().manual_seed(seed)
    real, fake = torch.randn(n, d, generator=g), torch.randn(m, d, generator=g) * 0.8
    if grid:  # many exact ties
        real, fake = real.round(), fake.round()
    expected = brute(real, fake, k)
    assert precision_recall(real, fake, k) == expected[:2]
    assert [e.value for e in manifold_estimates(real, fake, k=k, k_density=k)] == pytest.approx(expected)


@pytest.mark.parametrize("offset", [0.0, 1e4, 1e7])
@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e12])
def test_far_from_the_origin_and_at_any_scale_it_stays_exact(offset, scale):
    # Products of such vectors know nothing of their distances unless they are centred first.
    g = torch.Generator().manual_seed(1)
    real = (torch.randn(150, 16, generator=g, dtype=torch.float64) + offset) * scale
    fake = (torch.randn(150, 16, generator=g, dtype=torch.float64) * 0.9 + offset) * scale
    assert precision_recall(real, fake) == brute(real, fake, 3)[:2]


def test_block_sizes_do_not_change_the_answer(monkeypatch):
    real, fake = torch.randn(700, 40), torch.randn(900, 40) * 0.9
    expected = [(e.name, e.value) for e in manifold_estimates(real, fake)]
    for rows, columns in ((64, 128), (1, 700), (1000, 33)):
        monkeypatch.setattr(engine, "ROWS", rows)
        monkeypatch.setattr(engine, "COLUMNS", columns)
        assert [(e.name, e.value) for e in manifold_estimates(real, fake)] == expected


@pytest.mark.parametrize("source", ["random", "real"])
def test_it_equals_prdc(source, real_features, capsys):
    prdc = peer("prdc")
    real, fake = _pair(source, real_features)
    theirs = prdc.compute_prdc(real.double().numpy(), fake.double().numpy(), nearest_k=5)
    ours = {e.name: e.value for e in manifold_estimates(real, fake, k=5, k_density=5)}
    assert ours == pytest.approx(theirs, abs=1e-12)


def test_recall_parts_are_what_leaving_each_group_out_gives():
    real, fake = torch.randn(300, 5), torch.randn(200, 5) * 0.9
    recall = manifold_estimates(real, fake)[1]
    assert recall.parts is not None and len(recall.parts) == 50
    for group in (0, 7, 49):
        stays = torch.arange(200) % 50 != group
        without = recall_at(real, fake[stays])
        assert recall.parts[group].item() == pytest.approx(50 * recall.value - 49 * without, abs=1e-9)


@pytest.mark.parametrize("broken", [float("nan"), float("inf")])
@pytest.mark.parametrize("metric", [precision_recall, manifold_estimates, partial(kernel_estimate, "KD")])
def test_broken_features_on_either_side_are_refused(metric, broken):
    good, bad = torch.randn(20, 4), torch.randn(20, 4)
    bad[7, 2] = broken
    for sets in ((good, bad), (bad, good)):
        with pytest.raises(ValueError, match="not finite"):
            metric(*sets)


def test_too_few_points_are_refused():
    with pytest.raises(ValueError, match="at least 4 points"):
        precision_recall(torch.randn(3, 2), torch.randn(10, 2))


def _pair(source, real):
    if source == "random":
        return torch.randn(700, 48), torch.randn(900, 48) * 0.9
    return real[:1500], real[1500:3000] * 1.02 + 0.02
