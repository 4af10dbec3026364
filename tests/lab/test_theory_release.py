"""The first capped step, the release of the cap, and the variance that Euler loses."""

import math

import pytest
import torch
from calculus import CONDITIONS, IMBALANCED, PAPER, TIMES, agree, covariances, every_condition, noise, points

from meancap.lab import Condition, Mixture
from meancap.lab.theory import (
    Guided,
    cap_beta,
    euler_steps_for,
    euler_variance_limit,
    euler_variance_ratio,
    gap_envelope,
    initial_mean,
    release_by_envelope,
    release_by_posterior,
    release_time,
)

every_paper_condition = pytest.mark.parametrize("condition", PAPER.values(), ids=PAPER)


def uniform(n):
    return torch.arange(n + 1, dtype=torch.float64) / n


@every_condition
def test_guided_mean_at_the_start_is_the_same_for_every_x(condition):
    x = 4 * noise(9, condition.mixture.means.shape[1])
    m_c, m_u = condition.means(x, 0.0)
    assert agree(m_c + 2 * (m_c - m_u), initial_mean(condition, 3.0).expand_as(x))
    # The field at t = 0 is exactly initial mean - x, everywhere and not only near 0.
    assert agree(Guided(condition, 3.0).velocity(x, 0.0), initial_mean(condition, 3.0) - x)


def test_initial_mean_is_scale_times_mu_only_if_the_mixture_is_centred():
    single, skewed = PAPER["single"], Condition(IMBALANCED, (0,))
    mu = single.mixture.means[0]
    assert agree(initial_mean(single, 3.0), 3 * mu)
    off = initial_mean(skewed, 3.0) - 3 * mu
    assert agree(off, -2 * IMBALANCED.mean, 3 * mu)
    assert IMBALANCED.mean.norm().item() == pytest.approx(0.09 * math.sin(math.pi / 8), rel=1e-12)


def first_beta(condition, scale, gamma, anchor=None):
    """beta of the cap at t = 0, from the mean of the data and the conditional one."""
    m_c, m_u = condition.conditional.mean, condition.mixture.mean
    beta = cap_beta(m_c if anchor is None else m_c - anchor, m_c - m_u, scale, gamma)
    x = noise(5, len(m_c))
    assert agree(Guided(condition, scale, gamma, anchor).beta(x, 0.0), beta.expand(5), scale)
    return beta


@pytest.mark.parametrize(("scale", "gamma"), [(3.0, 1.1), (1.05, 1.1), (9.0, 1.5)])
def test_first_step_is_clipped_to_the_smaller_of_scale_and_gamma(scale, gamma):
    single = PAPER["single"]
    least = min(scale, gamma)
    assert agree(first_beta(single, scale, gamma), least - 1, 1.0)
    assert agree(initial_mean(single, scale, gamma), least * single.mixture.means[0])
    for condition in (*CONDITIONS.values(), *PAPER.values()):
        mean = condition.mixture.mean
        assert agree(first_beta(condition, scale, gamma, mean), least - 1, 1.0)
        capped = initial_mean(condition, scale, gamma, mean)
        assert agree(capped, mean + least * (condition.conditional.mean - mean), 4.0)


def test_first_beta_of_the_imbalanced_pair_misses_gamma():
    assert first_beta(PAPER["pair"], 3.0, 1.1).item() == pytest.approx(0.10054, abs=5e-6)


@pytest.mark.parametrize("t", TIMES)
@every_paper_condition
def test_gap_stays_below_its_envelope(condition, t):
    x = points(condition.mixture, t, n=400)
    envelope = gap_envelope(condition.mixture, t)
    gap = condition.delta(x, t).norm(dim=-1)
    assert (gap <= envelope).all()
    assert (gap <= envelope * condition.log_complement(x, t).exp() * (1 + 1e-12)).all()
    later = gap_envelope(condition.mixture, torch.linspace(t, 1, 50, dtype=torch.float64))
    assert (later.diff() < 0).all() and later[-1] == 0


def test_the_papers_certificate_first_holds_beyond_its_own_grid():
    assert round(release_time(0.03, 1.0, 3.0, 1.1, 1.0), 4) == 0.9952
    assert round(release_time(0.03, 1.0, 9.0, 1.15, 1.0), 4) == 0.9971
    assert release_time(0.03, 1.0, 1.0, 1.1, 1.0) == 0.0  # nothing asked
    assert release_time(0.03, 1.0, 3.0, 1.0, 1.0) == release_time(0.0, 1.0, 3.0, 1.1, 1.0) == 1.0  # never
    t = release_time(0.03, 1.0, 3.0, 1.1, 1.0)
    assert 2 * gap_envelope(PAPER["single"].mixture, t).item() == pytest.approx(0.1, rel=1e-9)
    assert gap_envelope(PAPER["single"].mixture, 0.98).item() / 2 == pytest.approx(0.316, abs=5e-4)


def test_certificates_along_the_papers_runs():
    """n = 2000 capped Euler runs with scale 3, gamma 1.1; 0.506, 0.836, 0.892 measured with n = 4000."""
    n, share = 2000, {"single": 0.51, "pair": 0.84, "triple": 0.89}
    for name, condition in PAPER.items():
        x, field = noise(n, 2, seed=3), Guided(condition, 3.0, 1.1)
        for i in range(50):
            t = i / 50
            by_envelope = release_by_envelope(condition, x, t, 3.0, 1.1)
            by_posterior = release_by_posterior(condition, x, t, 3.0, 1.1)
            released = field.beta(x, t) == 2.0
            assert not by_envelope.any()  # empty on the whole grid
            assert (released | ~by_posterior).all()  # a certificate never lies
            if i == 40:
                p = share[name]
                assert abs(by_posterior.double().mean() - p) < 4 * math.sqrt(p * (1 - p) / n)
            if i >= 45:
                assert by_posterior.all()
            x = x + field.velocity(x, t) / 50


def test_the_papers_certificate_implies_the_sharper_one():
    condition = PAPER["triple"]
    x = 3 * noise(300, 2)
    for t in (0.99, 0.995, 0.997, 0.999):
        by_envelope = release_by_envelope(condition, x, t, 3.0, 1.1)
        assert (release_by_posterior(condition, x, t, 3.0, 1.1) | ~by_envelope).all()
        assert ((Guided(condition, 3.0, 1.1).beta(x, t) == 2.0) | ~by_envelope).all()
    assert by_envelope.any()


def test_gaps_grow_before_they_die():
    condition, x = PAPER["triple"], noise(2000, 2, seed=4)
    field, band = Guided(condition, 3.0, 1.1), []
    for i in range(50):
        band.append(float(condition.delta(x, i / 50).norm(dim=-1).quantile(0.95)))
        x = x + field.velocity(x, i / 50) / 50
    assert round(band[0], 1) == 0.8 and round(max(band), 1) == 1.1 and band[-1] < 1e-6


def test_euler_keeps_057_of_the_variance_in_fifty_steps():
    ratio = euler_variance_ratio(uniform(50), 0.03).item()
    assert abs(ratio - 0.57065062097524040673) < 1e-15


@pytest.mark.parametrize(
    "grid", [uniform(50), uniform(20) ** 2, torch.tensor([0.0, 0.2, 0.3, 0.9, 1.0]).double()]
)
def test_euler_ratio_has_one_factor_per_eigenvector_and_the_mean_is_exact(grid):
    mixture = Mixture(noise(1, 3), cov=covariances(1, 3)[0])
    x = noise(6, 3, seed=1)
    start = x
    for i in range(len(grid) - 1):
        x = x + (grid[i + 1] - grid[i]) * mixture.velocity(x, float(grid[i]))
        # Affine steps: the noise 0 stays on the mean t mu, and the rest is a linear image of the noise.
    values, axes = torch.linalg.eigh(mixture.cov)
    gain = (x - mixture.mean) @ axes / (start @ axes)
    assert agree(gain**2 / values, euler_variance_ratio(grid, values.sqrt()).expand(6, 3), 100.0)
    rest = mixture.means * 0
    for i in range(len(grid) - 1):
        rest = rest + (grid[i + 1] - grid[i]) * mixture.velocity(rest, float(grid[i]))
        assert agree(rest, grid[i + 1] * mixture.means)


def test_euler_ratios_of_consecutive_grids_multiply():
    grid, std = uniform(30) ** 2, torch.tensor([0.03, 0.5, 2.0], dtype=torch.float64)
    parts = [euler_variance_ratio(part, std) for part in (grid[:13], grid[12:])]
    assert agree(parts[0] * parts[1], euler_variance_ratio(grid, std))


@pytest.mark.parametrize("std", [0.03, 0.1, 0.7])
def test_euler_ratio_meets_its_limit_to_third_order(std):
    error = [
        float(euler_variance_ratio(uniform(n), std) - euler_variance_limit(n, std)) for n in (2000, 4000)
    ]
    assert error[0] / error[1] == pytest.approx(8.0, rel=0.05)
    t = (torch.arange(200000, dtype=torch.float64) + 0.5) / 200000
    c = (1 - t) ** 2 + t**2 * std**2
    slope = (t * std**2 - (1 - t)) / c
    assert (slope**2).mean().item() == pytest.approx(math.pi * (1 + std**2) / (4 * std) - 1, rel=1e-6)
    # Why the second order is missing: it is the change of a'' / 6 over [0, 1] plus 2/3 of this integral.
    assert (slope**3).mean().item() == pytest.approx(-(std**-2 - std**2) / 4, rel=1e-6)


def test_one_percent_of_bias_takes_thousands_of_steps():
    needed = euler_steps_for(0.01, torch.tensor([0.03, 0.1, 1.0]))
    assert torch.allclose(needed, torch.tensor([2700.0, 900.0, 260.0]).double(), rtol=0.02)
    for n, std in zip(needed.round().int().tolist(), (0.03, 0.1, 1.0), strict=True):
        assert euler_variance_ratio(uniform(n), std).item() == pytest.approx(0.99, abs=2e-4)
    with pytest.raises(ValueError, match="no variance to lose"):
        euler_variance_ratio(uniform(5), 0.0)
