"""Against float64: every layout and scale, the bound in the last place, nothing but the sample itself."""

import math

import meancap.cuda.kernels as kernels
import meancap.cuda.step as step
import pytest
import torch
from truth import close, eager, flat, truth, velocities

from cases import UNIT, adversarial
from meancap import CFG, Cap, CapDisplacement, Record, guided_velocity
from meancap.rules import Gain

# The interpreter computes with numpy, which tells of each 0 / 0 in a lane that is masked off.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

LAYOUTS = [
    (3, 7),
    (2, 1),
    (600, 2),
    (2, 511),
    (2, 1000),
    (2, 77, 24),
    (5, 4, 16, 16),
    (1, 16384),
    (1, 3, 5, 24, 33),
    (1, 16400),
    (2, 8193),
]


@pytest.mark.parametrize("shape", LAYOUTS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_layout_equals_float64(shape, dtype, launches):
    x, v_c, v_u = velocities(*shape, dtype=dtype)
    record = Record()
    v, _ = guided_velocity(CFG(7) | Cap(1.1), x, 0.3, v_c, v_u, dtype=torch.float32, record=record)
    m, d, along, c = truth(x, 0.3, v_c, v_u, 6.0, 1.1)
    one = x[0].numel() <= (16384 if x[0].numel() % 16 == 0 else 8192)
    assert launches == (["whole_samples"] if one else ["part_sums", "part_velocities"])
    (kept,) = record._seen
    terms = flat(x).norm(dim=1) + flat(v_c).norm(dim=1)  # they may cancel in the mean
    assert ((kept.lengths.m - m).abs() <= 1e-7 * terms).all()
    assert ((kept.lengths.along - along).abs() <= 2e-7 * terms).all()
    close(kept.lengths.d, d, 2e-7)
    assert ((kept.coefficient - c).abs() <= 3e-6 * c * terms / m).all()
    exact = flat(v_c) + c[:, None] * (flat(v_c) - flat(v_u))
    assert float((flat(v) - exact).abs().max() / exact.abs().max()) < 1e-6


def test_scales_in_float64_keep_all_their_bits(launches):
    x, v_c, v_u = velocities(2, 600)
    record = Record()
    gamma = 1 + 2.0**-40  # 1 in float32
    guided_velocity(CFG(1 + 1e-9) | Cap(math.inf), x, 0.5, v_c, v_u, record=record)
    guided_velocity(Gain(7) | CapDisplacement(gamma), x, 0.5, v_c, v_u, record=record)
    first, second = record._seen
    close(first.coefficient, torch.full((2,), 1 + 1e-9, dtype=torch.float64) - 1, 1e-15)
    close(second.coefficient, (gamma - 1) * second.lengths.m / second.lengths.d, 1e-6)
    assert launches == ["whole_samples"] * 2


def feasible_and_maximal(x, t, v_c, v_u, c, gamma, v, granted):
    """The excess of the stored result over the bound, in units of float32; and that no more was possible."""
    m, d = flat(x) + (1 - t) * flat(v_c), (1 - t) * (flat(v_c) - flat(v_u))
    bound = gamma * m.norm(dim=1)
    excess = (flat(x) + (1 - t) * flat(v)).norm(dim=1) / bound - 1
    further = m + (granted * (1 + 4e-6))[:, None] * d
    assert ((granted >= c) | (further.norm(dim=1) > bound * (1 - 1e-6))).all()
    return float(excess.max()) / UNIT


def worst_excess(seeds, samples, size):
    """Adversarial means and gaps, each under another gamma."""
    worst = 0.0
    for seed in seeds:
        m, gap = adversarial(seed, samples, size)
        gamma = torch.tensor([1.0, 1.0001, 1.05, 1.15, 2.0, 10.0], dtype=torch.float64).repeat(samples)[
            :samples
        ]
        x, v_c, v_u, scale = torch.zeros_like(m), m, m - gap, (2.0, 5.0, 50.0)[seed % 3]
        v, _, granted = step.capped_step(
            x, 0.0, v_c, v_u, scale - 1, gamma, None, ball=True, margin=4 * 2.0**-23, dtype=torch.float32
        )
        worst = max(worst, feasible_and_maximal(x, 0.0, v_c, v_u, scale - 1, gamma, v, granted))
    return worst


def test_the_stored_result_keeps_the_bound_to_one_unit(tall):
    assert worst_excess(range(8), 48, 4096) <= 1
    assert worst_excess(range(4), 12, 16384) <= 1
    assert worst_excess(range(4), 32, 1031) <= 1
    assert worst_excess(range(4), 60, 300) <= 1


def test_the_bound_also_holds_in_two_launches(tall):
    assert worst_excess(range(4), 4, 8200) <= 1


@pytest.mark.parametrize("size", [5, 640, 8200])
def test_every_scale_of_the_elements_is_served(size, tall):
    scales = 10.0 ** torch.tensor([-30, -20, -12, 0, 15, 19, 30, 35]).double()
    x, v_c, v_u = ((v * scales[:, None]).float() for v in velocities(8, size, seed=size))
    record = Record()
    v, _ = guided_velocity(CFG(6) | Cap(1.05), x, 0.25, v_c, v_u, record=record)
    m, d, along, c = truth(x, 0.25, v_c, v_u, 5.0, 1.05)
    (kept,) = record._seen
    close(kept.lengths.m, m, 3e-7)
    close(kept.lengths.d, d, 3e-7)
    assert ((kept.lengths.along - along).abs() <= 3e-7 * m).all()
    close(kept.coefficient, c, 2e-5)
    m = flat(x) + 0.75 * flat(v)
    assert (m.norm(dim=1) <= 1.05 * kept.lengths.m * (1 + 4 * UNIT)).all()


@pytest.mark.parametrize(("size", "seeds"), [(30, 4), (1024, 4), (8200, 1)])
def test_elements_of_every_scale_in_one_sample_are_summed(size, seeds, tall):
    for seed in range(seeds):
        g = torch.Generator().manual_seed(seed)
        spread = 10.0 ** torch.randint(-30, 36, (3, 3, size), generator=g).double()
        v_c, gap, x = (torch.randn(3, 3, size, generator=g, dtype=torch.float64) * spread).float()
        for m, d in ((v_c, gap), (gap * 1e-37, v_c), (v_c, gap * 1e-20)):
            record = Record()
            guided_velocity(CFG(6) | Cap(1.05), torch.zeros_like(x), 0.0, m, m - d, record=record)
            found = record._seen[0].lengths
            exact = truth(torch.zeros_like(x), 0.0, m, m - (m - (m - d)), 5.0, 1.05)
            close(found.m, exact[0], 3e-7)
            close(found.d, exact[1], 3e-7)
            assert ((found.along - exact[2]).abs() <= 3e-7 * exact[0]).all()


@pytest.mark.parametrize("size", [7, 4096, 8200])
def test_neighbours_change_no_bit_of_a_sample(size, tall):
    x, v_c, v_u = velocities(4, size)
    before, _ = guided_velocity(CFG(7) | Cap(1.1), x, 0.3, v_c, v_u)
    for tensor in (x, v_c, v_u):
        tensor[2], tensor[3] = 1e30, math.nan
    after, _ = guided_velocity(CFG(7) | Cap(1.1), x, 0.3, v_c, v_u)
    assert torch.equal(after[:2], before[:2]) and after[3].isnan().all()
    for broken in (x, v_c, v_u):
        for tensor, good in zip((x, v_c, v_u), velocities(4, size), strict=True):
            tensor.copy_(good)
        broken[1, -1] = math.nan
        after, _ = guided_velocity(CFG(7) | Cap(1.1), x, 0.3, v_c, v_u)
        assert after[1].isnan().all() and not after[[0, 2, 3]].isnan().any()


@pytest.mark.parametrize("shape", [(9, 1024), (40, 3), (2, 8200)])
def test_a_batch_equals_its_samples_in_any_order(shape):
    x, v_c, v_u = velocities(*shape)
    rule, order = CFG(7) | Cap(1.1), torch.randperm(shape[0])
    whole, _ = guided_velocity(rule, x, 0.3, v_c, v_u)
    assert torch.equal(guided_velocity(rule, x[order], 0.3, v_c[order], v_u[order])[0], whole[order])
    for i in range(2):
        one, _ = guided_velocity(rule, x[i : i + 1], 0.3, v_c[i : i + 1], v_u[i : i + 1])
        assert torch.equal(one, whole[i : i + 1])


@pytest.mark.parametrize("kind", [Cap, CapDisplacement])
@pytest.mark.parametrize("size", [20, 600, 8200])
def test_the_edges_of_the_theorem(kind, size, launches, tall):
    x, v, v_u = velocities(2, size)
    assert torch.equal(guided_velocity(CFG(5) | kind(1.1), x, 0.5, v, v)[0], v)  # no gap
    v_c = -x / 0.5  # m_c = 0 leaves no room
    assert torch.equal(guided_velocity(CFG(5) | kind(1.1), x, 0.5, v_c, v)[0], v_c)
    free, _ = guided_velocity(CFG(5), x, 1.0, v, v_u)  # at t = 1 the gap of the means vanishes
    torch.testing.assert_close(guided_velocity(CFG(5) | kind(1.1), x, 1.0, v, v_u)[0], free)
    free, _ = guided_velocity(CFG(5), x, 0.5, v_c, v_u)
    torch.testing.assert_close(guided_velocity(CFG(5) | kind(math.inf), x, 0.5, v_c, v_u)[0], free)
    v_u[0, 0] = math.inf  # nothing asked for is nothing added
    assert torch.equal(guided_velocity(CFG(1) | kind(1.1), x, 0.5, v, v_u)[0], v)
    assert len(launches) == (5 if size <= 8192 else 10)


def test_a_long_sample_is_folded_from_parts_of_several_tiles(monkeypatch, launches):
    few = kernels.tl.constexpr(4)
    monkeypatch.setattr(kernels, "PARTS", few)
    monkeypatch.setattr(step, "PARTS", few)
    monkeypatch.setattr(step, "TILE", 2048)
    for size in (17 * 1024, 20000):
        x, v_c, v_u = velocities(1, size)
        v, _ = guided_velocity(CFG(7) | Cap(1.1), x, 0.3, v_c, v_u)
        torch.testing.assert_close(v, eager(CFG(7) | Cap(1.1), x, 0.3, v_c, v_u)[0], rtol=2e-6, atol=2e-6)
    assert launches == ["part_sums", "part_velocities"] * 2
