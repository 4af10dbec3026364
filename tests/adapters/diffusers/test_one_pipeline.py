"""What a user may do around one pipeline, shown on Stable Diffusion 3."""

import copy
import json

import diffusers
import pytest
import torch
from spy import Spy
from tiny_pipelines import CASES as EVERY
from tiny_pipelines import call, pipeline

from meancap import CFG, Cap, Prediction, Rescale, apg, guide, heun, sample
from meancap.adapters.audit import audit
from meancap.adapters.diffusers import LAYOUTS, Layout, guided
from meancap.rules import catalogue

SD3 = "StableDiffusion3Pipeline"
INF = float("inf")


@pytest.fixture
def pipe():
    return pipeline(SD3)


def traces(pipe):
    """Everything an adapter could leave behind on a pipeline."""
    return set(vars(pipe)), set(vars(pipe.scheduler)), len(pipe.transformer._forward_hooks)


def test_an_exception_restores_everything_and_the_next_run_starts_afresh(pipe):
    native = call(SD3, pipe)
    before = traces(pipe)

    def stop(pipe, i, t, values):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), guided(pipe, Cap(1.05)):
        call(SD3, pipe, callback_on_step_end=stop)
    assert traces(pipe) == before
    with guided(pipe, Cap(INF)) as record:
        with pytest.raises(KeyboardInterrupt):
            call(SD3, pipe, callback_on_step_end=stop)
        assert torch.equal(call(SD3, pipe), native)
    assert len(record) == 3, "the broken run should not count into the next one"


@pytest.mark.parametrize(
    "entry", [e for e in catalogue() if e.kind == "rule" and not e.needs], ids=lambda e: e.name
)
def test_every_rule_gives_in_the_pipeline_what_the_core_gives(pipe, entry):
    """Written out with the core alone: m = x - sigma v, guided, and back."""
    rule = entry.rule()
    spy = Spy(SD3, pipe)
    with guided(pipe, rule):
        call(SD3, pipe, guidance_scale=2.0)  # the rule replaces the pipeline's own combination
    state, sigmas = rule.init(), [float(s) for s in pipe.scheduler.sigmas]
    for i, seen in enumerate(spy.steps):
        x, sigma = seen["x"].double(), sigmas[i]
        c, u = (seen["parts"][k].double() for k in "cu")
        p = Prediction.from_mean(x, 1 - sigma, x - sigma * c, x - sigma * u).until(1 - sigmas[i + 1])
        m, state = guide(rule, p, state)
        torch.testing.assert_close(seen["received"].double(), (x - m) / sigma, rtol=1e-3, atol=1e-3)


ENDING = [
    Cap(1.03),
    CFG(7.0) | Cap(1.03),
    apg(7.0) | Cap(1.03),
    CFG(9.0) | Rescale(0.5) | Cap(1.03, smooth=0.3),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("rule", ENDING, ids=str)
def test_a_chain_that_ends_in_a_cap_keeps_its_bound_at_the_scheduler(rule, dtype):
    pipe = pipeline(SD3, dtype)
    spy = Spy(SD3, pipe)
    with guided(pipe, rule) as record:
        call(SD3, pipe)
    assert record.stacked()["active"].any()
    allowed = 4 * 2.0**-24 if dtype == torch.float32 else 2e-3
    assert float(spy.ratios().max()) <= 1.03 * (1 + allowed)


@pytest.mark.parametrize("rescale", [0.0, 0.7])
def test_an_audit_reads_a_pipeline_and_changes_nothing(rescale):
    pipe = pipeline("LTXPipeline")
    options = {"guidance_scale": 5.0, "guidance_rescale": rescale}
    spy = Spy("LTXPipeline", pipe)
    native = call("LTXPipeline", pipe, **options)
    largest = float(spy.ratios().max())
    with audit(pipe, gamma=1.0) as found:
        assert torch.equal(call("LTXPipeline", pipe, **options), native)
    report = found.report()
    assert report["largest_ratio"] == pytest.approx(largest, rel=1e-4)
    assert (report["formula"] == "u + s (c - u)") is (rescale == 0)
    if rescale == 0:
        assert report["scale"] == pytest.approx([5.0, 5.0], rel=1e-3)


def test_nested_blocks_chain_from_the_outside_in(pipe):
    with guided(pipe, CFG(5.0)) as outer:
        alone = call(SD3, pipe)
        with guided(pipe, Cap(1.05)) as inner:
            nested = call(SD3, pipe)
        first = outer.stacked()["active"]
        assert torch.equal(call(SD3, pipe), alone), "leaving an inner block leaves the outer rule at work"
    with guided(pipe, CFG(5.0) | Cap(1.05)):
        chain = call(SD3, pipe)
    torch.testing.assert_close(nested, chain, rtol=1e-5, atol=1e-5)
    with guided(pipe, Cap(1.05)):
        over = call(SD3, pipe, guidance_scale=5.0)
    torch.testing.assert_close(over, chain, rtol=1e-4, atol=1e-4)
    assert not first.any() and inner.stacked()["active"].any()
    for outer, rule in ((Cap(1.1), CFG(9.0)), (CFG(5.0), CFG(9.0)), (Cap(1.1), CFG(9.0) | Cap(1.3))):
        with (
            pytest.raises(ValueError, match="would replace its result"),
            guided(pipe, outer),
            guided(pipe, rule),
        ):
            pass
        assert "step" not in pipe.scheduler.__dict__


def test_a_copy_of_the_pipeline_made_inside_is_not_guided_and_can_be(pipe):
    native = call(SD3, pipe)
    with guided(pipe, Cap(1.05)) as record:
        capped, twin = call(SD3, pipe), copy.deepcopy(pipe)
        own, pipe.scheduler = pipe.scheduler, copy.deepcopy(pipe.scheduler)
        assert torch.equal(call(SD3, pipe), capped), "a copy of the scheduler alone is the pipeline's"
        pipe.scheduler = own
        assert torch.equal(call(SD3, twin), native)
        with guided(twin, Cap(1.05)) as other:
            assert torch.equal(call(SD3, twin), capped)
        assert torch.equal(call(SD3, pipe), capped) and len(record) == len(other) == 3
    assert torch.equal(call(SD3, twin), native) and torch.equal(call(SD3, pipe), native)
    with guided(twin, Cap(1.05)):
        assert torch.equal(call(SD3, twin), capped) and torch.equal(call(SD3, pipe), native)


def test_one_block_entered_twice_leaves_no_trace(pipe):
    native, block = call(SD3, pipe), guided(pipe, Cap(1.05))
    before = traces(pipe)
    with block:
        capped = call(SD3, pipe)
        with block:
            torch.testing.assert_close(call(SD3, pipe), capped)  # a cap twice is a cap once
        assert torch.equal(call(SD3, pipe), capped)
    assert torch.equal(call(SD3, pipe), native) and traces(pipe) == before
    with block as record:
        assert torch.equal(call(SD3, pipe), capped) and len(record) == 3


@pytest.mark.parametrize("edited", ["sigmas", "latents"])
def test_a_callback_may_edit_the_sigmas_in_place_and_return_other_latents(pipe, edited):
    """The scheduler steps the edited state by the edited sigma, so the mean and its bound belong to them."""

    def edit(pipe, i, t, values):
        if edited == "latents":
            return {"latents": values["latents"] / 2}
        pipe.scheduler.sigmas[i + 1 :] *= 0.6
        return {}

    native = call(SD3, pipe, callback_on_step_end=edit)
    with guided(pipe, Cap(INF)):
        assert torch.equal(call(SD3, pipe, callback_on_step_end=edit), native)
    spy = Spy(SD3, pipe)
    with guided(pipe, Cap(1.02)) as record:
        call(SD3, pipe, callback_on_step_end=edit)
    torch.testing.assert_close(record.stacked()["ratio"], spy.ratios(), rtol=1e-5, atol=0)
    assert record.stacked()["active"][1].all() and float(spy.ratios().max()) <= 1.02 * (1 + 1e-5)


def test_a_distilled_model_without_a_guider_has_nothing_to_guide():
    pipe = pipeline("HunyuanImagePipeline", guider=None)
    with pytest.warns(UserWarning, match="nothing to guide"), guided(pipe, Cap(1.1)):
        call("HunyuanImagePipeline", pipe)


def test_flux_is_told_that_it_also_needs_a_negative_prompt():
    pipe = pipeline("FluxPipeline")
    nothing = dict.fromkeys(("negative_prompt_embeds", "negative_pooled_prompt_embeds"))
    told = pytest.warns(UserWarning, match="both true_cfg_scale above 1 and a negative prompt")
    with told, guided(pipe, Cap(1.1)):
        call("FluxPipeline", pipe, true_cfg_scale=4.0, **nothing)


def test_the_summary_counts_the_steps_that_were_not_guided(pipe):
    def off(pipe, i, t, values):
        if i == 1:  # what diffusers' own examples do to save half of the calls
            pipe._guidance_scale = 1.0
            return {name: values[name].chunk(2)[1] for name in ("prompt_embeds", "pooled_prompt_embeds")}
        return {}

    names = ["latents", "prompt_embeds", "pooled_prompt_embeds"]
    with guided(pipe, Cap(1.05)) as record:
        call(SD3, pipe, callback_on_step_end=off, callback_on_step_end_tensor_inputs=names)
    assert len(record) == 2 and record.summary().endswith("; 1 more steps were not guided")


def test_heun_is_capped_at_both_stages_and_state_advances_once_per_step():
    pipe = pipeline(SD3, scheduler=diffusers.FlowMatchHeunDiscreteScheduler(shift=3.0))
    native = call(SD3, pipe, num_inference_steps=4)
    with guided(pipe, Cap(INF)) as record:
        assert torch.equal(call(SD3, pipe, num_inference_steps=4), native)
    assert len(record) == 7
    spy = Spy(SD3, pipe)
    with guided(pipe, Cap(1.05)) as record:
        call(SD3, pipe, num_inference_steps=4)
    assert len(spy.steps) == 7 and record.stacked()["active"][1:3].any(1).all()
    assert float(spy.ratios().max()) <= 1.05 * (1 + 4 * 2.0**-24)


def test_momentum_under_heun_is_the_cores_own_heun():
    """The core's solver and the pipeline's scheduler agree on when the state advances."""
    rule = apg(4.0, radius=None)
    pipe = pipeline(SD3, scheduler=diffusers.FlowMatchHeunDiscreteScheduler(shift=3.0)).to(torch.float64)
    spy = Spy(SD3, pipe)
    with guided(pipe, rule):
        found = call(SD3, pipe, num_inference_steps=3)
    said = iter(spy.steps)

    def predict(x, t):
        seen = next(said)
        torch.testing.assert_close(x, seen["x"], rtol=1e-4, atol=1e-4)
        return Prediction.from_velocity(x, t, -seen["parts"]["c"], -seen["parts"]["u"])

    sigmas = [float(s) for s in pipe.scheduler.sigmas]
    times = [1 - s for s in (sigmas[0], *sigmas[1:-1:2], 0.0)]
    ours = sample(predict, rule, spy.steps[0]["x"], times, heun)
    torch.testing.assert_close(found, ours, rtol=1e-3, atol=1e-3)


def test_a_record_of_nothing_says_why_and_saves_and_plots(pipe, tmp_path):
    with pytest.warns(UserWarning, match="nothing to guide"), guided(pipe, Cap(1.1)) as record:
        assert record.summary() == "nothing was guided: no step was made yet"
        call(SD3, pipe, guidance_scale=1.0)
    why = f"nothing was guided: {SD3} made one prediction per step"
    assert record.summary().startswith(why) and record.rows() == []
    assert json.loads(record.save(tmp_path / "run.json").read_text())["summary"] == record.summary()
    record.plot().savefig(tmp_path / "run.png")


def test_a_perturbed_pipeline_without_its_perturbation_is_plain_guidance():
    """At pag_scale 0 it makes two predictions; at guidance_scale 1 two as well, of which none is u."""
    name = "StableDiffusion3PAGPipeline"
    perturbed, plain = pipeline(name), pipeline(SD3)
    with guided(plain, Cap(1.05)):
        expected = call(SD3, plain)
    with guided(perturbed, Cap(1.05)) as record:
        assert torch.equal(call(name, perturbed, pag_scale=0.0), expected)
    assert record.stacked()["active"].any()
    native = call(name, perturbed, guidance_scale=1.0)
    with pytest.warns(UserWarning, match="nothing to guide"), guided(perturbed, Cap(1.05)):
        assert torch.equal(call(name, perturbed, guidance_scale=1.0), native)


def test_equal_prompts_say_that_there_is_nothing_to_guide(pipe):
    same = torch.ones(2, 5, 16)
    pooled = torch.ones(2, 16)
    with pytest.warns(UserWarning, match="the same prediction with and without"), guided(pipe, Cap(1.1)):
        call(
            SD3,
            pipe,
            prompt_embeds=same,
            negative_prompt_embeds=same,
            pooled_prompt_embeds=pooled,
            negative_pooled_prompt_embeds=pooled,
        )


def test_what_is_no_rule_and_what_is_no_pipeline_are_refused(pipe):
    with pytest.raises(TypeError, match="a rule is needed"), guided(pipe, 7.0):
        pass
    with pytest.raises(TypeError, match="a diffusers pipeline is needed"), guided(object(), Cap(1.1)):
        pass
    other = guided(pipe, Cap(1.1), layout=Layout("apart", "cu"))
    with pytest.raises(ValueError, match="leave that block first"), guided(pipe, Cap(1.1)), other:
        pass


# They decide before the loop, or not at all.
NEVER = {"OvisImagePipeline", "NucleusMoEImagePipeline", "Ideogram4Pipeline"}
SKIPS = [n for n, layout in LAYOUTS.items() if n in EVERY and layout.may_skip and n not in NEVER]


@pytest.mark.parametrize("name", SKIPS)
def test_a_step_that_needs_one_prediction_makes_one_where_the_pipeline_reads_its_scale(name):
    """The first step lies outside the interval; the result is that of making both."""
    pipe, calls = pipeline(name), []
    for part in LAYOUTS[name].denoisers:
        if getattr(pipe, part, None) is not None:
            getattr(pipe, part).register_forward_hook(lambda *_: calls.append(1))
    with guided(pipe, "CFG(7)") as record:
        call(name, pipe)
    both, t = len(calls), record.stacked()["t"][:, 0].tolist()
    rule = f"CFG(7) | Interval({(t[0] + t[1]) / 2}, 1)"
    calls.clear()
    scales = []
    with guided(pipe, rule) as record:
        found = call(name, pipe)
        scales.append(pipe.guidance_scale)
    assert len(calls) == both - 1 and scales == [7.0], "and the pipeline has its own scale again"
    assert len(record) == len(t) and record.unguided == 0
    assert record.stacked()["scale"][0].tolist() == [1.0] * record.stacked()["scale"].shape[1]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Layout, "may_skip", False)
        with guided(pipe, rule):
            torch.testing.assert_close(call(name, pipe), found)
