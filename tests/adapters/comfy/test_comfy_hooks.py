"""The hook's contract, on arguments written by hand: needs no ComfyUI."""

import copy

import pytest
import torch
from hook_arguments import arguments, forge, furthest, prediction

from meancap import CFG, Cap, CapDisplacement, Momentum, Prediction, guide
from meancap.adapters.comfy.hooks import PostCFG
from meancap.rules import perp_neg

SHAPES = [(4, 8, 8), (16, 16, 16), (16, 3, 6, 6), (8, 20), (1, 300), (5,)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("rule", "form"), [(Cap(1.1), "ball"), (CapDisplacement(1.1), "displacement")])
@pytest.mark.parametrize("flow", [True, False])
def test_the_result_is_the_furthest_allowed_point_towards_what_the_workflow_made(shape, rule, form, flow):
    for seed, batch in enumerate((1, 2, 5, 20)):
        args = arguments(batch, shape, seed=seed, flow=flow)
        out = PostCFG(rule)(args)
        expected = furthest(args["cond_denoised"], args["denoised"], 1.1, form)
        torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=1e-5)
        assert not torch.equal(out, args["denoised"])
        assert torch.equal(PostCFG(rule)(forge(args)), out), "Forge passes no scale"
        assert torch.equal(PostCFG(rule)({**args, "model": None}), out), "a cap needs no schedule"
        again = arguments(batch, shape, seed=seed, flow=flow)
        assert all(torch.equal(args[k], v) for k, v in again.items() if isinstance(v, torch.Tensor))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_in_a_mixed_batch_the_samples_inside_keep_every_bit(dtype):
    args = arguments(6, dtype=dtype)
    calm = torch.tensor([True, False, True, False, False, True])
    inside = 0.6 * torch.randn_like(args["denoised"])  # short, but far: m_c + (inside - m_c) would round
    args["denoised"] = torch.where(calm[:, None, None, None], inside, args["denoised"])
    out = PostCFG(Cap(1.1))(args)
    assert out.dtype == dtype
    assert torch.equal(out[calm], args["denoised"][calm])
    assert all(not torch.equal(a, b) for a, b in zip(out[~calm], args["denoised"][~calm], strict=True))


@pytest.mark.parametrize("rule", ["Cap(1)", "CFG(7) | Cap(1.1)", "Momentum(-0.5) | CFG(4)"])
def test_at_cfg_1_and_without_a_negative_it_is_inert(rule):
    skipped = {"uncond": None, "uncond_denoised": torch.zeros(2, 4, 8, 8)}
    for args in (
        arguments(scale=1.0, **skipped),
        arguments(scale=1.0),  # evaluated all the same, as the *_cfg_pp samplers ask
        arguments(scale=7.0, **skipped),
        forge(arguments(scale=1.0, uncond_denoised=torch.zeros(2, 4, 8, 8))),
    ):
        hook = PostCFG(rule)
        assert hook(args) is args["denoised"]
        assert len(hook.run) == 0 and hook.run.unguided == hook.run.calls == 1


def test_a_negative_out_of_its_range_is_capped_by_caps_and_ignored_by_chains():
    """There the host multiplies the conditional mean by cfg, since its negative is all zeros."""
    args = arguments(uncond_denoised=torch.zeros(2, 4, 8, 8), uncond=[{"timestep_end": 0.8}])
    m_c = args["cond_denoised"]
    args["denoised"] = 7 * m_c
    torch.testing.assert_close(PostCFG("Cap(1.1)")(args), 1.1 * m_c)
    assert torch.equal(PostCFG("CFG(7)")(args), m_c)
    present = {**args, "uncond": [{"timestep_end": 0.8}, {"timestep_start": 0.9}]}
    torch.testing.assert_close(PostCFG("CFG(7)")(present), 7 * m_c)  # zeros that a model did predict


def test_an_empty_prompt_in_the_negatives_place_is_a_negative():
    """PerpNegGuider at neg_scale 0 evaluates no negative, but guides away from its empty prompt."""
    args = arguments()
    perp = {**args, "uncond": None, "uncond_denoised": torch.zeros(2, 4, 8, 8)}
    perp |= {"empty_cond": [{}], "empty_cond_denoised": args["uncond_denoised"]}
    for rule in ("Cap(1.1)", "CFG(4) | Cap(1.1)"):
        assert torch.equal(PostCFG(rule)(perp), PostCFG(rule)(args))


def test_a_rule_with_something_to_avoid_reads_the_negative_beside_the_empty_prompt():
    args = arguments()
    m_c, m_u, m_n = args["cond_denoised"], args["uncond_denoised"], torch.randn(2, 4, 8, 8)
    perp = {**args, "uncond_denoised": m_n, "empty_cond": [{}], "empty_cond_denoised": m_u}
    expected, _ = guide(perp_neg(5), Prediction.from_mean(args["input"], 0.3, m_c, m_u).beside(negative=m_n))
    torch.testing.assert_close(PostCFG("perp_neg(5)")(perp), expected)
    out_of_range = {**perp, "uncond": [{"timestep_end": 0.8}], "uncond_denoised": torch.zeros_like(m_n)}
    torch.testing.assert_close(PostCFG("perp_neg(5)")(out_of_range), PostCFG("CFG(5)")(args))
    for two in (args, {**perp, "uncond": None}):
        with pytest.raises(ValueError, match="PerpNegGuider"):
            PostCFG("perp_neg(5)")(two)


@pytest.mark.parametrize("turn", [lambda args: args, forge])
@pytest.mark.parametrize("flow", [True, False])
def test_the_clock_is_turned_round_and_the_path_made_linear(turn, flow):
    args = turn(arguments(flow=flow))
    p, sigma = prediction(args), 0.7
    t = 1 - sigma if flow else 1 / (1 + sigma)
    torch.testing.assert_close(p.t, torch.full((2,), t, dtype=torch.float64))
    noise = (args["input"] - (1 - sigma if flow else 1) * args["cond_denoised"]) / sigma
    velocity = (p.m_c - p.x) / (1 - p.t.float())[:, None, None, None]
    torch.testing.assert_close(velocity, args["cond_denoised"] - noise)


@pytest.mark.parametrize(
    "text", ["CFG(4)", "CFG(4) | Cap(1.1)", "CFG(Linear(1, 9))", "apg(5)", "CFG(4) | Rescale(0.7)"]
)
def test_a_chain_replaces_the_workflows_guidance(text):
    args = arguments(flow=False)
    hook = PostCFG(text)
    m, _ = guide(hook.rule, prediction(args))
    torch.testing.assert_close(hook(args), m)
    assert torch.equal(PostCFG(text)({**args, "denoised": args["denoised"] * 9}), hook(arguments(flow=False)))


def test_start_and_end_are_the_hosts_shares_of_the_run():
    """The shifted schedule has percent_to_sigma(0.5) = 0.75."""
    mixed = arguments(3) | {"sigma": torch.tensor([0.9, 0.6, 0.9])}
    out = PostCFG(Cap(1.1), start=0.5)(mixed)
    assert [torch.equal(a, b) for a, b in zip(out, mixed["denoised"], strict=True)] == [True, False, True]
    for sigma, early, late in ((0.76, True, False), (0.75, True, True), (0.74, False, True)):
        args = arguments(sigma=sigma)
        assert (PostCFG(Cap(1.1), end=0.5)(args) is not args["denoised"]) == early
        assert (PostCFG(Cap(1.1), start=0.5)(args) is not args["denoised"]) == late


def test_memory_advances_once_per_level_of_the_samplers_grid():
    levels = [1.0, 0.8, 0.5, 0.0]
    visited = [(1.0, True), (0.9, False), (0.8, True), (0.8, False), (0.6, False), (0.5, True), (0.1, False)]
    rule, hook = Momentum(-0.5) | CFG(4), PostCFG("Momentum(-0.5) | CFG(4)")
    state = within = None
    for i, (sigma, first) in enumerate(visited):
        args = arguments(sigma=sigma, seed=i, levels=levels)
        m, after = guide(rule, prediction(args), state if first else within)
        assert torch.equal(hook(args), m)
        if first:
            within, state = rule.within_step(state or rule.init(), after), after


def test_a_new_run_starts_without_memory():
    hook, fresh = (PostCFG("Momentum(-0.5) | CFG(4)") for _ in range(2))
    for seed in range(3):
        hook(arguments(seed=seed, sigma=0.9 - 0.1 * seed))
    hook.begin()
    assert torch.equal(hook(arguments(seed=9)), fresh(arguments(seed=9)))
    assert hook.run.calls == 1 and len(hook.run) == 1 and len(hook.runs) == 2


def test_a_copy_of_the_models_options_keeps_the_hook():
    """ComfyUI copies them deeply whenever another node patches the model, but resets the first hook."""
    hook = PostCFG("Cap(1.1)")
    assert copy.deepcopy({"sampler_post_cfg_function": [hook]})["sampler_post_cfg_function"][0] is hook


def test_the_step_end_is_known_where_the_host_shows_its_grid():
    seen = []

    class Curious(Cap):
        caps, sets_scale = False, True

        def update(self, ray, p, state):
            seen.append(p.t_next)
            return super().update(ray, p, state)

    hook = PostCFG(Curious(1.1))
    for sigma in (1.0, 0.9, 0.8, 0.5):
        hook(arguments(sigma=sigma, levels=[1.0, 0.8, 0.5, 0.0]))
    assert [round(float(t), 5) for t in seen] == [0.2, 0.2, 0.5, 1.0]


def test_nonsense_gets_one_sentence():
    with pytest.raises(ValueError, match="start and end are shares"):
        PostCFG(Cap(1.1), start=0.8, end=0.2)
    with pytest.raises(ValueError, match="known are"):
        PostCFG("Nonsense(3)")


@pytest.mark.parametrize("rule", ["Cap(1.1)", "CapDisplacement(1.1)", "Cap(1.1, per='channel') | Cap(1.2)"])
@pytest.mark.parametrize("batch", [1, 3])
def test_a_cap_waits_for_no_value_on_an_accelerator(rule, batch):
    """Tensors on the meta device have no values: whoever looked at one would fail."""
    args = arguments(batch)
    there = {k: v.to("meta") if isinstance(v, torch.Tensor) else v for k, v in args.items()}
    out = PostCFG(rule)(there)
    assert out.device.type == "meta" and out.shape == args["denoised"].shape
