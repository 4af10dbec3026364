"""Steps with noise: the marginals stay, the noise belongs to the samples, and guidance counts more."""

import math
import random
from itertools import pairwise

import pytest
import torch

from cases import Blobs
from meancap import (
    CFG,
    Cap,
    Prediction,
    Record,
    ancestral,
    apg,
    euler,
    graded,
    noise,
    sample,
    shifted,
    uniform,
)
from meancap.sampling import weights
from meancap.sampling.stochastic import generator_of, step_coefficients

SEEDS = (0, 1, 2**32 - 1, 2**32, 2**32 + 1, 2**33, 2**64, 2**64 + 1, 2**88 + 1)
ETAS = (0.0, 0.3, 0.7, 1.0)
N = 2048


def exact(law):
    return lambda x, t: Prediction(x, t, law.posterior_mean(x, t), law.posterior_mean(x, t))


def test_without_noise_it_is_euler_bit_for_bit():
    law = Blobs(torch.tensor([[1.0, 0.0], [-1.0, 0.5]]).double(), std=0.3)
    x = noise(range(32), (2,)).double()
    for grid in (uniform(9), shifted(9), graded(9)):
        a = sample(exact(law), CFG(1), x, grid, ancestral(range(32), 0.0))
        assert torch.equal(a, sample(exact(law), CFG(1), x, grid, euler))


def test_all_bits_of_a_seed_count():
    """Below 2^32 a seed is torch's own; from there on the stream is that of Python's Mersenne Twister."""
    x = torch.zeros(len(SEEDS), 4)
    for drawn in (noise(SEEDS, (16,)), ancestral(SEEDS).begin(x)(lambda x, t: x, x, 0, 0.5)):
        assert len({tuple(row.tolist()) for row in drawn}) == len(SEEDS)
    assert torch.equal(noise([7], (16,))[0], torch.randn(16, generator=torch.Generator().manual_seed(7)))
    for seed in SEEDS[3:]:
        twister = random.Random(seed)
        drawn = torch.rand(8, generator=generator_of(seed)) * 2**24
        assert drawn.tolist() == [twister.getrandbits(32) % 2**24 for _ in range(8)]
    with pytest.raises(ValueError, match="whole number from 0; got -1"):
        noise([-1], (2,))


@pytest.mark.parametrize("eta", ETAS)
@pytest.mark.parametrize("t,s", [(0.0, 0.1), (0.3, 0.4), (0.5, 0.95)])
def test_a_step_keeps_the_law_of_the_path_where_the_data_is_one_point(eta, t, s):
    """x = (1 - t) n + t m has m exact; then the noise has variance (1 - s)^2, the mean s m."""
    keep, pull, spread = step_coefficients(t, s, eta)
    assert keep * t + pull == pytest.approx(s)
    assert (keep * (1 - t)) ** 2 + spread**2 == pytest.approx((1 - s) ** 2)
    assert min(keep, pull, spread) >= 0


def test_the_memoryless_step_is_the_ancestral_step_of_the_variance_exploding_path():
    t, s, x, m, z = 0.3, 0.5, 0.7, -0.4, 1.3
    sigma, later = (1 - t) / t, (1 - s) / s
    r = (later / sigma) ** 2
    y = r * x / t + (1 - r) * m + later * math.sqrt(1 - r) * z
    keep, pull, spread = step_coefficients(t, s, 1.0)
    assert keep * x + pull * m + spread * z == pytest.approx(s * y)
    assert step_coefficients(0.0, 0.2, 1.0)[0] == 0  # the start is forgotten


@pytest.mark.parametrize("eta", ETAS)
def test_marginals_of_a_mixture_are_kept_on_the_way_and_at_the_end(eta):
    """Short steps: shares of the components, means and second moments within 4.5 standard errors of n."""
    law = Blobs(torch.tensor([[1.2, 0.0], [-0.8, 0.9], [0.0, -1.0]]).double(), [0.5, 0.3, 0.2], std=0.3)
    seeds, grid = range(N), uniform(160)
    cut = 96
    half = sample(exact(law), CFG(1), noise(seeds, (2,)).double(), grid[: cut + 1], ancestral(seeds, eta))
    end = sample(exact(law), CFG(1), half, grid[cut:], ancestral(range(N, 2 * N), eta))
    draw = torch.Generator().manual_seed(5)
    for x, t in ((half, grid[cut]), (end, 1.0)):
        truth = t * law.sample(200_000, draw)
        truth = truth + (1 - t) * torch.randn(truth.shape, generator=draw, dtype=torch.float64)
        for f in (lambda v, t=t: law.responsibilities(v, t), lambda v: v, torch.square):
            due, spread = f(truth).mean(0), f(truth).std(0)
            assert ((f(x).mean(0) - due).abs() <= 4.5 * spread * math.sqrt(1 / N + 1 / 200_000)).all()


def test_noise_belongs_to_the_sample_and_the_step():
    law = Blobs(torch.tensor([[1.0, 0.0], [-1.0, 0.5]]).double(), std=0.3)
    other = Blobs(torch.tensor([[0.4, 0.9]]).double(), std=0.3)

    def predict(x, t):
        return Prediction(x, t, law.posterior_mean(x, t), other.posterior_mean(x, t))

    seeds = [7, 1, 12, 3]
    for rule in (CFG(2) | Cap(1.1), apg(3)):
        x = noise(seeds, (2,)).double()
        whole = sample(predict, rule, x, uniform(8), ancestral(seeds, 0.6))
        again = sample(predict, rule, x, uniform(8), ancestral(seeds, 0.6))
        assert torch.equal(whole, again)
        for i, seed in enumerate(seeds):
            alone = sample(predict, rule, x[i : i + 1], uniform(8), ancestral([seed], 0.6))
            torch.testing.assert_close(alone, whole[i : i + 1], rtol=1e-12, atol=1e-12)
    changed = sample(predict, CFG(2), x, uniform(8), ancestral([8, 2, 13, 4], 0.6))
    assert not torch.isclose(changed, sample(predict, CFG(2), x, uniform(8), ancestral(seeds, 0.6))).any()


def test_fresh_noise_is_not_the_start_again():
    seeds = range(512)
    x = noise(seeds, (3,)).double()
    drawn = []

    def look(x, t):
        drawn.append(x)
        return Prediction(x, t, 0 * x, 0 * x)

    sample(look, CFG(1), x, uniform(4), ancestral(seeds))
    for later in drawn[1:]:
        together = torch.corrcoef(torch.stack([drawn[0].flatten(), later.flatten()]))[0, 1]
        assert abs(float(together)) < 4.5 / math.sqrt(x.numel())


def test_guidance_counts_twice_on_a_memoryless_step_while_it_acts():
    """A short step moves the mean of x' by (1 + eta^2)(lambda - 1) times what the gap's velocity says."""
    t, h = 0.4, 1e-5
    for eta in ETAS:
        pull = step_coefficients(t, t + h, eta)[1]
        assert pull / (h / (1 - t)) == pytest.approx(1 + eta**2, rel=1e-3)


def test_errors_teach():
    x = torch.zeros(2, 3)
    with pytest.raises(ValueError, match="one seed per sample"):
        sample(lambda x, t: Prediction(x, t, x, x), CFG(1), x, uniform(2), ancestral([1]))
    with pytest.raises(ValueError, match="eta runs from 0"):
        ancestral([1], 1.5)
    record = Record()
    sample(lambda x, t: Prediction(x, t, x, x), CFG(1), x, uniform(2), ancestral([1, 2]), record=record)
    with pytest.raises(ValueError, match="add noise has no certificate"):
        record.certificate()
    assert weights(euler, 0.0, 0.5) == (0.5, 0.5)


@pytest.mark.parametrize("eta", ETAS)
@pytest.mark.parametrize("grid", [uniform(12), shifted(7), graded(9)], ids=["uniform", "shifted", "graded"])
def test_a_gaussian_gets_the_variance_that_the_steps_have(eta, grid):
    """m is affine in x, so mean and variance of every state are known; 4.5 standard errors of n samples."""
    std, mu = 0.6, 1.5
    law = Blobs(torch.tensor([[mu]]).double(), std=std)
    seeds = range(N)
    x = sample(exact(law), CFG(1), noise(seeds, (1,)).double(), grid, ancestral(seeds, eta))
    mean, variance = 0.0, 1.0
    for t, s in pairwise(grid):
        gain = t * std**2 / ((1 - t) ** 2 + t**2 * std**2)
        keep, pull, spread = (0.0, 1.0, 0.0) if s == 1 else step_coefficients(t, s, eta)
        mean = keep * mean + pull * (mu + gain * (mean - t * mu))
        variance = (keep + pull * gain) ** 2 * variance + spread**2
    assert float(x.mean()) == pytest.approx(mean, abs=4.5 * math.sqrt(variance / N))
    assert float(x.var()) == pytest.approx(variance, rel=4.5 * math.sqrt(2 / N))
