"""The theorem of the cap, in the arithmetic: feasible, maximal, inert where it may be, and per sample."""

import math

import mpmath
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.autograd import forward_ad

from cases import UNIT, adversarial, random_prediction
from meancap import (
    CFG,
    Cap,
    CapDisplacement,
    Clip,
    Interval,
    Linear,
    Piecewise,
    Prediction,
    cap,
    cap_fraction,
    guide,
    guided_velocity,
    parse,
)
from meancap.cap import _lengths_in_units, lengths
from meancap.rules import adg
from meancap.rules.rule import Displacement

GAMMAS = (1.0, 1.0001, 1.05, 1.15, 2.0, 10.0)


def beta(rule, x, t, v_c, v_u):
    v, _ = guided_velocity(rule, x, t, v_c, v_u)
    d = v_c - v_u
    return ((v - v_c).double() * d.double()).flatten(1).sum(1) / (d.double() ** 2).flatten(1).sum(1)


@given(st.integers(0, 10_000), st.sampled_from(GAMMAS), st.floats(1.01, 40))
def test_the_capped_mean_is_feasible_and_maximal(seed, gamma, scale):
    p = random_prediction(2, 6, seed=seed)
    m, _ = guide(CFG(scale) | Cap(gamma), p)
    bound = gamma * p.m_c.norm(dim=1)
    assert (m.norm(dim=1) <= bound * (1 + 1e-14)).all()
    s = ((m - p.m_c) * p.delta).sum(1) / (p.delta**2).sum(1) / (scale - 1)
    further = p.m_c + ((s + 1e-9) * (scale - 1))[:, None] * p.delta
    assert ((s >= 1 - 1e-12) | (further.norm(dim=1) > bound)).all()


@given(st.integers(0, 10_000), st.sampled_from(GAMMAS), st.floats(-3, 12))
def test_direction_is_kept_and_never_reversed(seed, gamma, scale):
    p = random_prediction(3, 5, seed=seed)
    for rule in (Cap(gamma), CapDisplacement(gamma)):
        m, _ = guide(CFG(scale) | rule, p)
        g, nominal = m - p.m_c, (scale - 1) * p.delta
        s = (g * nominal).sum(1) / (nominal**2).sum(1).clamp(min=1e-300)
        torch.testing.assert_close(g, s[:, None] * nominal, rtol=1e-9, atol=1e-12)
        # Near scale 1 the displacement is as short as the rounding of the means that it is read from.
        slack = 1e-12 + 2.0**-50 * p.m_c.norm(dim=1) / nominal.norm(dim=1).clamp(min=1e-300)
        assert (s >= -slack).all() and (s <= 1 + slack).all()


def test_a_feasible_nominal_result_is_bit_equal_to_plain_cfg():
    for shape, dtype in (
        ((5, 4, 32, 32), torch.float32),
        ((3, 7), torch.float32),
        ((4, 4096), torch.bfloat16),
    ):
        g = torch.Generator().manual_seed(1)
        x, v_c, v_u = (torch.randn(*shape, generator=g).to(dtype) for _ in range(3))
        v_u = (v_c + 0.01 * v_u).to(dtype)
        plain, _ = guided_velocity(CFG(3), x, 0.3, v_c, v_u)
        for limit in (Cap(1.5), Cap(math.inf), CapDisplacement(1.5), Cap(1.0, floor=1e6)):
            assert torch.equal(guided_velocity(CFG(3) | limit, x, 0.3, v_c, v_u)[0], plain)


@pytest.mark.parametrize("exponent", [-30, -22, -12, -5, 0, 6, 12, 19, 28, 35])
@pytest.mark.parametrize("size", [37, 1024])
def test_beta_agrees_with_high_precision_bisection_at_every_scale(exponent, size):
    g = torch.Generator().manual_seed(exponent + 40)
    unit = 10.0**exponent
    x, v_c, other = (torch.randn(4, size, generator=g) for _ in range(3))
    x, v_c, other = x * unit, v_c * unit, other * unit
    v_u = v_c + 0.5 * other
    gamma, scale, t = 1.15, 6.0, 0.25
    found = beta(CFG(scale) | Cap(gamma), x, t, v_c, v_u)
    mpmath.mp.prec = 300
    for i in range(4):
        columns = [[mpmath.mpf(v) for v in tensor[i].tolist()] for tensor in (x, v_c, v_u)]
        m = [a + (1 - mpmath.mpf(t)) * c for a, c, _ in zip(*columns, strict=True)]
        d = [(1 - mpmath.mpf(t)) * (c - u) for _, c, u in zip(*columns, strict=True)]
        limit = mpmath.mpf(gamma) ** 2 * mpmath.fsum(a * a for a in m)
        low, high = mpmath.mpf(0), mpmath.mpf(scale - 1)
        for _ in range(60):
            middle = (low + high) / 2
            inside = mpmath.fsum((a + middle * b) ** 2 for a, b in zip(m, d, strict=True)) <= limit
            low, high = (middle, high) if inside else (low, middle)
        assert 0 < low < scale - 1
        assert float(found[i]) == pytest.approx(float(low), rel=1e-6)


def worst_excess(seeds, samples, size, gammas):
    worst = -math.inf
    for seed in seeds:
        m_c, gap = adversarial(seed, samples, size)
        for gamma in gammas:
            rule = CFG((1.5, 5.0, 50.0)[seed % 3]) | Cap(gamma)
            p = Prediction(m_c, 0.5, m_c, m_c - gap, gap=gap)
            m, _ = guide(rule, p)
            excess = m.double().norm(dim=1) / (gamma * m_c.double().norm(dim=1)) - 1
            worst = max(worst, float(excess.max()) / UNIT)
    return worst


@pytest.mark.parametrize("seeds", [range(5), pytest.param(range(5, 25), marks=pytest.mark.slow)], ids=str)
def test_the_stored_float32_result_keeps_the_bound_to_four_units(seeds):
    # 21,000 cases of 4,096 elements: 5 seeds x 700 samples x 6 gammas; with the slow ones 105,000.
    assert worst_excess(seeds, 700, 4096, GAMMAS) <= 4
    assert worst_excess(seeds, 50, 4099, GAMMAS) <= 4
    assert worst_excess(range(12 * seeds[0], 12 * seeds[-1]), 1, 8192, GAMMAS) <= 4


def velocities(seed, dtype, shape=(6, 4, 32, 32)):
    g = torch.Generator().manual_seed(seed)
    x, v_c, other = (torch.randn(*shape, generator=g) for _ in range(3))
    return x.to(dtype), v_c.to(dtype), (v_c + other).to(dtype)


@pytest.mark.parametrize("gamma", GAMMAS)
@pytest.mark.parametrize("t", [0.0, 0.3, 0.8])
def test_the_bound_holds_for_velocities_in_float32_and_bfloat16(gamma, t):
    for dtype, out, limit in (
        (torch.float32, None, 4 * UNIT),
        (torch.bfloat16, torch.float32, 4 * UNIT),
        (torch.bfloat16, None, 2e-3),
        (torch.float16, None, 2e-3),
    ):
        for seed in range(4):
            x, v_c, v_u = velocities(seed, dtype)
            v, _ = guided_velocity(CFG(7) | Cap(gamma), x, t, v_c, v_u, dtype=out)
            assert v.dtype == (out or dtype)
            m, m_c = (x.double() + (1 - t) * w.double() for w in (v, v_c))
            excess = m.flatten(1).norm(dim=1) / (gamma * m_c.flatten(1).norm(dim=1)) - 1
            assert float(excess.max()) <= limit


def test_autocast_changes_nothing():
    x, v_c, v_u = velocities(3, torch.float32)
    rule = CFG(7) | Cap(1.1, anchor=0.1, whiten=torch.eye(4096)) | Cap(1.1)
    v, _ = guided_velocity(rule, x, 0.3, v_c, v_u)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(guided_velocity(rule, x, 0.3, v_c, v_u)[0], v)


def test_zero_gap_keeps_the_nominal_scale_and_zero_mean_gets_no_guidance():
    x, v = torch.randn(2, 600), torch.randn(2, 600)
    assert torch.equal(guided_velocity(CFG(5) | Cap(1.1), x, 0.5, v, v)[0], v)
    at_data, _ = guided_velocity(CFG(5) | Cap(1.1), x, 1.0, v, -v)
    assert torch.equal(at_data, guided_velocity(CFG(5), x, 1.0, v, -v)[0])
    v_c = -x / 0.5  # m_c = 0
    assert torch.equal(guided_velocity(CFG(5) | Cap(1.1), x, 0.5, v_c, v)[0], v_c)


def exact_lengths(m, d):
    m, d = m.double(), d.double()
    return m.norm(dim=1), d.norm(dim=1), (m * d).sum(1) / d.norm(dim=1)


def test_in_units_of_powers_of_two_lengths_are_the_same():
    for exponent in (-30, -10, 0, 10, 30, 35):
        m, d = (torch.randn(5, 700) * 10.0**exponent for _ in range(2))
        q, a, along = (v.double() for v in _lengths_in_units(m, d))
        q64, a64, along64 = exact_lengths(m, d)
        torch.testing.assert_close(q, q64, rtol=1e-6, atol=0)
        torch.testing.assert_close(a, a64, rtol=1e-6, atol=0)
        assert ((along - along64).abs() <= 1e-6 * q64).all()  # nearly at right angles, its own digits cancel
    assert _lengths_in_units(torch.zeros(2, 9), torch.zeros(2, 9)).along.tolist() == [0, 0]


@given(st.integers(0, 500), st.sampled_from([3, 8, 511, 512, 640, 1031]))
def test_blocked_sums_equal_float64(seed, size):
    m, d = adversarial(seed, 4, size)
    for found in (lengths(m, d), lengths.__wrapped__(m, d)):
        q64, a64, along64 = exact_lengths(m, d)
        torch.testing.assert_close(found.base, q64, rtol=4e-7, atol=0)
        torch.testing.assert_close(found.direction, a64, rtol=4e-7, atol=0)
        assert ((found.along - along64).abs() <= 6e-7 * q64).all()


# The family: anchors, norms, floors, schedules, smoothing, intersections


@given(st.integers(0, 10_000), st.floats(1.0, 3.0), st.floats(1.5, 20))
def test_an_anchored_cap_bounds_the_distance_from_its_anchor(seed, gamma, scale):
    p = random_prediction(3, 4, 5, seed=seed)
    for anchor in (0.7, [0.1, -2.0, 0.3, 1.0], torch.linspace(-1, 1, 20).reshape(4, 5)):
        r = torch.as_tensor(anchor, dtype=torch.float64)
        r = r[:, None] if r.dim() == 1 else r
        m, _ = guide(CFG(scale) | Cap(gamma, anchor=anchor), p)
        found, bound = ((v - r).flatten(1).norm(dim=1) for v in (m, p.m_c))
        assert (found <= gamma * bound * (1 + 1e-12)).all()


@given(st.integers(0, 10_000), st.floats(1.0, 2.0))
def test_anchored_caps_move_with_the_data(seed, gamma):
    p = random_prediction(3, 6, seed=seed)
    shift = torch.linspace(-4, 9, 6, dtype=torch.float64)
    q = Prediction(p.x, p.t, p.m_c + shift, p.m_u + shift)
    m, _ = guide(CFG(6) | Cap(gamma, anchor=torch.zeros(6)), p)
    moved, _ = guide(CFG(6) | Cap(gamma, anchor=shift), q)
    torch.testing.assert_close(moved, m + shift, rtol=1e-9, atol=1e-9)


def test_anchoring_at_the_unconditional_mean_is_plain_cfg_at_gamma():
    p = random_prediction(1, 6)
    m, _ = guide(CFG(6) | Cap(1.3, anchor=p.m_u[0]), p)
    torch.testing.assert_close(m, p.m_c + 0.3 * p.delta)


def test_the_first_anchor_is_the_first_unconditional_mean_ever_after():
    first, second = random_prediction(2, 6, seed=1), random_prediction(2, 6, seed=2)
    rule = CFG(6) | Cap(1.1, anchor="first")
    _, state = guide(rule, first)
    m, _ = guide(rule, second, state)
    for i in range(2):
        fixed = CFG(6) | Cap(1.1, anchor=first.m_u[i])
        torch.testing.assert_close(m[i], guide(fixed, second)[0][i])


def test_whitening_is_invariant_under_every_invertible_map():
    g = torch.Generator().manual_seed(5)
    a = torch.randn(6, 6, generator=g, dtype=torch.float64) + 3 * torch.eye(6, dtype=torch.float64)
    p = random_prediction(4, 6)
    q = Prediction(p.x @ a.T, p.t, p.m_c @ a.T, p.m_u @ a.T)
    m, _ = guide(CFG(6) | Cap(1.1), p)
    mapped, _ = guide(CFG(6) | Cap(1.1, whiten=torch.linalg.inv(a)), q)
    torch.testing.assert_close(mapped, m @ a.T)


def test_a_cap_per_channel_bounds_every_channel_and_keeps_the_direction():
    p = random_prediction(5, 3, 4, 4)
    m, _ = guide(CFG(9) | Cap(1.1, per="channel"), p)
    found, bound = (v.flatten(2).norm(dim=2) for v in (m, p.m_c))
    assert (found <= 1.1 * bound * (1 + 1e-12)).all()
    touches = (found >= 1.1 * bound * (1 - 1e-9)).any(1)
    assert touches.all()  # maximal: in every sample some channel is at its bound


def test_a_floor_is_always_allowed_and_may_depend_on_time():
    p = random_prediction(5, 30, t=0.5)
    r = 3 * p.m_c.norm(dim=1).max()
    m, _ = guide(CFG(60) | Cap(1.0, floor=Linear(0, 2 * float(r))), p)
    torch.testing.assert_close(m.norm(dim=1), r.expand(5))
    m, _ = guide(CFG(60) | CapDisplacement(1.0, floor=float(r)), p)
    torch.testing.assert_close((m - p.m_c).norm(dim=1), r.expand(5))


def test_gamma_may_depend_on_time_sample_by_sample():
    x, v_c, v_u = velocities(4, torch.float64, (3, 20))
    t = torch.tensor([0.1, 0.5, 0.9], dtype=torch.float64)
    rule = CFG(8) | Cap(Piecewise([0, 1], [1.0, 2.0]))
    v, _ = guided_velocity(rule, x, t, v_c, v_u)
    for i in range(3):
        fixed = CFG(8) | Cap(1 + float(t[i]))
        one, _ = guided_velocity(fixed, x[i : i + 1], float(t[i]), v_c[i : i + 1], v_u[i : i + 1])
        torch.testing.assert_close(v[i : i + 1], one)


@given(st.integers(0, 10_000), st.floats(0.05, 1.0), st.floats(1.01, 1.6))
def test_the_smooth_cap_keeps_the_bound_and_differs_by_at_most_a_quarter_of_its_width(seed, width, gamma):
    p = random_prediction(4, 5, seed=seed)
    hard, _ = guide(CFG(4) | Cap(gamma), p)
    soft, _ = guide(CFG(4) | Cap(gamma, smooth=width), p)
    share = [((m - p.m_c) * p.delta).sum(1) / (3 * (p.delta**2).sum(1)) for m in (hard, soft)]
    assert (soft.norm(dim=1) <= gamma * p.m_c.norm(dim=1) * (1 + 1e-12)).all()
    assert (share[1] <= share[0] + 1e-12).all() and (share[1] >= -1e-12).all()
    assert (share[0] - share[1] <= width / 4 + 1e-12).all()


def test_the_smooth_cap_has_a_continuous_slope():
    scale = torch.linspace(1.05, 4, 40_001, dtype=torch.float64)
    m_c = torch.tensor([[1.0, 0.2]], dtype=torch.float64).expand(len(scale), 2)
    gap = torch.tensor([[0.3, 0.9]], dtype=torch.float64) * (scale[:, None] - 1)
    p = Prediction(m_c, 0.5, m_c, m_c - gap, gap=gap)

    def jump(rule):
        m, _ = guide(rule, p)
        return float((m[:, 0]).diff().diff().abs().max() / (scale[1] - scale[0]))

    assert jump(Cap(1.2)) > 0.1  # the hard cap has a kink
    assert jump(Cap(1.2, smooth=0.5)) < 1e-3


@given(st.integers(0, 10_000), st.floats(1.0, 1.5), st.floats(1.0, 1.5))
def test_caps_in_a_chain_are_their_intersection(seed, a, b):
    p = random_prediction(3, 6, seed=seed)
    one, other = Cap(a), CapDisplacement(b, anchor=0.3)
    both, _ = guide(CFG(9) | one | other, p)
    swapped, _ = guide(CFG(9) | other | one, p)
    torch.testing.assert_close(both, swapped)
    share = [((guide(CFG(9) | cap, p)[0] - p.m_c) * p.delta).sum(1) for cap in (one, other)]
    torch.testing.assert_close(((both - p.m_c) * p.delta).sum(1), torch.minimum(*share))


@given(st.integers(0, 10_000), st.sampled_from(GAMMAS))
def test_cap_twice_is_cap_once(seed, gamma):
    p = random_prediction(3, 6, seed=seed)
    torch.testing.assert_close(
        guide(CFG(9) | Cap(gamma), p)[0],
        guide(CFG(9) | Cap(gamma) | Cap(gamma), p)[0],
        rtol=1e-14,
        atol=1e-14,
    )


@given(st.integers(0, 10_000), st.floats(1.0, 3.0))
def test_the_displacement_form_is_stricter_and_equal_only_when_aligned(seed, gamma):
    p = random_prediction(3, 6, seed=seed)
    ball, disp = (guide(CFG(9) | cap, p)[0] - p.m_c for cap in (Cap(gamma), CapDisplacement(gamma)))
    rounding = 4 * 2.0**-53 * p.m_c.norm(dim=1)  # of the mean, which the difference shows
    assert (disp.norm(dim=1) <= ball.norm(dim=1) * (1 + 1e-12) + rounding).all()
    assert (disp.norm(dim=1) <= (gamma - 1) * p.m_c.norm(dim=1) * (1 + 1e-12) + rounding).all()
    aligned = Prediction(p.x, p.t, p.m_c, p.m_c - 0.5 * p.m_c)
    torch.testing.assert_close(
        guide(CFG(99) | Cap(gamma), aligned)[0], guide(CFG(99) | CapDisplacement(gamma), aligned)[0]
    )


def test_cap_fraction_is_the_cap():
    m, g = adversarial(0, 20, 600)
    p = Prediction(m, 0.5, m, m - g, gap=g)
    s = cap_fraction(m, g, 1.1)
    assert s.shape == (20, 1) and s.dtype == torch.float32
    torch.testing.assert_close(m + s * g, guide(Cap(1.1), p)[0])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Cap(0.9), "gamma >= 1"),
        (lambda: Cap(math.nan), "gamma >= 1"),
        (lambda: CapDisplacement(-2), "gamma >= 1"),
        (lambda: Cap("big"), "gamma >= 1"),
        (lambda: Cap(1.1, anchor="last"), "'first'"),
        (lambda: Cap(1.1, anchor=math.inf), "finite"),
        (lambda: Cap(1.1, anchor=[1.0, math.nan]), "finite"),
        (lambda: Cap(1.1, anchor=CFG(2)), "'first'"),
        (lambda: Cap(1.1, whiten=2.0), "whitens by values"),
        (lambda: Cap(1.1, whiten="zzz"), "whitens by values"),
        (lambda: Cap(1.1, smooth=2), "smooth"),
        (lambda: Cap(1.1, per="pixel"), "'channel'"),
        (lambda: Cap(1.1, floor=math.nan), "finite"),
        (lambda: cap_fraction(torch.randn(2, 3), torch.randn(2, 4), 1.1), "shape"),
        (lambda: guide(CFG(3) | Cap(1.1, anchor=torch.zeros(5)), random_prediction(2, 4)), r"shape \(5,\)"),
    ],
)
def test_nonsense_gets_one_sentence(make, message):
    with pytest.raises(ValueError, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)


def test_no_cap_and_no_guidance_hold_for_every_input():
    g = torch.Generator().manual_seed(0)
    x, v_c, v_u = (torch.randn(2, 4, 16, 16, generator=g) for _ in range(3))
    at_zero = guided_velocity(CFG(5) | Cap(math.inf), -0.7 * v_c, 0.3, v_c, v_u)[0]  # the mean is zero
    torch.testing.assert_close(at_zero, v_c + 4 * (v_c - v_u))
    v_u[0, 0, 0, 0], v_u[1, 0, 0, 0] = math.inf, math.nan
    assert torch.equal(guided_velocity(CFG(1) | Cap(1.1), x, 0.3, v_c, v_u)[0], v_c)


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")  # torch's own, of torch's own
@pytest.mark.filterwarnings("ignore:.torch.jit:FutureWarning")  # the same under Python 3.14
def test_tangents_pass_through_a_cap():
    g = torch.Generator().manual_seed(0)
    x, v_c, v_u, ahead = (torch.randn(2, 600, generator=g, dtype=torch.float64) for _ in range(4))

    def step(v):
        return guided_velocity(CFG(5) | Cap(1.1), x.to(v.dtype), 0.3, v, v_u.to(v.dtype))[0]

    with forward_ad.dual_level():
        dual = forward_ad.make_dual(v_c.float(), ahead.float())
        tangent = forward_ad.unpack_dual(step(dual)).tangent
    slope = (step(v_c + 1e-6 * ahead) - step(v_c - 1e-6 * ahead)) / 2e-6
    torch.testing.assert_close(tangent.double(), slope, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size", [1, 2, 3, 16, 17, 64, 4096])
@pytest.mark.parametrize("kernels", [True, False])
def test_the_bound_holds_where_the_state_and_the_output_cancel(size, dtype, kernels, monkeypatch):
    """The mean is short, x and k out are long: what rounds at their length must not be added to the mean."""
    if not kernels:
        monkeypatch.setattr(cap, "import_fast", lambda: None)
    g = torch.Generator().manual_seed(size)
    for rest in (1.0, 0.1, 1e-2, 1e-3, 1e-4):
        x, other, more = torch.randn(3, 64, size, generator=g)
        c = rest * other - x / 0.6
        for p in (
            Prediction.from_velocity(x.to(dtype), 0.4, c.to(dtype), (c + rest * more).to(dtype)),
            Prediction.from_noise(x, x + rest * other, x + rest * more, alpha=0.01, sigma=0.9999),
        ):
            m, _ = guide(CFG(9) | Cap(1.1), p)
            longest = 1.1 * (1 + 4 * UNIT) * p.m_c.double().norm(dim=1)
            assert (m.double().norm(dim=1) <= longest).all()


@pytest.mark.parametrize("kind", [Cap, CapDisplacement])
@pytest.mark.parametrize("sign", [1, -1])
def test_what_is_not_finite_is_treated_alike_in_every_precision(kind, sign):
    """An infinite direction and a coefficient that is NaN, in kernels and in the reference."""
    m, u = torch.ones(3, 20), torch.zeros(3, 20)
    u[0, 3] = sign * torch.inf
    scale = torch.tensor([7.0, 7.0, 7.0])
    lost = []
    for dtype in (torch.float32, torch.float64):
        p = Prediction.from_mean(m.to(dtype), 0.3, m.to(dtype), u.to(dtype))
        g = Displacement(p, torch.tensor([6.0, torch.nan, 6.0], dtype=torch.float64))
        rule = CFG(scale) | kind(1.1)
        capped = kind(1.1).update(g, p, None)[0].mean()
        lost.append([guide(rule, p)[0].isnan().any(1).tolist(), capped.isnan().any(1).tolist()])
    assert lost[0] == lost[1]
    assert lost[0][1][1:] == [True, False]


@pytest.mark.parametrize(
    "limit", [Cap(1e100), Cap(1e155), Cap(1.1, floor=1e153), Cap(1.1, floor=1e200)], ids=str
)
@pytest.mark.parametrize("scale", [1.0, 1e30])
@pytest.mark.parametrize("size", [2, 50])
def test_a_cap_beyond_every_range_caps_nothing(limit, scale, size):
    m_c, m_u = scale * torch.randn(2, 3, size, generator=torch.Generator().manual_seed(0))
    p = Prediction.from_mean(m_c, 0.3, m_c, m_u)
    assert torch.equal(guide(CFG(7) | limit, p)[0], guide(CFG(7), p)[0])


def test_a_gamma_that_falls_below_one_is_refused():
    x, c, u = torch.randn(3, 2, 8, generator=torch.Generator().manual_seed(0))
    rule = CFG(7) | Cap(Linear(1.5, 0.5))
    guided_velocity(rule, x, 0.4, c, u)
    for t in (0.9, torch.tensor([0.4, 0.9])):
        with pytest.raises(ValueError, match="needs gamma >= 1 at every time"):
            guided_velocity(rule, x, t, c, u)
    for kind in (Cap, CapDisplacement):  # values that a derivative follows are not read: 1 is the least
        t = torch.tensor([0.9, 0.9], dtype=torch.float64, requires_grad=True)
        found = guided_velocity(CFG(7) | kind(Linear(1.5, 0.5)), x, t, c, u)[0]
        torch.testing.assert_close(found, guided_velocity(CFG(7) | kind(1), x, 0.9, c, u)[0])


def test_a_result_of_whole_numbers_is_refused():
    x, c, u = torch.randn(3, 2, 8)
    with pytest.raises(TypeError, match="floating-point"):
        guided_velocity(CFG(7), x, 0.3, c, u, dtype=torch.int32)


@pytest.mark.parametrize(
    ("rule", "t"),
    [
        (CFG(7) | Cap(1.1), 0.3),
        (CFG(7) | Cap(1.1), 1.0),
        (CFG(torch.tensor([1.0, 7.0])) | Cap(1.1), 0.3),
        (CFG(7) | CapDisplacement(1.1, floor=0.5), 0.3),
        (CFG(4) | Interval(0.2, 0.8) | Cap(1.1, smooth=0.3), torch.tensor([0.1, 0.5])),
        (CFG(7) | Clip(1.0), 0.3),
        (Clip(1.0) | CFG(7), 0.3),
        (adg(5), 0.3),
    ],
    ids=str,
)
@pytest.mark.parametrize("nothing", ["no gap", "no mean"])
def test_derivatives_are_finite_where_there_is_nothing_to_measure(rule, t, nothing):
    g = torch.Generator().manual_seed(0)
    x, c, u = (torch.randn(2, 8, generator=g).requires_grad_() for _ in range(3))
    with torch.no_grad():
        if nothing == "no gap":
            u[0] = c[0]
        else:
            x[0] = -(1 - torch.as_tensor(t).flatten()[0]) * c[0]
    out = guided_velocity(rule, x, t, c, u)[0]
    assert all(slope.isfinite().all() for slope in torch.autograd.grad((x + out).sum(), (x, c, u)))


def test_a_gamma_for_each_sample_may_be_infinite():
    m, g = adversarial(0, 2, 30)
    p = Prediction.from_mean(m, 0.5, m, m - g)
    both, _ = guide(CFG(9) | Cap([math.inf, 1.05]), p)
    for i, gamma in enumerate((math.inf, 1.05)):
        assert torch.equal(both[i], guide(CFG(9) | Cap(gamma), p)[0][i])
    assert parse("Cap([inf, 1.1])") == Cap([math.inf, 1.1])


@pytest.mark.parametrize("size", [7, 4096])
def test_neighbours_change_no_bit_of_a_sample(size):
    x, v_c, v_u = (v.clone() for v in velocities(1, torch.float32, (6, size)))
    before, _ = guided_velocity(CFG(7) | Cap(1.1), x, 0.3, v_c, v_u)
    for other in (0.0, 1e30, 1e-30, math.inf, math.nan):
        for tensor in (x, v_c, v_u):
            tensor[3:] = other
        after, _ = guided_velocity(CFG(7) | Cap(1.1), x, 0.3, v_c, v_u)
        assert torch.equal(after[:3], before[:3])
    assert after[3:].isnan().all()


@pytest.mark.parametrize("rule", [CFG(7) | Clip(1.0), Clip(1.0) | CFG(7), adg(5)], ids=str)
def test_gradients_are_finite_where_there_is_no_gap(rule):
    c, other = torch.randn(2, 2, 6, generator=torch.Generator().manual_seed(0))
    u = torch.stack([c[0], other[1]]).requires_grad_()
    c.requires_grad_()
    m, _ = guide(rule, Prediction.from_mean(other, 0.3, c, u))
    assert all(slope.isfinite().all() for slope in torch.autograd.grad(m.square().sum(), (c, u)))
