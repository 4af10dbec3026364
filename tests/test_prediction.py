"""Every way of stating a prediction gives the same posterior means, at every time."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from meancap import CFG, Cap, Prediction, guided_velocity

unit = st.floats(0.01, 0.99)


def data_and_noise(seed, *shape):
    g = torch.Generator().manual_seed(seed)
    return (torch.randn(*shape, generator=g, dtype=torch.float64) for _ in range(3))


@given(unit, st.integers(0, 99))
def test_velocity_states_the_mean(t, seed):
    m_c, m_u, x = data_and_noise(seed, 3, 5)
    p = Prediction.from_velocity(x, t, (m_c - x) / (1 - t), (m_u - x) / (1 - t))
    torch.testing.assert_close(p.m_c, m_c)
    torch.testing.assert_close(p.m_u, m_u)
    torch.testing.assert_close(p.delta, m_c - m_u)


@given(st.floats(0.05, 3), st.floats(0.0, 80), st.integers(0, 99))
def test_noise_v_and_score_state_the_same_mean_on_any_gaussian_path(alpha, sigma, seed):
    m_c, m_u, x = data_and_noise(seed, 2, 4)
    eps = [(x - alpha * m) / sigma if sigma else torch.zeros_like(x) for m in (m_c, m_u)]
    if sigma < 1e-3:
        m_c = m_u = x / alpha
        eps = [torch.zeros_like(x)] * 2
    means = [(x - sigma * e) / alpha for e in eps]
    v = [alpha * e - sigma * m for e, m in zip(eps, means, strict=True)]
    path = {"alpha": alpha, "sigma": sigma}
    found = [Prediction.from_noise(x, *eps, **path), Prediction.from_v_prediction(x, *v, **path)]
    if sigma >= 1e-3:
        found.append(Prediction.from_score(x, *(-e / sigma for e in eps), **path))
    for p in found:
        torch.testing.assert_close(p.m_c, means[0], rtol=1e-7, atol=1e-7)
        torch.testing.assert_close(p.m_u, means[1], rtol=1e-7, atol=1e-7)
        torch.testing.assert_close(p.delta, means[0] - means[1], rtol=1e-7, atol=1e-7)
        assert p.t == pytest.approx(alpha / (alpha + sigma))
        torch.testing.assert_close(p.x, x / (alpha + sigma))


def test_at_the_data_the_mean_is_the_state():
    m_c, m_u, x = data_and_noise(1, 2, 4)
    p = Prediction.from_velocity(x, 1.0, m_c, m_u)
    assert torch.equal(p.m_c, x) and torch.equal(p.m_u, x) and not p.delta.any()
    p = Prediction.from_noise(x, m_c, m_u, alpha=1.0, sigma=0.0)
    assert torch.equal(p.m_c, x) and p.t == 1.0


def test_at_pure_noise_velocities_and_v_predictions_are_regular():
    m_c, m_u, x = data_and_noise(2, 2, 4)
    torch.testing.assert_close(Prediction.from_velocity(x, 0.0, m_c - x, m_u - x).m_c, m_c)
    torch.testing.assert_close(Prediction.from_v_prediction(x, -m_c, -m_u, alpha=0.0, sigma=1.0).m_c, m_c)


@pytest.mark.parametrize("make", [Prediction.from_noise, Prediction.from_score])
def test_at_pure_noise_a_noise_prediction_states_no_mean_and_says_so(make):
    x = torch.randn(2, 4)
    with pytest.raises(ValueError, match="alpha = 0"):
        make(x, x, x, alpha=torch.tensor([0.5, 0.0]), sigma=1.0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_is_promoted(dtype):
    x = torch.randn(2, 8).to(dtype)
    assert Prediction.from_velocity(x, 0.5, x, -x).m_c.dtype == torch.float32


@pytest.mark.parametrize(
    ("t", "message"),
    [
        (-0.1, "must lie in"),
        (1.5, "must lie in"),
        (float("nan"), "must lie in"),
        (torch.zeros(3), "one per sample"),
    ],
)
def test_a_time_that_is_none_is_refused(t, message):
    x = torch.randn(2, 4)
    with pytest.raises(ValueError, match=message):
        Prediction.from_velocity(x, t, x, x)


def test_shapes_that_differ_are_named():
    x = torch.randn(2, 4)
    with pytest.raises(ValueError, match=r"without it has shape \(2, 3\), but x has \(2, 4\)"):
        Prediction.from_velocity(x, 0.5, x, x[:, :3])
    with pytest.raises(ValueError, match="batch axis"):
        Prediction.from_mean(x[0], 0.5, x[0], x[0])
    with pytest.raises(TypeError, match="floating-point"):
        Prediction.from_mean(x.int(), 0.5, x, x)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_time_for_each_sample_counts_as_the_same_time_for_all(dtype):
    x, v_c, v_u = data_and_noise(5, 3, 600)
    rule = CFG(5) | Cap(1.1)
    for t in (0.003, 0.15, 0.7):
        each = torch.full((3,), t, dtype=dtype)
        together, _ = guided_velocity(rule, x, each, v_c, v_u)
        assert torch.equal(together, guided_velocity(rule, x, float(each[0]), v_c, v_u)[0])
        p, q = (Prediction.from_velocity(x, time, v_c, v_u) for time in (each, float(each[0])))
        assert torch.equal(p.m_c, q.m_c) and torch.equal(p.delta, q.delta)


def test_a_sample_needs_an_element():
    with pytest.raises(ValueError, match="at least one element"):
        guided_velocity(CFG(5) | Cap(1.1), *(torch.zeros(2, 0) if i != 1 else 0.5 for i in range(4)))
