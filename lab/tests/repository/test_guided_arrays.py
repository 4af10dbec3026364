"""The cap for other arrays is the library's: on NumPy, torch, JAX, MLX and the strict array API."""

import ast
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import meancap
from integrations.arrays.guided_arrays import cap_fraction, guided_mean, guided_velocity
from meancap import CFG, Cap, CapDisplacement, Prediction, guide
from meancap.cap import MARGINS, cap_share, lengths

FILE = Path(__file__).parents[3] / "integrations" / "arrays" / "guided_arrays.py"
FORMS = {"ball": Cap, "displacement": CapDisplacement}
KINDS = ("numpy", "torch", "jax.numpy", "mlx.core", "array_api_strict")


@pytest.fixture(params=KINDS)
def xp(request):
    """Each kind of array that is installed; only NumPy and torch are sure to be."""
    return pytest.importorskip(request.param)


def to(xp, array):
    """An array of NumPy's as one of this kind, in the same precision where the kind has it."""
    if xp.__name__ == "torch":
        return torch.from_numpy(np.ascontiguousarray(array))
    return xp.array(array) if hasattr(xp, "array") else xp.asarray(array)


def back(array):
    return array.numpy() if isinstance(array, torch.Tensor) else np.asarray(array)


def example(shape=(6, 3, 5), seed=0, dtype=np.float32):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(shape).astype(dtype) for _ in range(3)]


def reference(rule, x, t, v_c, v_u):
    out, _ = meancap.guided_velocity(rule, *(torch.from_numpy(v).double() for v in (x, t, v_c, v_u)))
    return out.numpy()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("gamma", [1.0, 1.1, 2.0, math.inf])
def test_means_are_those_of_the_rule(xp, form, gamma):
    _, m_c, m_u = example()
    said = Prediction.from_mean(
        torch.zeros(6, 3, 5), 0.0, torch.from_numpy(m_c).double(), torch.from_numpy(m_u).double()
    )
    expected, _ = guide(CFG(5.0) | FORMS[form](gamma), said)
    got = back(guided_mean(to(xp, m_c), to(xp, m_u), 5.0, gamma, form=form))
    np.testing.assert_allclose(got, expected.numpy(), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("form", FORMS)
def test_velocities_are_those_of_the_rule_at_a_time_and_scale_of_each_sample(xp, form):
    x, v_c, v_u = example(seed=1)
    t = np.array([0.0, 0.2, 0.5, 0.9, 0.99, 1.0], dtype=np.float32)
    got = guided_velocity(*(to(xp, v) for v in (x, t, v_c, v_u)), scale=6.0, gamma=1.1, form=form)
    expected = reference(CFG(6.0) | FORMS[form](1.1), x, t, v_c, v_u)
    np.testing.assert_allclose(back(got), expected, rtol=2e-5, atol=2e-5)
    scales = np.array([0.0, 1.0, 2.0, 4.0, 8.0, 16.0], dtype=np.float32)
    each = guided_velocity(*(to(xp, v) for v in (x, t, v_c, v_u)), scale=to(xp, scales), gamma=1.2, form=form)
    for i, scale in enumerate(scales.tolist()):
        one = [v[i : i + 1] for v in (x, t, v_c, v_u)]
        np.testing.assert_allclose(
            back(each)[i : i + 1], reference(CFG(scale) | FORMS[form](1.2), *one), rtol=2e-5, atol=2e-5
        )


# Squares of what the reference sums must be in float64's range.
numbers = st.floats(-1e3, 1e3).map(lambda value: value if abs(value) > 1e-100 else 0.0)


@given(st.lists(numbers, min_size=4, max_size=4), st.lists(numbers, min_size=4, max_size=4), st.floats(1, 4))
def test_in_float64_the_share_is_cap_share(m, g, gamma):
    m, g = np.array([m]), np.array([g])
    length = lengths(*(torch.from_numpy(v) for v in (m, g)))
    for form, ball in (("ball", True), ("displacement", False)):
        margin = MARGINS[torch.float64]
        expected = cap_share(length, 1.0, gamma, ball=ball, margin=margin)
        np.testing.assert_allclose(
            cap_fraction(m, g, gamma, form=form), expected.numpy(), rtol=1e-11, atol=1e-14
        )


@pytest.mark.parametrize("decade", [-30, -18, 0, 12, 30])
@pytest.mark.parametrize("form", FORMS)
def test_the_bound_holds_at_every_magnitude(xp, form, decade):
    """In float32, within four units in the last place, samples of 512 elements."""
    rng = np.random.default_rng(2)
    m = (rng.standard_normal((8, 512)) * 10.0**decade).astype(np.float32)
    u = (m * rng.uniform(-3, 3, (8, 1)) + rng.standard_normal((8, 512)) * 10.0**decade).astype(np.float32)
    got = back(guided_mean(to(xp, m), to(xp, u), 9.0, 1.1, form=form)).astype(np.float64)
    before = np.linalg.norm(m.astype(np.float64), axis=1)
    unit = float(np.finfo(np.float32).eps)
    if form == "ball":
        assert (np.linalg.norm(got, axis=1) <= 1.1 * before * (1 + 4 * unit)).all()
    else:
        # Forming m + g rounds each element by half a unit of m.
        moved = np.linalg.norm(got - m, axis=1)
        assert (moved <= (1.1 - 1) * before * (1 + 4 * unit) + before * unit).all()


def test_nothing_is_cut_where_nothing_is_too_long(xp):
    _, m_c, m_u = example(seed=3)
    free = back(guided_mean(to(xp, m_c), to(xp, m_u), 1.5))
    np.testing.assert_array_equal(back(guided_mean(to(xp, m_c), to(xp, m_u), 1.5, 1e6)), free)
    np.testing.assert_array_equal(back(guided_mean(to(xp, m_c), to(xp, m_u), 1.0, 1.1)), m_c)
    np.testing.assert_array_equal(back(guided_mean(to(xp, m_c), to(xp, m_c), 7.0, 1.1)), m_c)


def test_the_edges_keep_to_their_sample(xp):
    """No gap keeps the nominal scale, a mean of zero may not grow, NaN stays where it is."""
    m = np.array([[3.0, 4.0], [0.0, 0.0], [math.nan, 1.0], [3.0, 4.0]], dtype=np.float32)
    g = np.array([[0.0, 0.0], [1.0, 0.0], [1.0, 0.0], [30.0, 40.0]], dtype=np.float32)
    share = back(cap_fraction(to(xp, m), to(xp, g), 1.1))
    assert share[0] == 1 and share[1] == 0 and np.isnan(share[2]) and abs(share[3] - 0.01) < 1e-6


def test_batch_equals_loop(xp):
    _, m_c, m_u = example(seed=4)
    whole = back(guided_mean(to(xp, m_c), to(xp, m_u), 5.0, 1.1))
    for i in range(len(m_c)):
        one = guided_mean(to(xp, m_c[i : i + 1]), to(xp, m_u[i : i + 1]), 5.0, 1.1)
        np.testing.assert_allclose(back(one)[0], whole[i], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_low_precision_is_kept_and_worked_out_in_float32(name):
    _, m_c, m_u = (torch.from_numpy(v).to(getattr(torch, name)) for v in example(seed=5))
    got = guided_mean(m_c, m_u, 5.0, 1.1)
    assert got.dtype == m_c.dtype
    assert torch.equal(got, guided_mean(m_c.float(), m_u.float(), 5.0, 1.1).to(m_c.dtype))


def test_jax_compiles_maps_and_differentiates_it():
    jax = pytest.importorskip("jax")
    _, m_c, m_u = (jax.numpy.array(v) for v in example(seed=6))
    plain = guided_mean(m_c, m_u, 5.0, 1.1)
    np.testing.assert_allclose(jax.jit(guided_mean)(m_c, m_u, 5.0, 1.1), plain, rtol=1e-5, atol=1e-6)
    mapped = jax.vmap(lambda c, u: guided_mean(c[None], u[None], 5.0, 1.1)[0])(m_c, m_u)
    np.testing.assert_allclose(mapped, plain, rtol=1e-5, atol=1e-6)
    slope = jax.grad(lambda u: guided_mean(m_c, u, 5.0, 1.1).sum())
    assert np.isfinite(np.asarray(slope(m_u))).all() and np.isfinite(np.asarray(slope(m_c))).all()


def test_wrong_input_is_answered_in_one_sentence():
    one = np.ones((1, 2))
    with pytest.raises(ValueError, match=r"gamma >= 1 .* got 0.5"):
        cap_fraction(one, one, 0.5)
    with pytest.raises(ValueError, match="'ball' or 'displacement'; got 'cube'"):
        cap_fraction(one, one, 1.1, form="cube")
    with pytest.raises(TypeError, match=r"NumPy, JAX, MLX, PyTorch .* got <class 'list'>"):
        guided_mean([1.0], [1.0], 2.0)


def test_the_file_can_be_copied_and_used_without_torch():
    tree = ast.parse(FILE.read_text(encoding="utf-8"))
    names = {a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names}
    assert names <= set(sys.stdlib_module_names) and "." not in FILE.stem
    code = (
        f"import runpy, sys, numpy; sys.modules['torch'] = None; cap = runpy.run_path({str(FILE)!r})\n"
        "print(cap['guided_mean'](numpy.array([[1.0, 0.0]]), numpy.zeros((1, 2)), 5.0, 1.5)[0, 0])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0 and abs(float(done.stdout) - 1.5) < 1e-12, done.stderr
