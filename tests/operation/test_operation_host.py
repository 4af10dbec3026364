"""The operation on the CPU against float64; and that neither batch, order nor threads change a bit of it."""

import ctypes
import math
import multiprocessing
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
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

from cases import UNIT, adversarial

pytest.importorskip("numba")

from meancap.operation import fraction, host, host_threads

CAP = {"ball": True, "margin": MARGIN, "dtype": torch.float32, "mean": False}
USUAL = 1.0, 0.7, 6.0, 1.1, 0.0  # a, k, c, gamma, floor
SIZES = [1, 2, 3, 7, 16, 17, 31, 128, 129, 300, 4097, 32768, 32769, 65536 + 5]
HALF = torch.bfloat16
DTYPES = torch.float32, HALF


def capped(given, numbers=USUAL, **options):
    return cap_with(host, *given, *numbers, **{**CAP, **options})


def combined(given, c, a=1.0, k=0.7, dtype=torch.float32, mean=False):
    return combine_with(host, *given, a, k, c, dtype=dtype, mean=mean)


def agrees(given, numbers, **options):
    """Result, lengths and coefficient are those of float64; the terms of m may cancel in it."""
    a, k, c, gamma, floor = numbers
    result, found = capped(given, numbers, **options)
    m, d, along = lengths(*given, a, k)
    terms = lengths(given[0], *given[1:], a, 0.0)[0] + lengths(given[0], *given[1:], 0.0, k)[0]
    assert ((found[0] - m).abs() <= 2e-7 * terms).all()
    assert ((found[2] - along).abs() <= 3e-7 * terms).all()
    torch.testing.assert_close(found[1], d, rtol=3e-7, atol=0)
    ball, mean = options.get("ball", True), options.get("mean", False)
    left = coefficient(found, c, gamma, floor, ball=ball, margin=MARGIN)
    torch.testing.assert_close(found[3], left, rtol=1e-11, atol=0)
    exact = written(*given, a, k, found[3], mean=mean)
    torch.testing.assert_close(result.double(), exact, rtol=2e-7, atol=3e-7 * float(exact.abs().max()))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    ("x_dtype", "dtype"), [(torch.float32, torch.float32), (torch.float32, HALF), (HALF, HALF)]
)
def test_every_size_and_dtype_equals_float64(size, x_dtype, dtype):
    given = tensors(3, size, seed=size, dtype=dtype, x_dtype=x_dtype)
    agrees(given, USUAL)
    agrees(given, (1.3, -0.9, 6.0, 1.1, 0.0), mean=True)


EACH = torch.tensor([0.9, 0.5, -0.3, 0.0], dtype=torch.float64)
NUMBERS = {
    "numbers per sample": (1 + EACH, EACH, 7 * EACH, 1 + EACH.abs(), 30 * EACH),
    "one number as a tensor": (
        torch.tensor(1.2),
        torch.tensor([0.5]).double(),
        torch.tensor([5.0]),
        1.1,
        0.0,
    ),
    "some per sample": (1.0, EACH, 6.0, 1.1, torch.zeros(1)),
    "a mean": (0.0, 1.0, 6.0, 1.1, 0.0),
    "no gap of the means": (1.0, 0.0, 6.0, 1.1, 0.0),
    "a floor": (1.0, 0.7, 6.0, 1.0, 50.0),
    "a floor inside": (1.0, 0.7, 6.0, 1.5, 1e-3),
    "a floor below": (1.0, 0.7, 6.0, 1.1, -3.0),
    "away from the gap": (1.0, 0.7, -5.0, 1.1, 0.0),
    "no cap": (1.0, 0.7, 6.0, math.inf, 0.0),
    "gamma one": (1.0, 0.7, 6.0, 1.0, 0.0),
    "gamma above one": (1.0, 1e-6, 1e5, 1.0 + 2.0**-40, 0.0),
    "much room": (1.0, 0.7, 6.0, 1e200, 0.0),
    "a large floor": (1.0, 0.7, 6.0, 1.1, 1e200),
    "much asked for": (1.0, 0.7, 1e200, 1.1, 0.0),
}


@pytest.mark.parametrize("ball", [True, False])
@pytest.mark.parametrize("size", [2, 5, 700, 40000])
@pytest.mark.parametrize("numbers", NUMBERS.values(), ids=NUMBERS)
def test_numbers_in_every_form(numbers, size, ball):
    agrees(tensors(4, size), numbers, ball=ball)


@pytest.mark.parametrize("away", [1.0, -1.0])
@pytest.mark.parametrize("size", [2, 700])
def test_the_longest_displacements_are_capped(size, away):
    """m, d and k at the ends of float32: squares of k d, and their products with |m|^2, are finite."""
    out_c, out_u = torch.full((1, size), 1e-38), torch.full((1, size), away * 1e38)
    _, found = capped((torch.full((1, size), 1e37), out_c, out_u), (1.0, 1e38, 6.0, 1.1, 0.0))
    left = coefficient(found, 6.0, 1.1, 0.0, ball=True, margin=MARGIN)
    assert 0 < float(left) < 1e-30
    torch.testing.assert_close(found[3], left, rtol=1e-11, atol=0)


@pytest.mark.parametrize("ball", [True, False])
def test_the_share_is_the_one_statement(ball):
    """Lengths of every size, in samples of one and of two elements, and each number apart."""
    g = torch.Generator().manual_seed(0)
    n = 4000
    m, d, c, gamma, floor = (10 ** (12 * torch.rand(n, generator=g).double() - 6) for _ in range(5))
    c, floor = c * torch.randint(-1, 2, (n,), generator=g), floor * torch.randint(-1, 2, (n,), generator=g)
    gamma = torch.where(torch.rand(n, generator=g) < 0.1, math.inf, 1 + gamma)
    x, out_c, out_u = torch.randn(n, 2, generator=g), torch.zeros(n, 2), torch.randn(n, 2, generator=g)
    x[:100], out_u[100:200] = 0, 0
    _, found = cap_with(host, x, out_c, out_u, m, d, c, gamma, floor, **{**CAP, "ball": ball})
    s = fraction.kept(*found[:3], c, gamma, floor, ball=ball, margin=MARGIN)
    torch.testing.assert_close(found[3], torch.where(c == 0, c, c * s), rtol=1e-11, atol=0)


@pytest.mark.parametrize("mean", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [2, 9, 1000, 70000])
def test_the_three_functions_agree_to_the_bit(size, dtype, mean):
    given, options = tensors(3, size, dtype=dtype), {"dtype": dtype, "mean": mean}
    result, found = capped(given, **options)
    assert torch.equal(measure_with(host, *given, 1.0, 0.7), found[:3])
    assert torch.equal(combined(given, found[3], **options), result)
    free, left = capped(given, (1.0, 0.7, 6.0, 1e300, 0.0), **options)
    assert torch.equal(combined(given, 6.0, **options), free) and (left[3] == 6).all()


@pytest.mark.parametrize("dtype", [torch.float32, HALF])
@pytest.mark.parametrize("size", [2, 11, 1000])
def test_the_result_is_rounded_once_and_to_nearest(size, dtype):
    given = tensors(300, size, dtype=dtype)
    full, _ = capped(given)
    assert torch.equal(capped(given, dtype=HALF)[0], full.to(HALF))


def test_every_float32_becomes_the_bfloat16_that_torch_makes_of_it():
    g = torch.Generator().manual_seed(0)
    bits = torch.randint(-(2**31), 2**31, (1, 2**20), generator=g).int()
    bits[0, :4] = torch.tensor([0x7F800000, 0x7F7FFFFF, 0x3F808000, 0x3F818000])
    v = bits.view(torch.float32)
    stored = combined((v, v, v), 0.0, dtype=HALF)
    nan = v.isnan()
    assert torch.equal(stored[nan].isnan(), torch.ones_like(stored[nan], dtype=torch.bool))
    assert torch.equal(stored[~nan].view(torch.int16), v.to(HALF)[~nan].view(torch.int16))
    widened = combined((stored, stored, stored), 0.0)
    assert torch.equal(widened[~nan], stored[~nan].float())


@pytest.mark.parametrize("size", [2, 40, 1000, 40000])
def test_every_scale_of_the_elements_is_served(size):
    scales = 10.0 ** torch.arange(-30, 36, 5).double()
    given = [(v * scales[:, None]).float() for v in tensors(len(scales), size, seed=size)]
    result, found = capped(given, (1.0, 0.75, 5.0, 1.05, 0.0))
    m, d, along = lengths(*given, 1.0, 0.75)
    torch.testing.assert_close(found[:2], torch.stack([m, d]), rtol=1e-6, atol=0)
    assert ((found[2] - along).abs() <= 1e-6 * m).all()
    left = coefficient(torch.stack([m, d, along]), 5.0, 1.05, 0.0, ball=True, margin=MARGIN)
    reached = (flat(given[0]) + 0.75 * flat(result)).norm(dim=1)
    if size > 2:  # two elements may cancel
        assert ((found[3] / left - 1).abs() <= 8 * UNIT).all()  # four units of float32
        assert (reached <= 1.05 * m * (1 + 8 * UNIT)).all()


@pytest.mark.parametrize(("samples", "size"), [(48, 4096), (12, 40000), (32, 1031), (60, 300), (60, 20)])
def test_the_stored_result_keeps_the_bound(samples, size):
    for seed in range(8):
        m, gap = adversarial(seed, samples, size)
        gamma = torch.tensor([1.0, 1.0001, 1.05, 1.15, 2.0, 10.0]).double().repeat(samples)[:samples]
        c = (1.0, 4.0, 49.0)[seed % 3]
        result, found = capped((m, m, m - gap), (0.0, 1.0, c, gamma, 0.0))
        bound = gamma * flat(m).norm(dim=1)
        assert float((flat(result).norm(dim=1) / bound - 1).max()) <= UNIT
        further = flat(m) + (found[3] * (1 + 4e-6))[:, None] * (flat(m) - flat(m - gap))
        assert ((found[3] >= c) | (further.norm(dim=1) > bound * (1 - 1e-6))).all()  # no more was possible


@pytest.mark.parametrize("mean", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1, 2, 7, 100, 4097, 70000])
def test_a_batch_equals_its_samples_in_any_order(size, dtype, mean):
    n = 600 if size < 200 else 5
    given, order = tensors(n, size, dtype=dtype), torch.randperm(n)
    k = torch.linspace(-1, 1, n).double()
    options = {"dtype": dtype, "mean": mean}
    whole, found = capped(given, (1.0, k, 6.0, 1.1, 0.0), **options)
    turned, moved = capped([v[order] for v in given], (1.0, k[order], 6.0, 1.1, 0.0), **options)
    assert torch.equal(turned, whole[order]) and torch.equal(moved, found[:, order])
    for i in range(0, n, max(n // 5, 1)):
        one, its = capped([v[i : i + 1] for v in given], (1.0, float(k[i]), 6.0, 1.1, 0.0), **options)
        assert torch.equal(one, whole[i : i + 1]) and torch.equal(its, found[:, i : i + 1])


@pytest.mark.parametrize("size", [2, 7, 200, 40000])
def test_what_is_not_finite_stays_in_its_sample(size):
    good = tensors(4, size)
    before, lengths_before = capped(good)
    for value in (math.nan, math.inf, 1e38):
        for i in range(3):
            given = tensors(4, size)
            given[i][1, -1] = value
            after, found = capped(given)
            others = [0, 2, 3]
            assert torch.equal(after[others], before[others])
            assert torch.equal(found[:, others], lengths_before[:, others])
            if math.isnan(value):
                assert after[1].isnan().all() and found[[0, 3], 1].isnan().all() | (i == 2)


@pytest.mark.parametrize("ball", [True, False])
@pytest.mark.parametrize("size", [2, 20, 600, 40000])
def test_the_edges_of_the_theorem(ball, size):
    x, v, u = tensors(2, size)
    assert torch.equal(capped((x, v, v), ball=ball)[0], v)  # no gap
    still = -x / 0.5  # m = 0 leaves no room
    assert torch.equal(capped((x, still, u), (1.0, 0.5, 4.0, 1.1, 0.0), ball=ball)[0], still)
    free = combined((x, v, u), 4.0, k=0.0)
    assert torch.equal(
        capped((x, v, u), (1.0, 0.0, 4.0, 1.1, 0.0), ball=ball)[0], free
    )  # no gap of the means
    free = combined((x, still, u), 4.0)
    assert torch.equal(capped((x, still, u), (1.0, 0.5, 4.0, math.inf, 0.0), ball=ball)[0], free)
    u[0, 0], u[1, 1] = math.inf, math.nan
    result, found = capped((x, v, u), (1.0, 0.5, 0.0, 1.1, 0.0), ball=ball)
    assert torch.equal(result, v) and (found[3] == 0).all()  # nothing asked for


@pytest.mark.parametrize("size", [1, 2, 20, 40000])
def test_coefficients_0_and_minus_1_are_the_outputs_themselves(size):
    x, v, u = tensors(2, size)
    away = combined((x, v, u), -1.0, k=0.5, mean=True)
    assert torch.equal(away, combined((x, u, u), 0.0, k=0.5, mean=True))
    for bad in (math.inf, math.nan, 1e38):
        u[0, 0] = bad
        assert torch.equal(combined((x, v, u), 0.0), v)
        assert torch.equal(combined((x, u, v), -1.0), v)
        assert torch.equal(combined((x, v, u), 0.0, mean=True), combined((x, v, v), 0.0, mean=True))
    assert torch.equal(combined((x, v, u), torch.tensor([0.0, -1.0]).double()), torch.stack([v[0], u[1]]))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "shape", [(300_000, 2), (300, 1000), (1, 300_001), (3, 200_000), (8, 40_000)], ids=str
)
def test_threads_change_no_bit(shape, dtype):
    given = tensors(*shape, dtype=dtype)
    one = capped(given, dtype=dtype)
    for threads in (2, 3, 5):
        torch.set_num_threads(threads)
        several = capped(given, dtype=dtype)
        assert torch.equal(several[0], one[0]) and torch.equal(several[1], one[1])
        assert torch.equal(measure_with(host, *given, 1.0, 0.7), one[1][:3])
        assert torch.equal(combined(given, one[1][3], dtype=dtype), one[0])


def test_several_python_threads_may_call_at_once():
    torch.set_num_threads(2)
    given = [tensors(1, 300_000 + i, seed=i) for i in range(8)]
    expected = [capped(v) for v in given]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(5):
            for (a, b), (c, d) in zip(pool.map(capped, given), expected, strict=True):
                assert torch.equal(a, c) and torch.equal(b, d)


@pytest.mark.parametrize("shape", [(300_000, 2), (1, 600_001), (8, 90_000)], ids=str)
def test_a_team_that_is_smaller_than_asked_for_leaves_nothing_out(shape, monkeypatch):
    given = tensors(*shape)
    expected = capped(given)
    torch.set_num_threads(3)
    lent = []

    def one_thread(address, data, workers, flags):
        lent.append(workers)
        ctypes.CFUNCTYPE(None, ctypes.c_int64)(address)(data)

    monkeypatch.setattr(host_threads, "_lend", lambda: one_thread)
    found = capped(given)
    assert torch.equal(found[0], expected[0]) and torch.equal(found[1], expected[1])
    assert lent and set(lent) <= {2, 3}


def test_where_torch_has_no_openmp_one_thread_does_it(monkeypatch):
    given = tensors(1, 600_001)
    expected = capped(given)
    torch.set_num_threads(2)
    monkeypatch.setattr(host_threads, "_lend", lambda: None)
    assert host_threads.threads() == 1 and torch.equal(capped(given)[0], expected[0])


def _in_child(given, expected):
    # Compared by numpy: torch's own threads do not come back after a fork.
    os._exit(0 if np.array_equal(capped(given)[0].numpy(), expected.numpy()) else 1)


_FORK = """
import multiprocessing, torch
from meancap import CFG, Cap, guided_velocity
torch.set_num_threads(2)
x, c, u = torch.randn(3, 8, 1 << 18)
(x * 2).exp().sum()
def child(): guided_velocity(CFG(7) | Cap(1.1), x, 0.3, c, u)
process = multiprocessing.get_context("fork").Process(target=child)
process.start()
process.join(60)
print(process.exitcode)
process.kill()
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_process_forked_before_the_first_step_works_by_one_thread():
    """torch's threads exist, the kernels are not imported yet."""
    done = subprocess.run([sys.executable, "-c", _FORK], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "0", done.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_forked_process_works_by_one_thread():
    given = tensors(1, 300_000)
    expected, _ = capped(given)
    torch.set_num_threads(2)
    capped(given)
    child = multiprocessing.get_context("fork").Process(target=_in_child, args=(given, expected), daemon=True)
    child.start()
    child.join(60)
    assert child.exitcode == 0


def test_memory_in_any_order_is_read():
    x, out_c, out_u = tensors(2, 4, 24, 24)
    expected, _ = capped((x, out_c, out_u))
    pair = torch.cat([out_u, out_c])
    u, c = pair.chunk(2)
    wide = torch.cat([out_c, out_u], 1)
    last = [v.contiguous(memory_format=torch.channels_last) for v in (x, out_c, out_u)]
    turned = torch.complex(x, -x).conj().imag  # x, by a bit that says "negated"
    for given in ((x, c, u), (x, wide[:, :4], wide[:, 4:]), last, (turned, out_c, out_u)):
        assert torch.equal(capped(given)[0], expected)
    whole, _ = capped((x[:1].expand(2, -1, -1, -1), out_c, out_u))
    assert torch.equal(whole[:1], expected[:1])


def test_gradients_are_not_followed_and_do_not_disturb():
    given = tensors(2, 300)
    result, found = capped([v.clone().requires_grad_() for v in given])
    assert not result.requires_grad and not found.requires_grad
    assert torch.equal(result, capped(given)[0])


def test_nothing_is_something():
    for shape in ((0, 5), (0, 300), (3, 0)):
        result, found = capped(tensors(*shape))
        assert result.shape == shape and found.shape == (4, shape[0])
    assert (found[:3] == 0).all() and (found[3] == 6).all()


def test_what_does_not_fit_together_is_refused():
    x, v, u = tensors(2, 300)
    with pytest.raises(ValueError, match="one shape"):
        capped((x, v, u[:, :200]))
    with pytest.raises(ValueError, match="one dtype"):
        capped((x, v, u.bfloat16()))
    with pytest.raises(TypeError, match="float32 and bfloat16"):
        capped((x.double(), v, u))
    with pytest.raises(TypeError, match="on meta"):
        capped((x.to("meta"), v, u))
    with pytest.raises(ValueError, match="one number for all samples, or one for each"):
        capped((x, v, u), (1.0, torch.ones(3), 6.0, 1.1, 0.0))


@pytest.mark.slow
def test_without_a_place_for_its_cache_numba_compiles_all_the_same(tmp_path):
    """A read-only installation: numba refuses `cache=True` with a RuntimeError there."""
    code = (
        "import numba, torch\n"
        "from numba.core import caching\n"
        "def nowhere(*args, **options): raise RuntimeError('cannot cache')\n"
        "caching.FunctionCache.__init__ = nowhere\n"
        "from meancap.operation import host\n"
        "x = torch.ones(1, 20)\n"
        "from meancap.operation import Request\n"
        "print(host.run(Request(x, x, x, (1.0, 1.0, 0.0, 1.0, 0.0)))[1][0].item())\n"
    )
    job = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert job.returncode == 0 and float(job.stdout) == pytest.approx(2 * math.sqrt(20)), job.stderr


@pytest.mark.parametrize("size", [2, 300, 70_000])
@pytest.mark.parametrize("mean", [False, True])
def test_a_direction_given_itself_is_the_difference(size, mean):
    g = torch.Generator().manual_seed(size)
    x, c, u = (torch.randn(3, size, generator=g) for _ in range(3))
    d = c - u
    exact = c - (c - d)  # what the kernels subtract is then exactly what is given
    given, options = (x, c, c - exact), {"mean": mean}
    result, found = capped(given, **options)
    direct, seen = capped((x, c, given[1] - given[2]), direct=True, **options)
    torch.testing.assert_close(direct, result, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(seen, found, rtol=1e-6, atol=1e-6)
    assert torch.equal(
        combine_with(host, x, c, d, 1.0, 0.7, -1.0, direct=True, mean=False, dtype=x.dtype), c - d
    )


@pytest.mark.parametrize("mean", [False, True])
@pytest.mark.parametrize("size", [2, 144, 40000])
def test_a_state_that_does_not_count_is_not_looked_at(size, mean):
    """Where a = 0 in one sample, whatever its x holds."""
    x, out_c, other = tensors(3, size)
    a = torch.tensor([0.0, 1.0, 0.5], dtype=torch.float64)
    usual = capped((x, out_c, other), (a, 0.7, 6.0, 1.1, 0.0), mean=mean)
    x[0] = torch.nan
    for found, expected in zip(
        capped((x, out_c, other), (a, 0.7, 6.0, 1.1, 0.0), mean=mean), usual, strict=True
    ):
        assert torch.equal(found, expected)


def test_numbers_may_be_negative_views():
    given, gammas = tensors(3, 40), torch.tensor([1.1, 1.2, 1.3], dtype=torch.float64)
    usual = capped(given, (1.0, 0.7, 6.0, gammas, 0.0))[0]
    assert torch.equal(capped(given, (1.0, 0.7, 6.0, torch._neg_view(-gammas), 0.0))[0], usual)


@pytest.mark.parametrize("mean", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1, 2, 16, 17, 700])
def test_numbers_of_its_own_change_no_bit_of_a_sample(size, dtype, mean):
    """Alone, a sample shares its numbers with nobody; in a batch, each has others."""
    given, g = tensors(300, size, dtype=dtype), torch.Generator().manual_seed(1)
    a, k, c, gamma = (torch.rand(300, generator=g, dtype=torch.float64) for _ in range(4))
    numbers = a, k, 8 * c - 2, 1 + gamma / 4
    together = capped(given, (*numbers, 0.0), mean=mean)
    for i in range(0, 300, 37):
        alone = capped([v[i : i + 1] for v in given], (*[float(v[i]) for v in numbers], 0.0), mean=mean)
        assert torch.equal(alone[0], together[0][i : i + 1])
        assert torch.equal(alone[1], together[1][:, i : i + 1])
