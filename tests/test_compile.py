"""A user who compiles a pipeline gets the rule inside the graph, and one graph serves every scale."""

import shutil

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

from meancap import CFG, Cap, Prediction, guide, guided_velocity, parse

# torch's own compiler imports what torch calls old
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script(_method)?. is:DeprecationWarning")
needs_a_compiler = pytest.mark.skipif(
    not any(map(shutil.which, ("c++", "g++", "clang++"))), reason="not run: no C++ compiler"
)
CAPPED = CFG(7) | Cap(1.1)
SETTINGS = [(7.0, 1.1, 0.3), (5.0, 1.2, 0.5), (3.0, 1.05, 0.9), (2.5, 1.3, 0.0), (9.0, 1.4, 1.0)]


@pytest.fixture(autouse=True)
def forget():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def velocities(*shape, dtype=torch.float32):
    g = torch.Generator().manual_seed(0)
    return tuple(torch.randn(shape, generator=g).to(dtype) for _ in range(3))


def inner(t):
    """A time that is a number and neither 0 nor 1, for which torch makes graphs of their own."""
    return 0.05 + 0.9 * t


def agrees(function, *given, **options):
    """The compiled function computes what the function computes."""
    found = torch.compile(function, **({"fullgraph": True, "backend": "aot_eager"} | options))(*given)
    torch.testing.assert_close(found, function(*given), rtol=1e-5, atol=1e-5)


def graphs_of(function, given):
    """How many graphs the compiled function needs for these arguments; it computes what the function does."""
    seen = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(function, fullgraph=True, backend=seen)
    for one in given:
        torch.testing.assert_close(compiled(*one), function(*one), rtol=1e-5, atol=1e-5)
    return seen.frame_count


@pytest.mark.parametrize(
    "text",
    [
        "CFG(7) | Cap(1.1)",
        "CFG(Linear(1, 7)) | Interval(0.1, 0.9) | Clip(3) | CapDisplacement(1.2)",
        "CFG(7) | Cap(1.1, anchor=0.1, per='channel', smooth=0.5, floor=1)",
        "apg(7)",
        "CFG(4) | Rescale()",
    ],
)
@pytest.mark.parametrize("t", [0.3, torch.tensor([0.3, 0.6])], ids=["number", "per sample"])
def test_rules_trace_without_a_graph_break(text, t):
    rule, (x, v_c, v_u) = parse(text), velocities(2, 4, 16, 16)
    agrees(lambda *v: guided_velocity(rule, v[0], t, *v[1:])[0], x, v_c, v_u)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_two_halves_of_one_batch_share_their_memory_and_are_guided(dtype):
    x, both = velocities(2, 4, 16, 16, dtype=dtype)[0], velocities(4, 4, 16, 16, dtype=dtype)[1]
    agrees(lambda x, v: guided_velocity(CAPPED, x, 0.3, *v.chunk(2), dtype=torch.float32)[0], x, both)


def test_a_mean_is_guided_in_one_graph_and_does_not_look_at_the_state():
    x, m_c, m_u = velocities(4, 8)
    x[1], x[2] = torch.inf, torch.nan
    agrees(lambda c, u: guide(CAPPED, Prediction.from_mean(x, 0.4, c, u))[0], m_c, m_u)
    assert guide(CAPPED, Prediction.from_mean(x, 0.4, m_c, m_u))[0].isfinite().all()


@pytest.mark.parametrize(
    ("text", "of_times", "graphs"),
    [
        ("CFG({}) | Cap({})", torch.tensor, 3),
        ("CFG({}) | Interval(0, 1) | CapDisplacement({})", torch.tensor, 3),
        ("CFG(7) | Cap(1.1)", inner, 2),
        ("CFG({})", inner, 2),  # looks at no time
        ("CFG({}) | Clip({})", inner, 2),
    ],
)
def test_other_numbers_make_few_more_graphs(text, of_times, graphs):
    x, v_c, v_u = velocities(2, 4, 16, 16)
    given = [(parse(text.format(*numbers)), of_times(t)) for *numbers, t in SETTINGS]
    assert graphs_of(lambda rule, t: guided_velocity(rule, x, t, v_c, v_u)[0], given) <= graphs


def test_other_tensors_make_no_new_graph_in_a_rule_given_or_made_inside():
    x, v_c, v_u = velocities(2, 4, 16, 16)
    tensors = [tuple(map(torch.tensor, numbers)) for numbers in SETTINGS]
    rules = [(CFG(scale) | Cap(gamma), t) for scale, gamma, t in tensors]
    assert graphs_of(lambda rule, t: guided_velocity(rule, x, t, v_c, v_u)[0], rules) == 1
    assert graphs_of(lambda s, g, t: guided_velocity(CFG(s) | Cap(g), x, t, v_c, v_u)[0], tensors) == 1


def test_a_scale_for_each_sample_follows_a_batch_that_became_dynamic():
    x, c, u = velocities(4, 3, 8)
    step = torch.compile(lambda r, *v: guided_velocity(r, *v)[0], fullgraph=True, backend="eager")
    for n in (4, 2, 3):
        step(CFG(3) | Cap(1.1), x[:n], 0.4, c[:n], u[:n])
    rule = CFG(torch.tensor([1.0, 2.0, 3.0, 4.0])) | Cap(1.1)
    torch.testing.assert_close(step(rule, x, 0.4, c, u), guided_velocity(rule, x, 0.4, c, u)[0])


@needs_a_compiler
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_compiled_step_keeps_the_bound_at_every_scale_and_does_not_see_its_neighbours(dtype):
    """Inductor's own sums: the bound holds to a few units, from tiny to huge, beside ordinary neighbours."""
    gamma, t = 1.05, 0.4
    rule = CFG(9) | Cap(gamma)
    step = torch.compile(
        lambda *a: guided_velocity(rule, *a, dtype=torch.float32)[0], fullgraph=True, dynamic=False
    )
    for units in ((1.0, 1.0, 1.0), (1e-28, 1.0, 1e17), (1e-14, 1e30, 3.0)):
        x, v_c, v_u = (v.double() for v in velocities(3, 4, 32, 32))
        unit = torch.tensor(units, dtype=torch.float64).reshape(3, 1, 1, 1)
        x, v_c, v_u = ((unit * v).to(dtype) for v in (x, v_c + x, v_u))
        m_c = x.double() + (1 - t) * v_c.double()
        m = x.double() + (1 - t) * step(x, t, v_c, v_u).double()
        ratio = m.flatten(1).norm(dim=1) / (gamma * m_c.flatten(1).norm(dim=1))
        assert (ratio <= 1 + 2 * 2.0**-24).all(), (units, ratio)
        assert (ratio >= 1 - 2.0**-17).all(), (units, ratio)  # and all of the room is used
    x, v_c, v_u = velocities(3, 4, 32, 32, dtype=dtype)
    alone = step(x, t, v_c, v_u)
    for wild in (1e30, float("nan")):  # takes the graph's other branch
        apart = [torch.cat((v[:1], wild * v[1:])) for v in (x, v_c, v_u)]
        assert torch.equal(step(apart[0], t, *apart[1:])[:1], alone[:1])


@pytest.mark.parametrize("text", ["CFG(7) | Cap(1.1)", "CFG(Linear(1, 7)) | Cap(1.1, smooth=0.5)"])
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_derivatives_inside_a_compiled_function_are_those_outside(text, backend):
    rule = parse(text)
    x, c, u, d = torch.randn(4, 3, 5, generator=torch.Generator().manual_seed(0))

    def velocity(c):
        return guided_velocity(rule, x, 0.3, c, u)[0]

    slope = torch.func.grad(lambda c: velocity(c).square().sum())
    agrees(slope, c, backend=backend, fullgraph=False)
    agrees(lambda c, d: torch.func.jvp(velocity, (c,), (d,))[1], c, d, backend=backend, fullgraph=False)
    agrees(torch.func.vmap(velocity), torch.stack([c, d]), backend=backend, fullgraph=False)
    assert slope(c).abs().max() > 0.1


@needs_a_compiler
def test_a_network_with_channels_last_is_compiled_with_its_step():
    last = {"memory_format": torch.channels_last}
    network = torch.nn.Conv2d(4, 4, 3, padding=1).to(**last).requires_grad_(False)
    x = velocities(2, 4, 8, 8)[0].contiguous(**last)
    agrees(lambda x: guided_velocity(CAPPED, x, 0.3, network(x), network(-x))[0], x, backend="inductor")
