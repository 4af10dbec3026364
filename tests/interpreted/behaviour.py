"""Against the eager path: numbers in every form, dtypes, memory, state; and what the kernels do not serve."""

import math

import pytest
import torch
from meancap.rules.velocities import Velocities
from torch.autograd import forward_ad
from torch.utils._python_dispatch import TorchDispatchMode
from truth import eager, velocities

from meancap import (
    CFG,
    Cap,
    CapDisplacement,
    Clip,
    Interval,
    Linear,
    Piecewise,
    Record,
    apg,
    guided_velocity,
)
from meancap.rules import Gain, StepInterval, fused

# The interpreter computes with numpy, which tells of each 0 / 0 in a lane that is masked off.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

HALF = (torch.bfloat16, torch.float16)


def test_samples_are_read_as_they_lie_in_memory_where_they_agree(launches, monkeypatch):
    x, v_c, v_u = velocities(2, 4, 24, 24)
    expected, _ = eager(CFG(7) | Cap(1.1), x, 0.3, v_c, v_u)
    wide = torch.cat([v_c, v_u], 1)
    last = [v.contiguous(memory_format=torch.channels_last) for v in (x, v_c, v_u)]
    with monkeypatch.context() as patch:
        patch.setattr(torch.Tensor, "contiguous", None)  # no copies here
        for given in ((x, v_c, v_u), (x, wide[:, :4], wide[:, 4:]), last):
            v, _ = guided_velocity(CFG(7) | Cap(1.1), given[0], 0.3, *given[1:])
            torch.testing.assert_close(v, expected, rtol=3e-6, atol=3e-6)
            assert v.stride() == given[0].stride()
    for given in ((x, last[1], v_u), (x, v_c.mT.contiguous().mT, v_u), (x, v_c, wide[:, 4:, ::1, :].mT.mT)):
        v, _ = guided_velocity(CFG(7) | Cap(1.1), given[0], 0.3, *given[1:])
        torch.testing.assert_close(v, expected, rtol=3e-6, atol=3e-6)
    sparse = torch.randn(2, 4, 24, 48)[..., ::2]
    v, _ = guided_velocity(CFG(7) | Cap(1.1), x, 0.3, sparse, v_u)
    torch.testing.assert_close(v, eager(CFG(7) | Cap(1.1), x, 0.3, sparse, v_u)[0], rtol=3e-6, atol=3e-6)
    one = x[:1].expand(2, -1, -1, -1)
    v, _ = guided_velocity(CFG(7) | Cap(1.1), one, 0.3, v_c, v_u)
    torch.testing.assert_close(v, eager(CFG(7) | Cap(1.1), one, 0.3, v_c, v_u)[0], rtol=3e-6, atol=3e-6)
    assert set(launches) == {"whole_samples"} and len(launches) == 8


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
def test_the_result_has_the_dtype_asked_for_and_is_rounded_once(dtype, x_dtype, shape, launches):
    x, v_c, v_u = velocities(*shape, dtype=dtype)
    x = x.to(x_dtype)
    full, _ = guided_velocity(CFG(7) | Cap(1.1), x, 0.3, v_c, v_u, dtype=torch.float32)
    for asked in (None, *HALF, torch.float64):
        v, _ = guided_velocity(CFG(7) | Cap(1.1), x, 0.3, v_c, v_u, dtype=asked)
        assert v.dtype == (asked or dtype)
        if v.dtype == torch.bfloat16:  # the interpreter cuts where a device rounds
            torch.testing.assert_close(v.float(), full, rtol=2.0**-7, atol=0)
        else:
            assert torch.equal(v, full.to(v.dtype))
    expected, _ = eager(CFG(7) | Cap(1.1), x, 0.3, v_c, v_u, dtype=torch.float32)
    torch.testing.assert_close(full, expected, rtol=2e-6, atol=2e-6)
    assert launches


NUMBERS = {
    "floats": (0.3, CFG(7), 1.1, None),
    "times": (torch.tensor([0.1, 0.5, 1.0]), CFG(7), 1.1, None),
    "one time on the device": (torch.tensor([0.3], dtype=torch.float64).expand(3), CFG(7), 1.1, None),
    "schedules": (
        torch.tensor([0.1, 0.5, 0.9], dtype=torch.float64),
        CFG(Linear(1, 9)) | Interval(0.2, 1),
        Piecewise([0, 1], [1.0, 2.0]),
        Linear(10, 40),
    ),
    "floor": (0.3, CFG(7), 1.0, 50.0),
    "a floor inside": (0.3, CFG(7), 1.5, 1e-3),
    "away from the gap": (0.3, CFG(-4), 1.1, None),
    "no cap": (0.3, CFG(7), math.inf, None),
    "gamma one": (0.3, CFG(7), 1.0, None),
    "a gain": (0.999999, Gain(1e5), 1.0 + 2.0**-40, None),
}


def agrees_with_eager(kind, t, head, gamma, floor, size):
    rule, tensors = head | kind(gamma, floor=floor), velocities(3, size)
    seen, expected = Record(), Record()
    v, _ = guided_velocity(rule, tensors[0], t, *tensors[1:], record=seen)
    w, _ = eager(rule, tensors[0], t, *tensors[1:], record=expected)
    torch.testing.assert_close(v, w, rtol=2e-6, atol=2e-6 * float(w.abs().max()))
    for name, value in seen.stacked().items():
        other = expected.stacked()[name]
        if name == "active":
            assert torch.equal(value, other)
        else:
            # A component and a length below it may cancel; they are as good as the length of the mean.
            torch.testing.assert_close(value, other, rtol=1e-6, atol=4e-7 if name == "cosine" else 0)


@pytest.mark.parametrize(("kind", "size"), [(Cap, 2048), (CapDisplacement, 40)])
@pytest.mark.parametrize("given", NUMBERS.values(), ids=NUMBERS)
def test_numbers_in_every_form_mean_what_they_mean_on_the_eager_path(kind, given, size, launches):
    agrees_with_eager(kind, *given, size)
    assert launches == ["whole_samples"]


@pytest.mark.parametrize("kind", [Cap, CapDisplacement])
@pytest.mark.parametrize("given", ["floats", "schedules"])
def test_numbers_mean_the_same_in_two_launches(kind, given, launches, tall):
    agrees_with_eager(kind, *NUMBERS[given], 8193)
    assert launches == ["part_sums", "part_velocities"]


def test_state_and_what_was_asked_pass_through_the_kernel(launches):
    x, v_c, v_u = velocities(2, 4, 16, 16)
    rule = StepInterval(1, 5) | CFG(7) | Cap(1.2, anchor=0.1) | Cap(1.1)
    seen, expected, state, other = Record(), Record(), None, None
    for t in (0.1, 0.2, 0.3):
        v, state = guided_velocity(rule, x, t, v_c, v_u, state, record=seen)
        w, other = eager(rule, x, t, v_c, v_u, other, record=expected)
        torch.testing.assert_close(v, w, rtol=2e-6, atol=2e-6)
        assert state == other
    for name, value in seen.stacked().items():
        torch.testing.assert_close(value, expected.stacked()[name], rtol=1e-6, atol=1e-9)
    assert float(seen.stacked()["asked"][1, 0]) == 7.0
    assert launches == ["whole_samples"] * 3


@pytest.mark.parametrize(
    "rule",
    [
        CFG(7),
        CFG(7) | Cap(1.1, smooth=0.5),
        CFG(7) | Cap(1.1, per="channel"),
        CFG(7) | Cap(1.1, anchor=0.5),
        CFG(7) | Cap(1.1, anchor="first"),
        Cap(1.1) | CFG(7),
        CFG(7) | Clip(3) | Cap(1.1),  # the head has asked for the lengths: they are known
        CFG(7) | Cap(1.2) | CapDisplacement(1.1),
        apg(7) | Cap(1.1),
    ],
    ids=str,
)
def test_other_rules_take_the_eager_path_to_the_last_bit(rule, launches):
    x, v_c, v_u = velocities(2, 4, 16, 16)
    assert torch.equal(guided_velocity(rule, x, 0.3, v_c, v_u)[0], eager(rule, x, 0.3, v_c, v_u)[0])
    assert not launches


class Watching(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


@pytest.mark.filterwarnings("ignore:`torch.jit.script`:DeprecationWarning")  # torch's own, in forward mode
def test_steps_that_somebody_follows_take_the_eager_path(launches):
    rule, (x, v_c, v_u) = CFG(7) | Cap(1.1), velocities(2, 500)
    expected, _ = eager(rule, x, 0.3, v_c, v_u)

    def run(v=v_c):
        return guided_velocity(rule, x, 0.3, v, v_u)[0]

    run(v_c.clone().requires_grad_()).sum().backward()
    with Watching():
        run()
    with forward_ad.dual_level():
        v = run(forward_ad.make_dual(v_c, torch.ones_like(v_c)))
        assert forward_ad.unpack_dual(v).tangent is not None
    _, tangent = torch.func.jvp(run, (v_c,), (torch.ones_like(v_c),))
    assert tangent.abs().sum() > 0
    torch.testing.assert_close(torch.compile(run, backend="eager", fullgraph=True)(), expected)
    double = guided_velocity(rule, x.double(), 0.3, v_c, v_u)[0]
    assert torch.equal(double, eager(rule, x.double(), 0.3, v_c, v_u)[0])
    empty = torch.empty(0, 500)
    assert not fused.serves(rule, Velocities(empty, 0.3, empty, empty))
    assert not launches
    with torch.no_grad():
        run(v_c.clone().requires_grad_())
    assert launches
