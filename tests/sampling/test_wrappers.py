"""Methods on the model's side and on the solver's, on mixtures where both predictions are exact."""

import pytest
import torch

from cases import Blobs
from meancap import CFG, Prediction, euler, pmc, sample, uniform
from meancap.sampling import autoguidance, manifold_sample, recfg_table, rectified_cfgpp
from meancap.sampling.wrappers import _project

MEANS = torch.tensor([[0.0, 1.0], [1.0, 0.0], [-1.0, -0.5]], dtype=torch.float64)
CONDITION = Blobs(MEANS, std=0.5)


def noise(n=64, seed=0):
    return torch.randn(n, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def test_autoguidance_is_guidance_away_from_the_weak_model():
    weak = Blobs(MEANS, std=0.8)
    p = autoguidance(CONDITION.predict, weak.predict)(noise(), 0.4)
    strong, other = CONDITION.predict(noise(), 0.4), weak.predict(noise(), 0.4)
    torch.testing.assert_close(p.m_c, strong.m_c)
    torch.testing.assert_close(p.delta, strong.m_c - other.m_c)


@pytest.mark.parametrize(("share", "hold"), [(0.5, False), (1.0, True), (0.0, False)])
def test_rectified_cfgpp_takes_the_gap_ahead(share, hold):
    times, x, w = uniform(8), noise(), 4.5
    index = 3
    t, s = times[index], times[index + 1]
    v_c, v_u = CONDITION.velocities(x, t)
    y = x + share * (s - t) * v_c
    ahead = CONDITION.velocities(y, t if hold else t + share * (s - t))
    expected = x + (s - t) * (v_c + w * (ahead[0] - ahead[1]))
    predict = rectified_cfgpp(CONDITION.predict, times, share=share, hold=hold)
    found = sample(predict, CFG(1 + w), x, (t, s))
    torch.testing.assert_close(found, expected)
    if share == 0:
        torch.testing.assert_close(found, x + (s - t) * (v_c + w * (v_c - v_u)))


def test_rectified_cfgpp_needs_its_grid():
    with pytest.raises(ValueError, match="without the time"):
        rectified_cfgpp(CONDITION.predict, uniform(8))(noise(), 0.33)
    with pytest.raises(ValueError, match="does not determine a velocity"):
        rectified_cfgpp(CONDITION.predict, uniform(8), share=1.0)


def test_the_recfg_table_is_the_least_squares_ratio():
    data = CONDITION.conditional.sample(40_000, torch.Generator().manual_seed(3))
    times = (0.0, 0.3, 0.6, 1.0)
    rule = recfg_table(CONDITION.predict, data, times, seed=5)
    assert rule.times == (0.0, 0.3, 0.6) and [r.shape for r in rule.ratios] == [(2,)] * 3
    like = torch.zeros(1, 2, dtype=torch.float64)
    torch.testing.assert_close(rule.at(0.0, like), torch.ones_like(like))
    x = torch.lerp(noise(40_000, 9), data, 0.6)
    v_c, v_u = CONDITION.velocities(x, 0.6)
    n_c, n_u = x - 0.6 * v_c, x - 0.6 * v_u
    ratio = (n_c * n_u).mean(0) / n_u.square().mean(0)
    torch.testing.assert_close(rule.at(0.6, like)[0], ratio, rtol=0, atol=0.02)  # other noise, n = 40 000
    assert abs(float(ratio[0]) - 1) > 0.02  # there is something to rectify


def test_the_projection_closes_the_gap_of_velocities():
    x, t, h = noise(), 0.2, 0.05
    gaps = []
    for iterations in (0, 3, 12):
        y = _project(CONDITION.predict, x, t, h, iterations, window=1)
        v_c, v_u = CONDITION.velocities(y, t)
        gaps.append(float((v_c - v_u).norm()))
    assert gaps[0] > gaps[1] > gaps[2]


def test_one_projection_is_the_round_trip_and_both_orders_are_there():
    x, t, h = noise(), 0.2, 0.05
    z = x - h * CONDITION.velocities(x, t)[1]
    back_first = z + h * CONDITION.velocities(z, t)[0]
    torch.testing.assert_close(_project(CONDITION.predict, x, t, h, 1, 0), back_first)
    z = x + h * CONDITION.velocities(x, t)[0]
    forth_first = z - h * CONDITION.velocities(z, t)[1]
    torch.testing.assert_close(_project(CONDITION.predict, x, t, h, 1, 0, forth_first=True), forth_first)


def test_anderson_mixing_solves_a_linear_fixed_point_in_two_iterations():
    """On a line the secant is exact: (1 - h)(x - h (1 - x)) = x at x = -(1 - h) / h."""

    def predict(x, t):
        return Prediction.from_velocity(x, t, -x, 1 - x)

    x, h = torch.linspace(-1, 1, 5, dtype=torch.float64)[:, None], 0.3
    fixed = torch.full_like(x, -(1 - h) / h)
    torch.testing.assert_close(_project(predict, x, 0.2, h, 2, 1, ridge=0.0), fixed)
    assert (_project(predict, x, 0.2, h, 2, 0) - fixed).abs().min() > 1  # plain iteration is far from it


def test_beyond_its_range_manifold_sampling_is_euler():
    rule = pmc(4, 1.1)
    torch.testing.assert_close(
        manifold_sample(CONDITION.predict, rule, noise(), uniform(8), until=0.0),
        sample(CONDITION.predict, rule, noise(), uniform(8), euler),
    )
    moved = manifold_sample(CONDITION.predict, rule, noise(), uniform(8), until=0.5)
    assert not torch.equal(moved, sample(CONDITION.predict, rule, noise(), uniform(8)))
    alone = manifold_sample(CONDITION.predict, rule, noise()[:1], uniform(8))
    torch.testing.assert_close(alone, manifold_sample(CONDITION.predict, rule, noise(), uniform(8))[:1])
