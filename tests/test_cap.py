"""The compiled leaves are the torch forms, sample by sample, and both are right over the whole range."""

import math
import os
import subprocess
import sys
import warnings

import pytest
import torch

from cases import UNIT, adversarial
from meancap import CFG, Cap, CapDisplacement, Prediction, cap, guide, guided_velocity, noise, sample, uniform
from meancap.cap import Lengths, blend, cap_share, lengths
from meancap.rules import Displacement

pytest.importorskip("numba")
from meancap import fast

HALF = torch.bfloat16
SIZES = [1, 2, 3, 16, 17, 127, 128, 129, 300, 4097]
EACH = torch.tensor([0.9, 0.5, -0.3, 0.0], dtype=torch.float64)


def tensors(*shape, seed=0, dtype=torch.float32, x_dtype=None):
    """A state and the two outputs of a network."""
    g = torch.Generator().manual_seed(seed)
    x, c, other = (torch.randn(*shape, generator=g) for _ in range(3))
    return x.to(x_dtype or dtype), c.to(dtype), (c + other).to(dtype)


def without_numba(monkeypatch):
    monkeypatch.setattr(cap, "import_fast", lambda: None)


def exact_lengths(x, c, u, a, k):
    a, k = (torch.as_tensor(v, dtype=torch.float64).reshape(-1, 1) for v in (a, k))
    m = a * x.double().flatten(1) + k * c.double().flatten(1)
    d = k * (c.double() - u.double()).flatten(1)
    length = d.norm(dim=1)
    return m.norm(dim=1), length, torch.where(length == 0, 0.0, (m * d).sum(1) / length)


@pytest.mark.parametrize("numba", [True, False])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("x_dtype", "dtype"), [(torch.float32,) * 2, (torch.float32, HALF), (HALF, HALF)])
@pytest.mark.parametrize(("a", "k"), [(1.0, 0.7), (0.0, 1.0), (1.3, -0.9), (1 + EACH, EACH)])
def test_lengths_are_those_in_float64(numba, size, x_dtype, dtype, a, k, monkeypatch):
    given = tensors(4, size, seed=size, dtype=dtype, x_dtype=x_dtype)
    if not numba:
        without_numba(monkeypatch)
    p = Prediction(given[0], 0.5, *given[1:], a=a, k=k)
    found, (m, d, along) = p.lengths, exact_lengths(*given, a, k)
    terms = given[0].double().norm(dim=1) * 2 + given[1].double().norm(dim=1) * 2  # m may be short of them
    assert ((found.base - m).abs() <= 2e-7 * terms).all()
    assert ((found.along - along).abs() <= 3e-7 * terms)[d > 0].all()
    torch.testing.assert_close(found.direction, d, rtol=3e-7, atol=0)


@pytest.mark.parametrize("numba", [True, False])
@pytest.mark.parametrize("decade", [-38, -30, -15, 0, 15, 30])
def test_lengths_are_accurate_over_the_range_of_float32(numba, decade, monkeypatch):
    m, d = (v * torch.tensor(10.0**decade) for v in adversarial(1, 4, 640))
    if not numba:
        without_numba(monkeypatch)
    found, base, direction = lengths(m, d), m.double().norm(dim=1), d.double().norm(dim=1)
    along = (m.double() * d.double()).sum(1) / direction
    torch.testing.assert_close(found.base, base, rtol=4e-7, atol=0)
    torch.testing.assert_close(found.direction, direction, rtol=4e-7, atol=0)
    assert ((found.along - along).abs() <= 6e-7 * base).all()


NUMBERS = {
    "a cap": (6.0, 1.1, 0.0),
    "per sample": (7 * EACH, 1 + EACH.abs(), 30 * EACH),
    "a floor": (6.0, 1.0, 50.0),
    "a floor inside": (6.0, 1.5, 1e-3),
    "a floor below": (6.0, 1.1, -3.0),
    "away from the gap": (-5.0, 1.1, 0.0),
    "no cap": (6.0, math.inf, 0.0),
    "gamma one": (6.0, 1.0, 0.0),
    "gamma just above one": (1e5, 1.0 + 2.0**-40, 0.0),
    "a large gamma": (6.0, 1e100, 0.0),
    "a large floor": (6.0, 1.1, 1e200),
    "much requested": (1e200, 1.1, 0.0),
    "nothing requested": (0.0, 1.1, 0.0),
}


@pytest.mark.parametrize("ball", [True, False])
@pytest.mark.parametrize("unit", [1e-200, 1e-20, 1.0, 1e30, 1e200])
@pytest.mark.parametrize("numbers", NUMBERS.values(), ids=NUMBERS)
def test_share_is_cap_share(numbers, unit, ball, monkeypatch):
    g = torch.Generator().manual_seed(0)
    m, d = unit * torch.rand(2, 4, generator=g, dtype=torch.float64)
    seen = Lengths(m, d, m * torch.tensor([0.9, -0.8, 1e-9, 0.0], dtype=torch.float64))
    found = fast.share(seen, *numbers, ball=ball, margin=1e-6)
    without_numba(monkeypatch)
    torch.testing.assert_close(found, cap_share(seen, *numbers, ball=ball, margin=1e-6), rtol=1e-11, atol=0)


def test_share_keeps_nan_zero_gaps_and_zero_coefficients():
    one, nan = torch.ones(1, dtype=torch.float64), torch.full((1,), math.nan, dtype=torch.float64)
    for share in (fast.share, cap_share):
        assert share(Lengths(one, 0 * one, 0 * one), 6.0, 1.0) == 1
        assert share(Lengths(0 * one, one, 0 * one), 6.0, 1.1) == 0
        assert share(Lengths(one, nan, nan), 0.0, 1.1) == 1
        assert share(Lengths(nan, one, nan), 6.0, 1.1).isnan()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("dtype", "result"), [(torch.float32,) * 2, (HALF, HALF), (HALF, torch.float32)])
def test_blend_is_the_torch_form_and_exact_at_zero_and_minus_one(size, dtype, result):
    _, c, u = tensors(4, size, seed=size, dtype=dtype)
    u[0] = torch.inf
    w = torch.tensor([0.0, -1.0, 2.5, -0.7], dtype=torch.float64)
    found = fast.guided_output(Displacement(Prediction(c, 0.5, c, u), w), result)
    assert torch.equal(found[0], c[0].to(result)) and torch.equal(found[1], u[1].to(result))
    expected = blend(c.float(), c.float() - u.float(), w, u.float()).to(result)
    torch.testing.assert_close(found[2:], expected[2:], rtol=torch.finfo(result).eps, atol=1e-6)
    if result == HALF:  # rounded to nearest, ties to even, as torch does it
        same = Displacement(Prediction(c, 0.5, c, c), 0.5)
        torch.testing.assert_close(fast.guided_output(same, HALF), c, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, HALF])
@pytest.mark.parametrize("size", [2, 300, 5000])
def test_no_bit_depends_on_the_batch_its_order_or_the_layout(size, dtype):
    x, c, u = tensors(6, 2, size, dtype=dtype)
    rule = CFG(9) | Cap(1.1)
    whole = guided_velocity(rule, x, 0.3, c, u)[0]
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    assert torch.equal(guided_velocity(rule, x[order], 0.3, c[order], u[order])[0], whole[order])
    for i in range(6):
        one = slice(i, i + 1)
        assert torch.equal(guided_velocity(rule, x[one], 0.3, c[one], u[one])[0], whole[one])
    apart = [v.transpose(1, 2).contiguous().transpose(1, 2) for v in (x, c, u)]
    assert torch.equal(guided_velocity(rule, apart[0], 0.3, *apart[1:])[0], whole)
    assert guided_velocity(rule, x[:0], 0.3, c[:0], u[:0])[0].shape == (0, 2, size)


def test_plain_tensors_reach_the_compiled_leaves_and_others_the_torch_forms(monkeypatch):
    calls = []

    def counting(name, leaf):
        def counted(*args, **options):
            found = leaf(*args, **options)
            calls.extend([name] if found is not None else [])  # None: torch has to handle these tensors
            return found

        return counted

    for name in ("gap_lengths", "share", "guided_mean"):
        monkeypatch.setattr(fast, name, counting(name, getattr(fast, name)))
    x, c, u = tensors(3, 40)
    rule = CFG(7) | Cap(1.1)
    sample(lambda y, t: Prediction.from_velocity(y, t, c, u), rule, x, uniform(2))
    assert calls == ["gap_lengths", "share", "guided_mean"] * 2
    calls.clear()

    def step(c):
        return guided_velocity(rule, x.to(c.dtype), 0.3, c, u.to(c.dtype))[0]

    step(c.clone().requires_grad_())
    step(c.double())
    torch.func.vmap(step)(torch.stack([c, u]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch.func itself
        torch.func.jvp(step, (c,), (u,))
    assert "gap_lengths" not in calls and "guided_mean" not in calls


def test_a_gradient_reaches_a_scale_that_is_a_tensor():
    scale = torch.tensor([3.0, 5.0], dtype=torch.float64, requires_grad=True)
    x, c, u = tensors(2, 40)
    p = Prediction.from_velocity(x, 0.3, c, u)
    (slope,) = torch.autograd.grad(guide(CFG(scale), p)[0].sum(), scale)
    torch.testing.assert_close(slope, p.delta.double().sum(1), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", [Cap, CapDisplacement])
@pytest.mark.parametrize("decade", [-300, -200, -150, 0, 150, 200, 300])
def test_float64_is_capped_over_its_whole_range(kind, decade):
    g = torch.Generator().manual_seed(0)
    m_c, gap = (torch.randn(4, 30, generator=g, dtype=torch.float64) * 10.0**decade for _ in range(2))
    p = Prediction(m_c, 0.5, m_c, m_c - gap, gap=gap)
    m, _ = guide(CFG(9) | kind(1.05), p)
    unit = 10.0**-decade if decade > -300 else 1e300
    ratio = (m * unit).norm(dim=1) / (m_c * unit).norm(dim=1)
    assert (ratio <= 1.05 * (1 + 1e-14)).all() and (ratio > 0.9).all()


@pytest.mark.parametrize("kind", [Cap, CapDisplacement])
@pytest.mark.parametrize("numba", [True, False])
def test_the_bound_holds_where_the_coefficient_is_subnormal(kind, numba, monkeypatch):
    if not numba:
        without_numba(monkeypatch)
    m, u = torch.tensor([[7.3e-26, 7.3e-26]]), torch.tensor([[-1e19, 3e18]])
    guided, _ = guide(CFG(7) | kind(1.1), Prediction.from_mean(m, 0.3, m, u))
    assert (guided - m).double().norm() <= 0.1 * m.double().norm() * (1 + 4 * UNIT)


@pytest.mark.parametrize("wrong", ["1 - t", "2 * x", "a fixed t", "one t of two", "one sample"])
def test_a_prediction_at_another_state_or_time_is_an_error(wrong):
    def predict(x, t):
        given = {"1 - t": (x, 1 - t), "2 * x": (2 * x, t), "a fixed t": (x, 0.3), "one sample": (x[:1], t)}
        y, t = given.get(wrong, (x, torch.tensor([t, 0.0])))
        return Prediction.from_velocity(y, t, torch.sin(y), torch.cos(y))

    with pytest.raises(ValueError, match="returned a prediction"):
        sample(predict, CFG(3) | Cap(1.1), noise(range(2), (5,)), uniform(4))


@pytest.mark.parametrize(
    ("setup", "words"),
    [
        ("import os; os.environ['NUMBA_DISABLE_JIT'] = '1'", "NUMBA_DISABLE_JIT is set"),
        ("import sys; sys.modules['numba'] = None", ""),
        (
            "import importlib.abc, sys\n"
            "class Broken(importlib.abc.MetaPathFinder):\n"
            "    def find_spec(self, name, *_):\n"
            "        if name == 'numba.core': raise ImportError('Numba needs another NumPy')\n"
            "sys.meta_path.insert(0, Broken())",
            "Numba needs another NumPy",
        ),
    ],
    ids=["jit disabled", "absent", "broken"],
)
def test_without_a_working_numba_the_torch_forms_run_with_one_warning(setup, words):
    code = f"""{setup}
import warnings, torch
from meancap import CFG, Cap, guided_velocity
x, c, u = torch.randn(3, 2, 40, generator=torch.Generator().manual_seed(0))
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    for _ in range(2):
        v = guided_velocity(CFG(7) | Cap(1.1), x, 0.3, c, u)[0]
print(float(v.double().sum()), [str(w.message) for w in seen if "PyTorch" in str(w.message)])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    total, _, said = done.stdout.partition(" ")
    x, c, u = torch.randn(3, 2, 40, generator=torch.Generator().manual_seed(0))
    expected = guided_velocity(CFG(7) | Cap(1.1), x, 0.3, c, u)[0].double().sum()
    assert float(total) == pytest.approx(float(expected), abs=1e-4)
    assert said.count("guidance runs in plain PyTorch") == bool(words) and words in said


def test_a_process_that_compiles_computes_the_bits_of_one_that_reads_the_cache(tmp_path):
    code = """if True:
        import torch
        from meancap import Prediction, fast
        x, c, u = torch.randn(3, 4, 784, generator=torch.Generator().manual_seed(0))
        p = Prediction.from_velocity(x, 0.3, c, u)
        print([v.item().hex() for part in fast.gap_lengths(p) for v in part])
    """
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}
    first, second = (
        subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, check=True).stdout
        for _ in range(2)
    )
    assert first == second


def test_a_prediction_in_the_units_of_the_network_is_the_same_state():
    def predict(x, t):
        sigma = (1 - t) / t
        y = x * (1 + sigma)
        return Prediction.from_denoiser(y, sigma, torch.tanh(y), 0.5 * torch.tanh(y))

    sample(predict, "CFG(3) | Cap(1.1)", noise(range(2), (5,)), [0.1, 0.4, 1.0])
