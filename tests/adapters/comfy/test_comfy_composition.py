"""The cap among ComfyUI's own guidance nodes and guiders: last in the chain, it bounds whatever they made."""

import pytest
import torch
from comfy_host import Spy, capped, exact, hook_of, node, sampled, words
from hook_arguments import furthest

pytestmark = [pytest.mark.usefixtures("comfy"), pytest.mark.filterwarnings("ignore")]

SHAPE = (1, 4, 32, 32)  # FreSca needs room for its cut-off, and RenormCFG a batch of one
BEFORE = {  # they change what CFG gets or does, so their place in the chain does not matter
    "RescaleCFG": (0.7,), "APG": (0.5, 5.0, -0.3), "TCFG": (), "FreSca": (1.0, 1.25, 5),
    "RenormCFG": (100.0, 2.0),
}  # fmt: skip
AFTER = {
    "CFGZeroStar": (),
    "Mahiro": (),
    "CFGNorm": (1.0,),
}  # post-CFG nodes, applied in the order of the chain


def largest_ratio(spy):
    return max(
        float(out.norm() / args["cond_denoised"].norm()) for args, out in zip(spy.calls, spy.out, strict=True)
    )


def check(spy, gamma):
    for args, out in zip(spy.calls, spy.out, strict=True):
        expected = furthest(args["cond_denoised"], args["denoised"], gamma)
        torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=1e-4)
    assert largest_ratio(spy) <= gamma * (1 + 1e-6)


@pytest.mark.parametrize("name", [*BEFORE, *AFTER])
def test_last_in_the_chain_it_bounds_what_another_node_made(name):
    model = node(name, exact(SHAPE[1:]), *{**BEFORE, **AFTER}[name])[0]
    spy = Spy()
    out = sampled(capped(model, 1.05, spy=spy), SHAPE)
    check(spy, 1.05)
    assert torch.equal(sampled(capped(model, 100.0), SHAPE), sampled(model, SHAPE))
    assert not torch.equal(out, sampled(capped(exact(SHAPE[1:]), 1.05), SHAPE))


@pytest.mark.parametrize("name", BEFORE)
def test_nodes_that_act_inside_cfg_commute_with_it(name):
    model = exact(SHAPE[1:])
    one = capped(node(name, model, *BEFORE[name])[0], 1.05)
    other = node(name, capped(model, 1.05), *BEFORE[name])[0]
    assert torch.equal(sampled(one, SHAPE), sampled(other, SHAPE))


@pytest.mark.parametrize("name", ["CFGZeroStar", "Mahiro"])
def test_first_in_the_chain_it_cannot_bound_what_a_later_node_makes(name):
    spy = Spy()
    model = spy.before(exact(SHAPE[1:]))
    sampled(spy.after(node(name, capped(model, 1.05), *AFTER[name])[0]), SHAPE)
    assert largest_ratio(spy) > 1.05 * 1.01


def test_two_caps_are_the_stricter_one():
    model = exact(SHAPE[1:])
    strict = sampled(capped(model, 1.05), SHAPE)
    for pair in ((1.05, 1.3), (1.3, 1.05)):
        both = capped(capped(model, pair[0]), pair[1])
        torch.testing.assert_close(sampled(both, SHAPE), strict, rtol=1e-5, atol=1e-5)


def test_once_everything_is_capped_a_higher_cfg_changes_nothing():
    model = capped(exact(SHAPE[1:]), 1.02)
    one, other = (sampled(model, SHAPE, cfg=cfg) for cfg in (20.0, 40.0))
    assert "a higher cfg changes nothing" in hook_of(model).run.text()
    torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


def by_guider(guider, steps=6, samples=SHAPE[0]):
    """What SamplerCustomAdvanced makes with a guider."""
    sigmas = node("BasicScheduler", exact(SHAPE[1:]), "simple", steps, 1.0)[0]
    noise, sampler = node("RandomNoise", 1)[0], node("KSamplerSelect", "euler")[0]
    latent = {"samples": torch.zeros(samples, *SHAPE[1:])}
    return node("SamplerCustomAdvanced", noise, guider, sampler, sigmas, latent)[0]["samples"]


GUIDERS = {
    "CFGGuider": lambda m: node("CFGGuider", m, words(1), words(0), 7.0)[0],
    "PerpNegGuider": lambda m: node("PerpNegGuider", m, words(1), words(0), words(0), 7.0, 1.0)[0],
    "PerpNegGuider without its negative": lambda m: node(
        "PerpNegGuider", m, words(1), words(0), words(0), 7.0, 0.0
    )[0],
}


@pytest.mark.parametrize("name", GUIDERS)
def test_guiders_are_bounded_too(name):
    spy = Spy()
    model = exact(SHAPE[1:])
    out = by_guider(GUIDERS[name](capped(model, 1.05, spy=spy)))
    check(spy, 1.05)
    assert not torch.equal(out, by_guider(GUIDERS[name](model)))


@pytest.mark.parametrize("style", ["regular", "nested"])
def test_the_dual_guider_is_bounded_inside_its_hook(style):
    """It adds one term after the hook, which no post-CFG node can see."""
    spy = Spy()
    model = capped(exact(SHAPE[1:]), 1.05, spy=spy)
    values = (words(1), words(2), words(0), 3.0, 3.0)
    try:
        guider = node("DualCFGGuider", model, *values, style)[0]
    except TypeError:  # before 0.3.49 there was no style
        guider = node("DualCFGGuider", model, *values)[0]
    by_guider(guider)
    check(spy, 1.05)


def test_the_basic_guider_has_no_negative_and_is_left_alone():
    model = exact(SHAPE[1:])
    plain, limited = (by_guider(node("BasicGuider", m, words(1))[0]) for m in (model, capped(model, 1.0)))
    assert torch.equal(plain, limited)


def test_a_shift_of_the_schedule_after_the_cap_is_seen_by_it():
    """ModelSamplingSD3 replaces the schedule; start and end follow the one in use."""
    spy = Spy()
    model = capped(exact(SHAPE[1:]), 1.0, "displacement", spy, end=0.5)
    sampled(node("ModelSamplingSD3", model, 3.0)[0], SHAPE, steps=10)
    acted = [not torch.equal(args["denoised"], out) for args, out in zip(spy.calls, spy.out, strict=True)]
    assert acted == [float(args["sigma"][0]) >= 0.75 for args in spy.calls]


def test_a_rule_with_something_to_avoid_takes_the_three_predictions_of_the_guider():
    """PerpNegGuider sums over the whole batch, a rule over each sample: alike for one sample."""

    def made(model, cfg, avoided=1.0):
        return by_guider(
            node("PerpNegGuider", model, words(1), words(2), words(0), cfg, avoided)[0], samples=1
        )

    model = exact(SHAPE[1:])
    ruled = node("MeancapGuidanceRule", model, "perp_neg(7, weight=1.5)", 0.0, 1.0)[0]
    torch.testing.assert_close(made(ruled, 2.0), made(model, 7.0, 1.5), rtol=1e-4, atol=1e-4)
    both = node("MeancapGuidanceRule", model, "perp_neg(7) | Cap(1.05)", 0.0, 1.0)[0]
    made(both, 2.0)
    assert hook_of(both).run.record.stacked()["ratio"].max() <= 1.05 * (1 + 1e-6)
    with pytest.raises(ValueError, match="PerpNegGuider"):
        by_guider(node("CFGGuider", ruled, words(1), words(0), 7.0)[0])
    with pytest.raises(ValueError, match="neg_scale above 0"):
        made(ruled, 7.0, 0.0)
