"""The nodes inside the real ComfyUI: its samplers, guiders and model patchers, with models that are exact."""

import pytest
import torch
from comfy_host import NODE_IDS, Spy, capped, exact, hook_of, node, sampled, tiny_sd3, words
from hook_arguments import KEYS, furthest

from meancap.adapters.comfy.hooks import prediction
from meancap.path import velocity_from_mean

pytestmark = [pytest.mark.usefixtures("comfy"), pytest.mark.filterwarnings("ignore")]

SHAPES = [(4, 8, 8), (3, 2, 4, 4), (8, 16), (1, 64)]


def check_furthest(spy, gamma, form="ball"):
    """Every call kept the bound, and could not have kept more of the guidance."""
    assert spy.calls and len(spy.calls) == len(spy.out)
    for args, out in zip(spy.calls, spy.out, strict=True):
        m_c = args["cond_denoised"].double()
        if form == "ball":
            length, bound = (v.double().flatten(1).norm(dim=1) for v in (out, m_c))
            assert (length <= gamma * bound * (1 + 1e-6)).all()
        expected = furthest(m_c, args["denoised"], gamma, form)
        torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=1e-5 * float(m_c.abs().max()))


def test_the_pack_registers_its_nodes(comfy):
    for name in NODE_IDS:
        schema = comfy.known[name].GET_SCHEMA()
        assert schema.category and schema.description and schema.display_name
        for field in schema.inputs:
            assert field.tooltip or field.id == "model"
    assert "last" in comfy.known[NODE_IDS[0]].GET_SCHEMA().description
    required, optional = (comfy.known[NODE_IDS[0]].INPUT_TYPES()[k] for k in ("required", "optional"))
    assert list(required) == ["model", "gamma", "form"] and list(optional) == ["start", "end"]
    assert all(optional[name][1]["advanced"] for name in optional)


def test_the_hand_written_arguments_have_the_hosts_keys():
    spy = Spy()
    model = exact()
    sampled(capped(model, spy=spy), (2, 4, 8, 8))
    for args in spy.calls:
        assert set(args) == KEYS
        assert args["sigma"].shape == (2,) and isinstance(args["cond_scale"], float)
        assert args["model_options"]["transformer_options"]["sample_sigmas"].shape == (7,)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("flow", [True, False])
@pytest.mark.parametrize("form", ["ball", "displacement"])
def test_every_step_of_every_sample_goes_as_far_as_it_may(shape, flow, form):
    spy = Spy()
    out = sampled(capped(exact(shape, flow), 1.05, form, spy), (3, *shape))
    check_furthest(spy, 1.05, form)
    assert out.shape == (3, *shape)
    assert not torch.equal(out, sampled(exact(shape, flow), (3, *shape)))


def test_every_sampler_keeps_the_bound(sampler):
    spy = Spy()
    sampled(capped(exact(), 1.05, spy=spy), (2, 4, 8, 8), sampler=sampler, steps=4)
    check_furthest(spy, 1.05)


def test_a_real_network_is_capped_as_the_theory_says():
    spy, conds = Spy(), tuple(words(i, tokens=4, width=16, pooled=32) for i in (1, 2))
    sampled(capped(tiny_sd3(), 1.05, spy=spy), (2, 16, 8, 8), conds=conds)
    check_furthest(spy, 1.05)


@pytest.mark.parametrize("flow", [True, False])
def test_the_means_and_times_are_those_of_the_linear_path(flow):
    """v = data - noise in our convention, and the network of a flow model predicts noise - data."""
    model, seen = exact((4, 8, 8), flow), []
    inner = model.model.diffusion_model
    inner.register_forward_hook(
        lambda _, given, named, out: seen.append((named["context"], out)), with_kwargs=True
    )
    spy = Spy()
    sampled(capped(model, spy=spy), (1, 4, 8, 8))
    assert len(seen) == len(spy.calls)
    for args, (context, out) in zip(spy.calls, seen, strict=True):
        p, sigma = prediction(args), float(args["sigma"][0])
        v = velocity_from_mean(p.x.double(), p.t, p.m_c.double())
        said = out[context[:, 0, 0] == 1].double()
        noise = (args["input"] - args["cond_denoised"]).double() / sigma  # eps models: x = data + sigma noise
        torch.testing.assert_close(v, -said if flow else p.m_c.double() - noise, rtol=1e-4, atol=1e-4)
        if not flow:
            torch.testing.assert_close(said, noise, rtol=1e-4, atol=1e-4)


def test_where_nothing_exceeds_the_bound_the_run_is_bit_identical():
    model = exact()
    for sampler in ("euler", "dpmpp_2m", "heun"):
        plain = sampled(model, (2, 4, 8, 8), sampler=sampler)
        assert torch.equal(sampled(capped(model, 100.0), (2, 4, 8, 8), sampler=sampler), plain)


@pytest.mark.parametrize("sampler_", ["euler", "euler_cfg_pp"])
def test_at_cfg_1_the_run_is_bit_identical_and_the_report_says_so(sampler_):
    model = exact()
    limited = capped(model, 1.0)
    plain = sampled(model, (2, 4, 8, 8), cfg=1.0, sampler=sampler_)
    assert torch.equal(sampled(limited, (2, 4, 8, 8), cfg=1.0, sampler=sampler_), plain)
    run = hook_of(limited).run
    assert len(run.record) == 0 and run.idle == run.calls > 0


def test_a_negative_that_is_absent_for_a_while_is_bounded_there():
    """Plain CFG multiplies the conditional mean by cfg where the negative is out of its range."""
    late = node("ConditioningSetTimestepRange", words(0), 0.5, 1.0)[0]
    spy = Spy()
    sampled(capped(exact(), 1.1, spy=spy), (2, 4, 8, 8), conds=(words(1), late))
    ratios = [float(args["denoised"].norm() / args["cond_denoised"].norm()) for args in spy.calls]
    assert max(ratios) == pytest.approx(7.0, rel=1e-5)
    check_furthest(spy, 1.1)


def test_the_model_that_came_in_is_never_touched():
    model = exact()
    options, plain = dict(model.model_options), sampled(model, (1, 4, 8, 8))
    for made in (capped(model, 1.01), node("MeancapGuidanceRule", model, "CFG(3)")[0]):
        assert not torch.equal(sampled(made, (1, 4, 8, 8)), plain)
        assert model.model_options == options and not model.wrappers
        assert torch.equal(sampled(model, (1, 4, 8, 8)), plain)


def test_a_neighbour_changes_no_bit_of_a_sample():
    model = capped(exact(), 1.05)
    noise = torch.randn(3, 4, 8, 8)
    one = {"samples": noise, "batch_index": [0, 1, 2]}
    other = {"samples": torch.cat([noise[:1], 5 * torch.randn(2, 4, 8, 8)]), "batch_index": [0, 7, 9]}
    first, second = (sampled(model, None, latent=v, denoise=0.8) for v in (one, other))
    assert torch.equal(first[0], second[0]) and not torch.equal(first[1], second[1])


@pytest.mark.parametrize(
    "rule", ["Momentum(-0.5) | CFG(4)", "CFG(4) | Cap(1.1, anchor='first')", "Cap(1.1, anchor='first')"]
)
def test_a_second_run_repeats_the_first(rule):
    def ruled():  # with another node behind it, which copies the model once more
        return node("ModelSamplingSD3", node("MeancapGuidanceRule", exact(), rule)[0], 1.0)[0]

    model = ruled()
    for sampler in ("euler", "heun", "dpm_2"):
        first, second, fresh = (sampled(m, (2, 4, 8, 8), sampler=sampler) for m in (model, model, ruled()))
        assert torch.equal(first, second) and torch.equal(first, fresh)
        assert hook_of(model).run.steps == 6


def test_cfg_as_a_rule_is_the_hosts_cfg():
    for flow in (True, False):
        model = exact(flow=flow)
        ruled = node("MeancapGuidanceRule", model, "CFG(7)")[0]
        torch.testing.assert_close(
            sampled(ruled, (2, 4, 8, 8), cfg=2.0), sampled(model, (2, 4, 8, 8), cfg=7.0), rtol=1e-4, atol=1e-4
        )


def test_the_cap_as_a_rule_is_the_node():
    limited = sampled(capped(exact(), 1.1), (2, 4, 8, 8), cfg=7.0)
    for text, cfg in (("Cap(1.1)", 7.0), ("CFG(7) | Cap(1.1)", 3.0)):
        ruled = node("MeancapGuidanceRule", exact(), text)[0]
        torch.testing.assert_close(sampled(ruled, (2, 4, 8, 8), cfg=cfg), limited, rtol=1e-4, atol=1e-4)


def test_start_and_end_count_as_the_host_counts():
    spy = Spy()
    sampled(capped(exact(), 1.0, "displacement", spy, start=0.25, end=0.75), (1, 4, 8, 8), steps=8)
    acted = [not torch.equal(args["denoised"], out) for args, out in zip(spy.calls, spy.out, strict=True)]
    assert acted == [0.25 <= float(args["sigma"][0]) <= 0.75 for args in spy.calls]
    assert any(acted) and not all(acted)


def test_a_mask_and_a_partial_denoise_keep_what_they_keep():
    latent = {"samples": torch.randn(1, 4, 8, 8), "noise_mask": torch.zeros(1, 1, 64, 64)}
    latent["noise_mask"][..., 32:] = 1
    spy = Spy()
    out = sampled(capped(exact(), 1.05, spy=spy), None, latent=latent, denoise=0.5)
    torch.testing.assert_close(out[..., :4], latent["samples"][..., :4], rtol=1e-5, atol=1e-5)
    assert not torch.allclose(out[..., 4:], latent["samples"][..., 4:], atol=1e-2)
    check_furthest(spy, 1.05)
