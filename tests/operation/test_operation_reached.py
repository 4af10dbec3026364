"""Every loop and host takes its step by the one operation; derivatives and transforms get the reference."""

from contextlib import contextmanager

import pytest
import torch
from reaching import RULE, WAYS

from meancap import CFG, Cap, Prediction, guide, guided_velocity
from meancap.operation import calls, dispatch


def drawn(*shape, dtype=torch.float32):
    g = torch.Generator().manual_seed(0)
    return tuple(torch.randn(shape, generator=g).to(dtype) for _ in range(3))


@contextmanager
def counted():
    """The steps that kernels took, and those that the reference took."""
    before, found = calls.copy(), {}
    yield found
    found.update({name: calls[name] - before[name] for name in ("cpu", "reference")})


@pytest.mark.filterwarnings("ignore::FutureWarning")  # of diffusers, by itself
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_every_loop_and_host_reaches_the_kernels(way):
    with counted() as found:
        steps = way()
    assert found == {"cpu": steps, "reference": 0}


def test_a_compiled_step_is_one_node_that_reaches_the_kernels():
    x, v_c, v_u = drawn(2, 4, 8, 8)
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    step = torch.compile(lambda *a: guided_velocity(RULE, *a)[0], fullgraph=True, backend=backend)
    with counted() as found:
        step(x, torch.tensor(0.3), v_c, v_u)
    nodes = [str(node.target) for node in graphs[0].graph.nodes if node.op == "call_function"]
    assert found["cpu"] == 1 and sum("meancap.step" in node for node in nodes) == 1
    torch.compiler.reset()


def test_without_numba_the_reference_serves(monkeypatch):
    monkeypatch.setattr(dispatch, "_module", lambda *given: None)
    x, v_c, v_u = drawn(2, 4, 8, 8)
    with counted() as found:
        plain = guided_velocity(RULE, x, 0.3, v_c, v_u)[0]
    assert found == {"cpu": 0, "reference": 1}
    monkeypatch.undo()
    torch.testing.assert_close(guided_velocity(RULE, x, 0.3, v_c, v_u)[0], plain, rtol=1e-6, atol=1e-6)


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")  # by torch.func
def test_gradients_tangents_and_vmap_go_through_the_reference():
    x, v_c, v_u = drawn(3, 4, 6, dtype=torch.float64)

    def mean(x):
        return guide(RULE, Prediction.from_velocity(x, 0.3, v_c, v_u))[0]

    assert torch.autograd.gradcheck(mean, x.clone().requires_grad_())
    _, tangent = torch.func.jvp(mean, (x,), (torch.ones_like(x),))
    numeric = (mean(x + 1e-6) - mean(x - 1e-6)) / 2e-6
    torch.testing.assert_close(tangent, numeric, rtol=1e-5, atol=1e-7)

    single = [v.float() for v in (x, v_c, v_u)]

    def one(x, v_c, v_u):  # of one sample, without its batch axis
        return guided_velocity(RULE, x[None], 0.3, v_c[None], v_u[None])[0][0]

    together = guided_velocity(RULE, single[0], 0.3, *single[1:])[0]
    torch.testing.assert_close(torch.func.vmap(one)(*single), together, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_what_a_cap_does_not_touch_is_the_nominal_result_bit_for_bit(dtype):
    x, v_c, v_u = drawn(5, 3, 50, dtype=dtype)
    free = guided_velocity(CFG(3), x, 0.3, v_c, v_u)[0]
    assert torch.equal(guided_velocity(CFG(3) | Cap(100), x, 0.3, v_c, v_u)[0], free)


def test_a_compiler_that_does_not_import_is_told_of_and_the_reference_serves(monkeypatch):
    """numba refuses a numpy that is too new by an ImportError."""

    def refuse(name, package):
        raise ImportError("Numba needs an older NumPy")

    monkeypatch.setattr(dispatch.importlib, "import_module", refuse)
    dispatch._module.cache_clear()
    try:
        with counted() as found, pytest.warns(UserWarning, match="without its kernels, because numba failed"):
            guided_velocity(RULE, *drawn(2, 5)[:1], 0.3, *drawn(2, 5)[1:])
        assert found == {"cpu": 0, "reference": 1}
    finally:
        dispatch._module.cache_clear()


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
@pytest.mark.parametrize("rule", [CFG(3), RULE], ids=str)
def test_a_result_in_a_type_without_kernels_is_written_by_the_reference(rule, dtype):
    x, v_c, v_u = drawn(3, 40)
    usual = guided_velocity(rule, x, 0.3, v_c, v_u)[0]
    found = guided_velocity(rule, x, 0.3, v_c, v_u, dtype=dtype)[0]
    assert found.dtype == dtype
    torch.testing.assert_close(found.float(), usual, rtol=1e-3, atol=1e-3)
