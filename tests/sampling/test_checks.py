"""What a first attempt gets wrong is said in one sentence with the next move, and costs no memory."""

import warnings
from itertools import pairwise
from types import ModuleType

import pytest
import torch

import meancap
from meancap import (
    CFG,
    Cap,
    CapDisplacement,
    Clip,
    Interval,
    Prediction,
    Record,
    euler,
    from_karras,
    from_sigmas,
    guided_velocity,
    noise,
    parse,
    rk4,
    sample,
    trajectory,
    uniform,
)
from meancap.adapters.session import Session
from meancap.rules import AwayFrom, Factor, Gain, Tonemap, ZeroStar, catalogue
from meancap.sampling import from_edm

START = noise(range(4), (3, 8, 8))
RULE = CFG(3) | Cap(1.1)


def velocity(x, t):
    """The exact velocity of data N(0.5, 0.25) at time t, data - noise."""
    gain = t * 0.25 / ((1 - t) ** 2 + t**2 * 0.25)
    return (0.5 + gain * (x - t * 0.5) - x) / (1 - t)


def predict(x, t):
    v = velocity(x, t)
    return Prediction.from_velocity(x, t, v, v - 0.5)


TWO = torch.ones(2)
SIGMAS = from_karras([80.0, 20.0, 5.0, 1.0, 0.2, 0.0])


def denoise(x, sigma):
    """D(x; sigma) of data N(0.5, 0.25), with the condition and without."""
    d = 0.5 + 0.25 / (0.25 + sigma**2) * (x - 0.5)
    return d, d - 1


def scale_forgotten(x, t):
    sigma = (1 - t) / t
    return Prediction.from_denoiser(x, sigma, *denoise(x, sigma))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: sample(lambda x, t: x, RULE, START, uniform(4)), TypeError,
         "must return a Prediction.*from_velocity.*got a tensor of shape"),
        (lambda: sample(lambda x, t: (x, x), RULE, START, uniform(4)), TypeError, "got a tuple"),
        (lambda: noise(4, (3, 8, 8)), TypeError, r"one seed for each sample, such as range\(4\)"),
        (lambda: noise(range(4), 2), TypeError, r"of one sample, such as \(3, 8, 8\) or \(2,\); got 2"),
        (lambda: sample(predict, RULE, 4, uniform(4)), TypeError, r"noise to start from.*got 4"),
        (lambda: Prediction.from_velocity(START, 0.5, START, None), TypeError,
         "the prediction without it must be a tensor; got None"),
        (lambda: sample(predict, RULE, [START, START], uniform(4)), TypeError,
         "one tensor with the samples along its first axis.*got a list of 2 tensors$"),
        (lambda: sample(predict, RULE, {"video": START}, uniform(4)), TypeError, "got a dict of 1 tensors$"),
        (lambda: Prediction.from_velocity([START], 0.5, START, START), TypeError,
         "^x must be a tensor; got a list of 1 tensors$"),
        (lambda: Prediction.from_mean(START, 0.5, {"a": START}, START), TypeError,
         "the prediction with the condition must be a tensor; got a dict of 1 tensors$"),
        (lambda: Prediction.from_noise((START, START), START, START, alpha=TWO, sigma=TWO),
         TypeError, "^x must be a tensor; got a tuple of 2 tensors$"),
        (lambda: sample(from_edm(lambda x, s: (x, x)), RULE, START, uniform(4)), ValueError,
         r"no finite sigma at t = 0.*from_karras"),
        (lambda: sample(from_edm(lambda x, s: x), RULE, START, SIGMAS), TypeError,
         r"denoise\(x, sigma\) must return two tensors.*got a tensor of shape"),
        (lambda: sample(scale_forgotten, RULE, START, SIGMAS), ValueError,
         r"multiply it by alpha \+ sigma, which is 1 \+ sigma for EDM.*from_edm"),
        (lambda: sample(predict, 3, START, uniform(4)), TypeError, "a rule is needed, such as CFG"),
        (lambda: sample(predict, RULE, START, 50), TypeError, r"such as uniform\(50\); got 50"),
        (lambda: sample(predict, RULE, START, uniform(4), "heun"), TypeError, "without quotes; got 'heun'"),
        (lambda: sample(predict, Cap(1.1), START, uniform(4)), ValueError,
         r"a cap with no guidance to cap; use CFG\(7\) \| Cap\(1.1\)"),
        (lambda: sample(predict, Cap(1.1) | CapDisplacement(2), START, uniform(4)), ValueError,
         "no guidance to cap"),
        (lambda: next(trajectory(predict, Cap(1.1) | CFG(7), START, uniform(4))), ValueError,
         r"caps first.*write CFG\(7\) \| Cap\(1.1\)"),
        (lambda: from_sigmas([80.0, 1.0, 0.0]), ValueError, r"1 / \(1 \+ sigma\): use from_karras"),
        (lambda: from_karras([float("inf"), 0.0]), ValueError, "finite"),
        (lambda: parse("CFG(8"), ValueError, r"'\)' is needed"),
        (lambda: parse("CFG(8 Cap"), ValueError, "',' or '\\)' is needed"),
        (lambda: parse("Cap(1.1, anchor=[1"), ValueError, r"'\]' is needed"),
    ],
)  # fmt: skip
def test_a_slip_is_one_sentence_with_the_next_move(call, error, message):
    with pytest.raises(error, match=message) as said:
        call()
    assert "\n" not in str(said.value)


def test_sampling_keeps_no_gradients_unless_asked():
    x = START.clone().requires_grad_()
    assert not sample(predict, RULE, x, uniform(4)).requires_grad
    sample(predict, CFG(3), x, uniform(4), grad=True).sum().backward()
    assert x.grad is not None and x.grad.abs().sum() > 0
    with torch.no_grad():
        assert not sample(predict, RULE, x, uniform(4), grad=True).requires_grad


def reversed_sign(x, t):
    v = -velocity(x, t)
    return Prediction.from_velocity(x, t, v, v - 0.5)


def reversed_time(x, t):
    v = velocity(x, min(1 - t, 0.999))
    return Prediction.from_velocity(x, t, v, v - 0.5)


def off_centre(x, t):
    """The mean of the data differs between the coordinates, which is no uncertainty of the slope."""
    return Prediction.from_velocity(x, t, x - torch.tensor([4.0, 0.0]), x)


@pytest.mark.parametrize(
    ("wrong", "x"),
    [
        (reversed_sign, START),
        (reversed_time, START),
        (off_centre, noise(range(16), (2,))),
        (off_centre, noise(range(64), (2,))),
    ],
)
def test_a_reversed_sign_or_time_is_flagged_once_at_the_first_step(wrong, x):
    with pytest.warns(UserWarning, match="reversed; here velocity is data - noise") as said:
        next(trajectory(wrong, RULE, x, uniform(8), rk4))
    assert len(said) == 1


@pytest.mark.parametrize("size", [0.1, 1.0, 10.0])
@pytest.mark.parametrize("count", [1, 2, 16, 64])
def test_a_right_model_is_never_flagged(size, count):
    """Off-centre data of any size, also in few numbers, where chance slopes are large."""
    for seed in range(40):
        x = noise(range(seed, seed + count), (2,)).double()
        m = size * torch.randn(count, 2, generator=torch.Generator().manual_seed(seed)).double()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            next(trajectory(lambda x, t, m=m: Prediction.from_mean(x, t, m, m / 2), RULE, x, uniform(8)))


def test_a_karras_grid_is_the_same_flow_in_other_units():
    """Euler on x = data + sigma noise with a denoiser, and Euler on the linear path."""
    sigmas = [80.0, 20.0, 5.0, 1.0, 0.2, 0.0]

    x = sigmas[0] * START.double()
    y = x / (1 + sigmas[0])
    for a, b in pairwise(sigmas):
        x = x + (b - a) * (x - denoise(x, a)[0]) / a

    end = sample(from_edm(denoise), CFG(1), y, from_karras(sigmas))
    torch.testing.assert_close(end, x, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("x", [80 * START, 0.01 * START, 80 * START[:2, 0, 0, :3]], ids=["80", "0.01", "few"])
def test_a_start_that_is_not_unit_noise_is_warned_of_once(x):
    with pytest.warns(UserWarning, match=r"standard deviation of .*divide a state .* by 1 \+ sigma") as said:
        sample(from_edm(denoise), RULE, x, SIGMAS)
    assert len(said) == 1


@pytest.mark.parametrize(
    ("x", "times"),
    [
        (START, SIGMAS),
        (80 / 81 * START, SIGMAS),
        (0.6 * START, SIGMAS),
        (4 * START[:, :, 0, 0], SIGMAS),  # too few elements
        (torch.zeros_like(START), SIGMAS),
        (80 * START, from_karras([5.0, 1.0, 0.0])),  # a later state has the spread of its data
    ],
)
def test_other_starts_are_not_warned_of(x, times):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sample(from_edm(denoise), RULE, x, times)


# The certificate


@pytest.mark.parametrize("cap", [Cap(1.1), CapDisplacement(1.3), Cap(1.1, floor=30.0)], ids=str)
def test_the_cap_proves_a_bound_from_the_conditional_means_alone(cap):
    record = Record()
    x = sample(predict, CFG(9) | cap, START, uniform(10), record=record)
    certificate, last = record.certificate(), record.measures[-1]
    m_c = last.length / last.ratio
    gamma, floor = cap.gamma, cap.floor or 0.0
    torch.testing.assert_close(certificate.bound, torch.clamp(gamma * m_c, min=floor), rtol=1e-5, atol=0)
    assert certificate.proved and certificate.holds(x)
    assert "proved by the cap" in str(certificate)


@pytest.mark.parametrize("rule", [CFG(9), CFG(9) | Cap(1.1, anchor=0.5)], ids=str)
def test_without_a_cap_on_the_length_nothing_is_said_to_be_proved(rule):
    record = Record()
    x = sample(predict, rule, START, uniform(10), record=record)
    certificate = record.certificate()
    assert not certificate.proved and certificate.holds(x)
    assert str(certificate).startswith("no cap bounds |m| itself, so nothing is proved")


# The figure of a record


def test_a_record_draws_itself(tmp_path):
    pytest.importorskip("matplotlib")
    record = Record()
    sample(predict, RULE, START, uniform(5), euler, record=record)
    figure = record.plot(tmp_path / "meter.png")
    assert (tmp_path / "meter.png").read_bytes().startswith(b"\x89PNG")
    assert [axes.get_title() for axes in figure.axes][:2] == ["gap |m_c − m_u|", "applied scale"]
    applied = figure.axes[1].lines[-2].get_ydata()  # before it the samples, after it the requested scale
    assert applied.tolist() == pytest.approx(record.stacked()["scale"].mean(1).tolist())


@pytest.mark.parametrize(
    "text",
    ["Interval(0, 1) | Cap(1.1)", "StepInterval(1, 3) | Clip(2)", "Momentum(-0.5)", "Project()", "Rescale()"],
)
def test_a_rule_without_a_scale_is_an_error_in_a_loop_and_in_a_host(text):
    """It would run as CFG(2): the displacement that nothing scales is the gap itself."""
    for use in (lambda: sample(None, text, noise(range(2), (5,)), uniform(2)), lambda: Session(text)):
        with pytest.raises(ValueError, match=r"has no scale; write CFG\(7\) \| "):
            use()


def test_two_scales_are_an_error_that_names_both_and_recipes_of_two_stay():
    for text in ("CFG(4) | CFG(2)", "apg(4) | Cap(1.1) | CFG(2)"):
        for use in (lambda text=text: sample(None, text, START, uniform(2)), lambda text=text: Session(text)):
            with pytest.raises(ValueError, match=r"has two scales, CFG\(4\) and CFG\(2\): keep one"):
                use()
    for entry in catalogue(forms=True):
        if entry.kind == "rule":
            Session(entry.rule())
    for text in ("Phases(2, CFG(1), CFG(4))", "CFG(4) | Gain(2)", "CFG(Linear(1, 7)) | Interval(0, 1)"):
        Session(text)


@pytest.mark.parametrize(
    "given", [(predict, START, RULE, uniform(2)), (predict, RULE, torch.linspace(0, 1, 3), START),
              (RULE, predict, START, uniform(2)), (predict, RULE, START, uniform(2), START)],
)  # fmt: skip
def test_swapped_arguments_are_one_sentence_without_numbers_of_a_tensor(given):
    with pytest.raises(TypeError) as said:
        sample(*given)
    assert len(str(said.value)) < 130 and "\n" not in str(said.value)


def test_numbers_of_numpy_are_numbers():
    numpy = pytest.importorskip("numpy")
    one, half = numpy.float32(1), numpy.float32(0.5)
    rule = CFG(7 * one) | Interval(0 * one, one) | Clip(3 * one) | Cap(2 * one, anchor=half, floor=one)
    assert rule == parse("CFG(7) | Interval(0, 1) | Clip(3) | Cap(2, anchor=0.5, floor=1)")
    x, c, u = torch.randn(3, 2, 5, generator=torch.Generator().manual_seed(0))
    assert torch.equal(guided_velocity(rule, x, half, c, u)[0], guided_velocity(rule, x, 0.5, c, u)[0])


def test_the_package_shows_its_own_names_alone():
    public = {name for name in dir(meancap) if not name.startswith("_")}
    modules = {name for name in public if isinstance(getattr(meancap, name), ModuleType)}
    assert public - modules == set(meancap.__all__)
    assert all(getattr(meancap, name).__name__.startswith("meancap.") for name in modules)


class Late(Factor):
    def factor(self, g, p):
        return p.t

    def __str__(self):
        return "Late()"


@pytest.mark.parametrize("part", [ZeroStar(), Tonemap(), Late(), AwayFrom("weak", 2)], ids=str)
def test_a_rule_of_any_class_without_a_scale_is_an_error(part):
    with pytest.raises(ValueError, match="has no scale; write CFG"):
        sample(predict, part | Cap(1.1), START, uniform(2))
    for scaled in (CFG(3) | part, part | Gain(2)):
        assert scaled.sets_scale
