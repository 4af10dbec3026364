"""The CUDA kernels against float64, in Triton's interpreter: test_operation_triton.py runs this file.

Triton is imported by the fixtures and by the first launch, because pytest may read this where it is missing.
"""

import math

import pytest
import torch
from operation_truth import (
    MARGIN,
    cap_with,
    coefficient,
    combine_with,
    flat,
    lengths,
    measure_with,
    tensors,
    written,
)
from reaching import WAYS

from cases import UNIT, adversarial
from meancap.operation import calls, cuda, dispatch

# The interpreter computes with numpy, which tells of each 0 / 0 in a lane that is masked off.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

KERNELS = ("whole_samples", "part_sums", "part_results")
TWO = ["part_sums", "part_results"]
CAP = {"ball": True, "margin": MARGIN, "dtype": torch.float32, "mean": False}


class Watched:
    """A kernel that tells when it is launched."""

    def __init__(self, name, kernel, seen):
        self.name, self.kernel, self.seen = name, kernel, seen

    def __getitem__(self, grid):
        self.seen.append(self.name)
        return self.kernel[grid]


@pytest.fixture
def launches(monkeypatch):
    """The kernels, in the order in which they were launched."""
    from meancap.operation import triton_kernels

    seen = []
    for name in KERNELS:
        monkeypatch.setattr(triton_kernels, name, Watched(name, getattr(triton_kernels, name), seen))
    return seen


@pytest.fixture
def tall(monkeypatch):
    """Few programs with much to do each: the interpreter pays by the program, not by the element."""
    monkeypatch.setattr(cuda, "LEAST", 2**16)
    monkeypatch.setattr(cuda, "TILE", 2**14)


def agrees(given, a, k, c, gamma, floor, *, ball=True, mean=False):
    """Result, lengths and coefficient are those of float64; what was given may cancel in m."""
    result, found = cap_with(
        cuda, *given, a, k, c, gamma, floor, ball=ball, margin=MARGIN, dtype=torch.float32, mean=mean
    )
    m, d, along = lengths(*given, a, k)
    terms = (
        lengths(given[0], given[1].abs(), -given[1].abs(), a, k)[1] + lengths(given[0], *given[1:], a, 0)[0]
    )
    assert ((found[0] - m).abs() <= 2e-7 * terms).all()
    assert ((found[2] - along).abs() <= 3e-7 * terms).all()
    torch.testing.assert_close(found[1], d, rtol=3e-7, atol=0)
    left = coefficient(found, c, gamma, floor, ball=ball, margin=MARGIN)
    torch.testing.assert_close(found[3], left, rtol=1e-11, atol=0)
    exact = written(*given, a, k, found[3], mean=mean)
    assert float((result - exact).abs().max() / exact.abs().max()) < 3e-7
    return result, found


LAYOUTS = [
    (3, 7), (2, 1), (600, 2), (2, 511), (2, 1000), (2, 77, 24), (5, 4, 16, 16), (1, 16384), (1, 3, 5, 24, 33),
    (1, 16400), (2, 8193),
]  # fmt: skip


@pytest.mark.parametrize("shape", LAYOUTS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_layout_equals_float64(shape, dtype, launches):
    given = tensors(*shape, dtype=dtype)
    agrees(given, 1.0, 0.7, 6.0, 1.1, 0.0)
    size = given[0][0].numel()
    assert launches == (["whole_samples"] if size <= (16384 if size % 16 == 0 else 8192) else TWO)


EACH = torch.tensor([0.9, 0.5, -0.3], dtype=torch.float64)
NUMBERS = {
    "a noise": (1.4, -0.9, 6.0, 1.1, 0.0),
    "numbers per sample": (1 + EACH, EACH, 7 * EACH, 1 + EACH.abs(), 30 * EACH),
    "one number as a tensor": (
        torch.tensor(1.2),
        torch.tensor([0.5]).double(),
        torch.tensor([5.0]),
        1.1,
        0.0,
    ),
    "a mean": (0.0, 1.0, 6.0, 1.1, 0.0),
    "no gap of the means": (1.0, 0.0, 6.0, 1.1, 0.0),
    "a floor": (1.0, 0.7, 6.0, 1.0, 50.0),
    "a floor inside": (1.0, 0.7, 6.0, 1.5, 1e-3),
    "away from the gap": (1.0, 0.7, -5.0, 1.1, 0.0),
    "no cap": (1.0, 0.7, 6.0, math.inf, 0.0),
    "gamma one": (1.0, 0.7, 6.0, 1.0, 0.0),
    "gamma above one": (1.0, 1e-6, 1e5, 1.0 + 2.0**-40, 0.0),
}


@pytest.mark.parametrize(
    ("ball", "mean", "size"), [(True, False, 2048), (True, True, 600), (False, False, 40)]
)
@pytest.mark.parametrize("given", NUMBERS.values(), ids=NUMBERS)
def test_numbers_in_every_form(given, ball, mean, size, launches):
    agrees(tensors(3, size), *given, ball=ball, mean=mean)
    assert launches == ["whole_samples"]


@pytest.mark.parametrize(("ball", "mean"), [(True, True), (False, False)])
@pytest.mark.parametrize("given", ["a noise", "numbers per sample"])
def test_numbers_mean_the_same_in_two_launches(ball, mean, given, launches, tall):
    agrees(tensors(3, 8193), *NUMBERS[given], ball=ball, mean=mean)
    assert launches == TWO


@pytest.mark.slow
@pytest.mark.parametrize("mean", [False, True])
@pytest.mark.parametrize("size", [40, 2048, 8193])
def test_the_three_functions_agree_to_the_bit(size, mean, launches, tall):
    given = tensors(3, size)
    result, found = cap_with(cuda, *given, 1.2, -0.7, 6.0, 1.1, 0.0, **{**CAP, "mean": mean})
    assert torch.equal(measure_with(cuda, *given, 1.2, -0.7), found[:3])
    again = combine_with(cuda, *given, 1.2, -0.7, found[3], dtype=torch.float32, mean=mean)
    assert torch.equal(again, result)
    free, left = cap_with(cuda, *given, 1.2, -0.7, 6.0, 1e300, 0.0, **{**CAP, "mean": mean})
    assert torch.equal(combine_with(cuda, *given, 1.2, -0.7, 6.0, dtype=torch.float32, mean=mean), free)
    assert (left[3] == 6).all()
    short = size <= 8192
    assert launches == (["whole_samples"] * 5 if short else [*TWO, *TWO, TWO[1], *TWO, TWO[1]])


@pytest.mark.parametrize(
    ("dtype", "x_dtype", "shape"),
    [
        (torch.float32, torch.float32, (2, 600)),
        (torch.bfloat16, torch.bfloat16, (2, 600)),
        (torch.float16, torch.float32, (2, 600)),
        (torch.float32, torch.bfloat16, (2, 300)),
        (torch.bfloat16, torch.float32, (1, 8200)),
    ],
)
def test_the_result_has_the_dtype_asked_for_and_is_rounded_once(dtype, x_dtype, shape):
    given = tensors(*shape, dtype=dtype, x_dtype=x_dtype)
    full, _ = agrees(given, 1.0, 0.7, 6.0, 1.1, 0.0)
    for asked in (torch.float32, torch.bfloat16, torch.float16):
        result, _ = cap_with(cuda, *given, 1.0, 0.7, 6.0, 1.1, 0.0, **{**CAP, "dtype": asked})
        assert result.dtype == asked
        if asked == torch.bfloat16:  # the interpreter cuts where a device rounds
            torch.testing.assert_close(result.float(), full, rtol=2.0**-7, atol=0)
        else:
            assert torch.equal(result, full.to(asked))


def test_samples_are_read_as_they_lie_in_memory_where_they_agree(launches, monkeypatch):
    x, out_c, out_u = tensors(2, 4, 24, 24)
    numbers = 1.0, 0.7, 6.0, 1.1, 0.0
    expected, _ = cap_with(cuda, x, out_c, out_u, *numbers, **CAP)
    wide = torch.cat([out_c, out_u], 1)
    last = [v.contiguous(memory_format=torch.channels_last) for v in (x, out_c, out_u)]
    with monkeypatch.context() as patch:
        patch.setattr(torch.Tensor, "contiguous", None)  # no copies here
        for given in ((x, wide[:, :4], wide[:, 4:]), last):
            result, _ = cap_with(cuda, *given, *numbers, **CAP)
            torch.testing.assert_close(result, expected, rtol=3e-6, atol=3e-6)
            assert result.stride() == given[0].stride()
    for given in ((x, last[1], out_u), (x, out_c.mT.contiguous().mT, out_u)):
        result, _ = cap_with(cuda, *given, *numbers, **CAP)
        torch.testing.assert_close(result, expected, rtol=3e-6, atol=3e-6)
    agrees((x, torch.randn(2, 4, 24, 48)[..., ::2], out_u), *numbers)
    agrees((x[:1].expand(2, -1, -1, -1), out_c, out_u), *numbers)
    assert set(launches) == {"whole_samples"}


def worst_excess(seeds, samples, size):
    """The excess of the stored mean over its bound, in units of float32, for adversarial means and gaps."""
    worst = 0.0
    for seed in seeds:
        m, gap = adversarial(seed, samples, size)
        gamma = torch.tensor([1.0, 1.0001, 1.05, 1.15, 2.0, 10.0]).double().repeat(samples)[:samples]
        c = (1.0, 4.0, 49.0)[seed % 3]
        result, found = cap_with(cuda, m, m, m - gap, 0.0, 1.0, c, gamma, 0.0, **CAP)
        bound = gamma * flat(m).norm(dim=1)
        worst = max(worst, float((flat(result).norm(dim=1) / bound - 1).max()) / UNIT)
        further = flat(m) + (found[3] * (1 + 4e-6))[:, None] * (flat(m) - flat(m - gap))
        assert ((found[3] >= c) | (further.norm(dim=1) > bound * (1 - 1e-6))).all()  # no more was possible
    return worst


@pytest.mark.slow
def test_the_stored_result_keeps_the_bound_to_one_unit(tall):
    assert worst_excess(range(8), 48, 4096) <= 1
    assert worst_excess(range(4), 12, 16384) <= 1
    assert worst_excess(range(4), 32, 1031) <= 1
    assert worst_excess(range(4), 60, 300) <= 1
    assert worst_excess(range(4), 4, 8200) <= 1


@pytest.mark.parametrize("size", [5, 640, 8200])
def test_every_scale_of_the_elements_is_served(size, tall):
    scales = 10.0 ** torch.tensor([-30, -20, -12, 0, 15, 19, 30, 35]).double()
    given = [(v * scales[:, None]).float() for v in tensors(8, size, seed=size)]
    result, found = cap_with(cuda, *given, 1.0, 0.75, 5.0, 1.05, 0.0, **CAP)
    m, d, along = lengths(*given, 1.0, 0.75)
    torch.testing.assert_close(found[:2], torch.stack([m, d]), rtol=3e-7, atol=0)
    assert ((found[2] - along).abs() <= 3e-7 * m).all()
    left = coefficient(found, 5.0, 1.05, 0.0, ball=True, margin=MARGIN)
    torch.testing.assert_close(found[3], left, rtol=1e-11, atol=0)
    guided = flat(given[0]) + 0.75 * flat(result)
    assert (guided.norm(dim=1) <= 1.05 * m * (1 + 4 * UNIT)).all()


@pytest.mark.slow
@pytest.mark.parametrize(("size", "seeds"), [(30, 4), (1024, 4), (8200, 1)])
def test_elements_of_every_scale_in_one_sample_are_summed(size, seeds, tall):
    for seed in range(seeds):
        g = torch.Generator().manual_seed(seed)
        spread = 10.0 ** torch.randint(-30, 36, (2, 3, size), generator=g).double()
        v, gap = (torch.randn(2, 3, size, generator=g, dtype=torch.float64) * spread).float()
        for m, d in ((v, gap), (gap * 1e-37, v), (v, gap * 1e-20)):
            found = measure_with(cuda, m, m, m - d, 0.0, 1.0)
            exact = lengths(m, m, m - (m - (m - d)), 0.0, 1.0)  # the difference, rounded as in float32
            torch.testing.assert_close(found[:2], exact[:2], rtol=3e-7, atol=0)
            assert ((found[2] - exact[2]).abs() <= 3e-7 * exact[0]).all()


@pytest.mark.slow
@pytest.mark.parametrize("size", [7, 4096, 8200])
def test_neighbours_change_no_bit_of_a_sample(size, tall):
    given = tensors(4, size)
    before, _ = cap_with(cuda, *given, 1.0, 0.7, 6.0, 1.1, 0.0, **CAP)
    for tensor in given:
        tensor[2], tensor[3] = 1e30, math.nan
    after, _ = cap_with(cuda, *given, 1.0, 0.7, 6.0, 1.1, 0.0, **CAP)
    assert torch.equal(after[:2], before[:2]) and after[3].isnan().all()
    for i in range(3):
        given = tensors(4, size)
        given[i][1, -1] = math.nan
        after, _ = cap_with(cuda, *given, 1.0, 0.7, 6.0, 1.1, 0.0, **CAP)
        assert after[1].isnan().all() and not after[[0, 2, 3]].isnan().any()


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(9, 1024), (40, 3), (2, 8200)])
def test_a_batch_equals_its_samples_in_any_order(shape):
    given, order = tensors(*shape), torch.randperm(shape[0])
    whole, _ = cap_with(cuda, *given, 1.0, 0.7, 6.0, 1.1, 0.0, **CAP)
    turned, _ = cap_with(cuda, *(v[order] for v in given), 1.0, 0.7, 6.0, 1.1, 0.0, **CAP)
    assert torch.equal(turned, whole[order])
    for i in range(2):
        one, _ = cap_with(cuda, *(v[i : i + 1] for v in given), 1.0, 0.7, 6.0, 1.1, 0.0, **CAP)
        assert torch.equal(one, whole[i : i + 1])


@pytest.mark.parametrize("ball", [True, False])
@pytest.mark.parametrize("size", [20, 600, 8200])
def test_the_edges_of_the_theorem(ball, size, tall):
    (x, v, u), cap = tensors(2, size), {**CAP, "ball": ball}
    assert torch.equal(cap_with(cuda, x, v, v, 1.0, 0.5, 4.0, 1.1, 0.0, **cap)[0], v)  # no gap
    still = -x / 0.5  # m = 0 leaves no room
    assert torch.equal(cap_with(cuda, x, still, u, 1.0, 0.5, 4.0, 1.1, 0.0, **cap)[0], still)
    free = combine_with(cuda, x, v, u, 1.0, 0.0, 4.0, dtype=torch.float32, mean=False)
    assert torch.equal(
        cap_with(cuda, x, v, u, 1.0, 0.0, 4.0, 1.1, 0.0, **cap)[0], free
    )  # no gap of the means
    u[0, 0], u[1, 1] = math.inf, math.nan
    assert torch.equal(cap_with(cuda, x, v, u, 1.0, 0.5, 0.0, 1.1, 0.0, **cap)[0], v)  # nothing asked for


@pytest.mark.parametrize("size", [20, 600, 8200])
def test_coefficients_0_and_minus_1_are_the_outputs_themselves(size, tall):
    x, v, u = tensors(2, size)
    how = {"dtype": torch.float32, "mean": True}
    away = combine_with(cuda, x, v, u, 1.0, 0.5, -1.0, **how)
    assert torch.equal(away, combine_with(cuda, x, u, u, 1.0, 0.5, 0.0, **how))
    torch.testing.assert_close(
        away.double(), written(x, u, u, 1.0, 0.5, 0.0, mean=True), rtol=1e-6, atol=1e-6
    )
    for bad in (math.inf, math.nan):
        u[0, 0] = bad
        assert torch.equal(combine_with(cuda, x, v, u, 1.0, 0.5, 0.0, dtype=torch.float32, mean=False), v)
        assert torch.equal(combine_with(cuda, x, u, v, 1.0, 0.5, -1.0, dtype=torch.float32, mean=False), v)


def test_a_long_sample_is_folded_from_parts_of_several_tiles(monkeypatch, launches):
    from meancap.operation import triton_kernels

    monkeypatch.setattr(triton_kernels, "PARTS", triton_kernels.tl.constexpr(4))
    monkeypatch.setattr(cuda, "TILE", 2048)
    for size in (17 * 1024, 20000):
        agrees(tensors(1, size), 1.0, 0.7, 6.0, 1.1, 0.0)
    assert launches == TWO * 2


@pytest.mark.parametrize("size", [40, 2048, 8193])
def test_a_direction_may_be_given_itself(size, launches, tall):
    x, c, u = tensors(3, size)
    result, found = cap_with(cuda, x, c, u, *NUMBERS["a noise"], **CAP)
    direct, seen = cap_with(cuda, x, c, c - u, *NUMBERS["a noise"], **CAP, direct=True)
    assert torch.equal(direct, result) and torch.equal(seen, found)


@pytest.mark.filterwarnings("ignore::FutureWarning")  # of diffusers, by itself
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_every_loop_and_host_reaches_the_kernels(way, monkeypatch):
    monkeypatch.setattr(dispatch, "_module", lambda *given: cuda)
    before = calls.copy()
    steps = way()
    assert {name: calls[name] - before[name] for name in ("cuda", "cpu", "reference")} == {
        "cuda": steps, "cpu": 0, "reference": 0
    }  # fmt: skip


def test_memory_is_read_as_it_is_meant():
    x, out_c, other = tensors(3, 40)
    usual = cap_with(cuda, x, out_c, other, 1.0, 0.7, 6.0, 1.1, **CAP)[0]
    negative = torch._neg_view(-x)
    assert torch.equal(cap_with(cuda, negative, out_c, other, 1.0, 0.7, 6.0, 1.1, **CAP)[0], usual)
    with pytest.raises(ValueError, match="one shape"):
        cap_with(cuda, x, out_c[:, :12], other, 1.0, 0.7, 6.0, 1.1, **CAP)
    lost = cap_with(cuda, torch.full_like(x, torch.nan), out_c, other, 0.0, 1.0, 6.0, 1.1, **CAP)
    assert lost[0].isfinite().all() and lost[1].isfinite().all()


@pytest.mark.parametrize("c", [math.nan, math.inf, -math.inf])
def test_a_coefficient_that_is_not_finite_stays_so(c):
    assert cap_with(cuda, *tensors(3, 40), 1.0, 0.7, c, 1.1, **CAP)[1][3].isnan().all()
