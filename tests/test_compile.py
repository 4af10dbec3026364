"""A user who compiles a pipeline gets the rule inside the graph, and one graph serves every scale."""

import shutil

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

from meancap import (
    CFG,
    Cap,
    CapDisplacement,
    Clip,
    Interval,
    Linear,
    Prediction,
    Rescale,
    Values,
    apg,
    guide,
    guided_velocity,
    parse,
)

# torch's own compiler imports what torch calls old
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script(_method)?. is:DeprecationWarning")
COMPILERS = ("c++", "g++", "clang++")
needs_a_compiler = pytest.mark.skipif(
    not any(map(shutil.which, COMPILERS)), reason="not run: no C++ compiler"
)


@pytest.fixture(autouse=True)
def forget():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def velocities(*shape, seed=0, dtype=torch.float32):
    g = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(shape, generator=g).to(dtype) for _ in range(3))


@pytest.mark.parametrize(
    "rule",
    [
        CFG(7) | Cap(1.1),
        CFG(Linear(1, 7)) | Interval(0.1, 0.9) | Clip(3) | CapDisplacement(1.2),
        CFG(7) | Cap(1.1, anchor=0.1, per="channel", smooth=0.5, floor=1.0),
        apg(7),
        CFG(4) | Rescale(),
    ],
    ids=str,
)
@pytest.mark.parametrize("per_sample", [False, True])
def test_rules_trace_without_a_graph_break(rule, per_sample):
    x, v_c, v_u = velocities(2, 4, 16, 16)
    t = torch.tensor([0.3, 0.6]) if per_sample else 0.3
    step = torch.compile(lambda *a: guided_velocity(rule, *a)[0], fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(
        step(x, t, v_c, v_u), guided_velocity(rule, x, t, v_c, v_u)[0], rtol=1e-5, atol=1e-5
    )


SETTINGS = [
    (7.0, 1.1, 0.3),
    (5.0, 1.1, 0.3),
    (5.0, 1.2, 0.3),
    (3.0, 1.05, 0.9),
    (2.5, 1.3, 0.0),
    (9.0, 1.4, 1.0),
]


@pytest.mark.parametrize(
    "make",
    [
        lambda scale, gamma: CFG(scale) | Cap(gamma),
        lambda scale, gamma: CFG(scale) | Interval(0, 1) | CapDisplacement(gamma),
        lambda scale, gamma: CFG(torch.tensor(scale)) | Cap(torch.tensor(gamma)),
    ],
    ids=["numbers", "displacement", "tensors"],
)
def test_other_numbers_make_one_more_graph_and_other_tensors_none(make, request):
    x, v_c, v_u = velocities(2, 4, 16, 16)
    seen, counts = CompileCounterWithBackend("aot_eager"), []
    step = torch.compile(lambda rule, *a: guided_velocity(rule, *a)[0], fullgraph=True, backend=seen)
    for scale, gamma, t in SETTINGS:
        rule = make(scale, gamma)
        found = step(rule, x, torch.tensor(t), v_c, v_u)
        expected = guided_velocity(rule, x, t, v_c, v_u)[0]
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
        counts.append(seen.frame_count)
    assert counts[-1] <= (1 if request.node.callspec.id == "tensors" else 3), counts


def test_a_rule_made_inside_the_graph_from_its_arguments_makes_no_new_graph():
    x, v_c, v_u = velocities(2, 4, 16, 16)
    seen = CompileCounterWithBackend("aot_eager")

    def made(scale, gamma, t):
        return guided_velocity(CFG(scale) | Cap(gamma), x, t, v_c, v_u)[0]

    step = torch.compile(made, fullgraph=True, backend=seen)
    step(*map(torch.tensor, SETTINGS[0]))
    graphs = seen.frame_count
    for scale, gamma, t in SETTINGS:
        found = step(*map(torch.tensor, (scale, gamma, t)))
        torch.testing.assert_close(found, made(scale, gamma, t), rtol=1e-5, atol=1e-5)
    assert seen.frame_count == graphs


def test_a_time_that_is_a_number_makes_one_more_graph_and_no_more():
    x, v_c, v_u = velocities(2, 4, 16, 16)
    seen, counts = CompileCounterWithBackend("aot_eager"), []
    step = torch.compile(lambda t: guided_velocity(CFG(7) | Cap(1.1), x, t, v_c, v_u)[0], backend=seen)
    for i in range(8):
        step(i / 8)
        counts.append(seen.frame_count)
    assert counts[2] == counts[-1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_two_halves_of_one_batch_share_their_memory_and_are_guided(dtype):
    (x, *_), both = velocities(2, 4, 16, 16, dtype=dtype), torch.randn(4, 4, 16, 16).to(dtype)
    rule = CFG(7) | Cap(1.1)

    def step(x, both):
        return guided_velocity(rule, x, 0.3, *both.chunk(2), dtype=torch.float32)[0]

    found = torch.compile(step, fullgraph=True, backend="aot_eager")(x, both)
    torch.testing.assert_close(found, step(x, both), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "make",
    [
        lambda i: CFG(2.0 + i),  # looks at no time
        lambda i: CFG(2.0 + i) | Clip(1.5 + i),
    ],
)
def test_numbers_and_times_that_are_numbers_are_traced_again_once(make):
    x, v_c, v_u = velocities(2, 4, 16, 16)
    seen, counts = CompileCounterWithBackend("aot_eager"), []
    step = torch.compile(
        lambda rule, t, s: guided_velocity(rule, x, t, v_c, v_u, t_next=s)[0], fullgraph=True, backend=seen
    )
    for i in range(5):
        rule, t = make(i), 0.1 + i / 8
        torch.testing.assert_close(step(rule, t, t + 0.1), guided_velocity(rule, x, t, v_c, v_u)[0])
        counts.append(seen.frame_count)
    assert counts[1:] == counts[1:2] * 4, counts


def test_a_given_value_may_differ_between_samples():
    x, v_c, v_u = velocities(3, 4, 8, 8)
    scales, gammas = [1.5, 4.0, 9.0], [1.05, 1.5, 1.0]
    rule = CFG(torch.tensor(scales)) | Cap(torch.tensor(gammas, dtype=torch.float64))
    together = guided_velocity(rule, x, 0.4, v_c, v_u)[0]
    for i, (scale, gamma) in enumerate(zip(scales, gammas, strict=True)):
        one = (v[i : i + 1] for v in (x, v_c, v_u))
        x_i, c_i, u_i = one
        assert torch.equal(
            together[i : i + 1], guided_velocity(CFG(scale) | Cap(gamma), x_i, 0.4, c_i, u_i)[0]
        )


def test_a_given_value_prints_parses_and_compares():
    rule = CFG(torch.tensor(7.0)) | Cap(torch.tensor([1.5, 1.25]))
    assert str(rule) == "CFG(7) | Cap([1.5, 1.25])"
    assert parse(str(rule)) == rule and hash(parse(str(rule))) == hash(rule)
    assert rule != CFG(torch.tensor(6.0)) | Cap(torch.tensor([1.5, 1.25]))


@pytest.mark.parametrize(
    "make",
    [
        lambda: CFG(torch.tensor(float("nan"))),
        lambda: CFG(torch.ones(2, 2)),
        lambda: CFG(torch.tensor(3)),
        lambda: Cap(torch.tensor(0.9)),
        lambda: Values(float("inf")),
    ],
)
def test_a_given_value_that_cannot_be_is_refused(make):
    with pytest.raises(ValueError, match="needs"):
        make()


@needs_a_compiler
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_compiled_step_keeps_the_bound_at_every_scale(dtype):
    """Inductor's own sums: the bound holds to a few units, from tiny to huge, beside ordinary neighbours."""
    gamma, t = 1.05, 0.4
    rule = CFG(9) | Cap(gamma)
    step = torch.compile(
        lambda *a: guided_velocity(rule, *a, dtype=torch.float32)[0], fullgraph=True, dynamic=False
    )
    for units in ((1.0, 1.0, 1.0), (1e-28, 1.0, 1e17), (1e-14, 1e30, 3.0)):
        x, v_c, v_u = (v.double() for v in velocities(3, 4, 32, 32, seed=len(units)))
        unit = torch.tensor(units, dtype=torch.float64).reshape(3, 1, 1, 1)
        x, v_c, v_u = (unit * v for v in (x, v_c + x, v_u))
        x, v_c, v_u = (v.to(dtype) for v in (x, v_c, v_u))
        m_c = x.double() + (1 - t) * v_c.double()
        m = x.double() + (1 - t) * step(x, t, v_c, v_u).double()
        ratio = m.flatten(1).norm(dim=1) / (gamma * m_c.flatten(1).norm(dim=1))
        assert (ratio <= 1 + 2 * 2.0**-24).all(), (units, ratio)
        assert (ratio >= 1 - 2.0**-17).all(), (units, ratio)  # and all of the room is used


@needs_a_compiler
def test_the_compiled_step_does_not_see_its_neighbours():
    rule = CFG(9) | Cap(1.1)
    step = torch.compile(lambda *a: guided_velocity(rule, *a)[0], fullgraph=True, dynamic=False)
    x, v_c, v_u = velocities(2, 4, 16, 16, dtype=torch.bfloat16)
    alone = step(x, 0.3, v_c, v_u)
    for wild in (1e30, float("nan")):  # takes the graph's other branch
        apart = [torch.cat((v[:1], wild * v[1:])) for v in (x, v_c, v_u)]
        assert torch.equal(step(apart[0], 0.3, apart[1], apart[2])[:1], alone[:1])


def test_means_are_guided_in_one_graph():
    x, m_c, m_u = velocities(2, 4, 16, 16)
    rule = CFG(7) | Cap(1.1)

    def step(x, m_c, m_u):
        return guide(rule, Prediction.from_mean(x, 0.3, m_c, m_u))[0]

    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x, m_c, m_u), step(x, m_c, m_u), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("text", ["CFG(7) | Cap(1.1)", "CFG(Linear(1, 7)) | Cap(1.1, smooth=0.5)"])
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_derivatives_inside_a_compiled_function_are_those_outside(text, backend):
    rule = parse(text)
    g = torch.Generator().manual_seed(0)
    x, c, u, d = torch.randn(4, 3, 5, generator=g)

    def velocity(c):
        return guided_velocity(rule, x, 0.3, c, u)[0]

    slope = torch.func.grad(lambda c: velocity(c).square().sum())
    for function, given in (
        (slope, (c,)),
        (lambda c, d: torch.func.jvp(velocity, (c,), (d,))[1], (c, d)),
        (torch.func.vmap(velocity), (torch.stack([c, d]),)),
    ):
        expected = function(*given)
        assert expected.abs().max() > 0.1
        torch.testing.assert_close(torch.compile(function, backend=backend)(*given), expected)


def test_a_scale_for_each_sample_follows_a_batch_that_became_dynamic():
    x, c, u = torch.randn(3, 4, 3, 8, generator=torch.Generator().manual_seed(0))
    step = torch.compile(lambda r, *v: guided_velocity(r, *v)[0], fullgraph=True, backend="eager")
    for n in (4, 2, 3):
        step(CFG(3) | Cap(1.1), x[:n], 0.4, c[:n], u[:n])
    rule = CFG(torch.tensor([1.0, 2.0, 3.0, 4.0])) | Cap(1.1)
    torch.testing.assert_close(step(rule, x, 0.4, c, u), guided_velocity(rule, x, 0.4, c, u)[0])


def test_a_mean_does_not_look_at_the_state():
    x, c, u = torch.randn(3, 4, 8, generator=torch.Generator().manual_seed(0))
    x[1], x[2] = torch.inf, torch.nan
    rule = CFG(7) | Cap(1.1)

    def mean(c, u):
        return guide(rule, Prediction.from_mean(x, 0.4, c, u))[0]

    expected = mean(c, u)
    assert expected.isfinite().all()
    torch.testing.assert_close(torch.compile(mean, backend="eager")(c, u), expected)


def test_a_network_with_channels_last_is_compiled_with_its_step():
    last = {"memory_format": torch.channels_last}
    network = torch.nn.Conv2d(4, 4, 3, padding=1).to(**last).requires_grad_(False)
    x = velocities(2, 4, 8, 8)[0].contiguous(**last)

    def step(x):
        return guided_velocity(CFG(7) | Cap(1.1), x, 0.3, network(x), network(-x))[0]

    compiled = torch.compile(step, fullgraph=True)
    for _ in range(2):
        torch.testing.assert_close(compiled(x), step(x), rtol=1e-5, atol=1e-5)
    torch.compiler.reset()
