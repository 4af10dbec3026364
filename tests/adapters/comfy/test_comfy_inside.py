"""The nodes inside the real ComfyUI: its samplers, guiders, nodes and folders, with models that are exact."""

import json
from types import SimpleNamespace

import pytest
import torch
from comfy_host import NODE_IDS, Spy, capped, exact, hook_of, node, sampled, tiny_sd3, words
from hook_arguments import KEYS, furthest, prediction

from meancap import Prediction, sample
from meancap.adapters.comfy.hooks import noise_levels
from meancap.rules import Calibration

pytestmark = [pytest.mark.usefixtures("comfy"), pytest.mark.filterwarnings("ignore")]

SHAPES = [(4, 8, 8), (3, 2, 4, 4), (8, 16), (1, 64)]
SHAPE = (2, 4, 8, 8)
ROOM = (1, 4, 32, 32)  # FreSca needs room for its cut-off, and RenormCFG a batch of one
NODES = {
    "RescaleCFG": (0.7,), "APG": (0.5, 5.0, -0.3), "TCFG": (), "FreSca": (1.0, 1.25, 5),
    "RenormCFG": (100.0, 2.0), "CFGZeroStar": (), "Mahiro": (), "CFGNorm": (1.0,),
}  # fmt: skip


@pytest.fixture
def folder(comfy, tmp_path):
    """ComfyUI's output folder for one test."""
    before = comfy.folders.get_output_directory(), comfy.folders.get_temp_directory()
    comfy.folders.set_output_directory(str(tmp_path / "output"))
    comfy.folders.set_temp_directory(str(tmp_path / "temp"))
    yield tmp_path / "output"
    comfy.folders.set_output_directory(before[0])
    comfy.folders.set_temp_directory(before[1])


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
        assert {"cfg", "pmc"} <= set(getattr(schema, "search_aliases", ["cfg", "pmc"]))  # where it has them
        for field in schema.inputs:
            assert field.tooltip or field.id == "model"
    assert "last" in comfy.known[NODE_IDS[0]].GET_SCHEMA().description
    optional = comfy.known[NODE_IDS[0]].INPUT_TYPES()["optional"]
    assert list(optional) == ["start", "end"] and all(optional[name][1]["advanced"] for name in optional)


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
        v = (p.m_c.double() - p.x.double()) / (1 - p.t)
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
    assert len(run) == 0 and run.unguided == run.calls > 0


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


@pytest.mark.parametrize(
    ("rule", "same"), [("CFG(7)", None), ("Cap(1.1)", 1.1), ("CFG(7) | Cap(1.1)", 1.1), ("apg(7)", None)]
)
def test_a_rule_is_the_hosts_cfg_the_node_and_what_the_library_samples(rule, same):
    """In a flow model, by Euler: ComfyUI's result, the node's and that of `sample` from the same noise."""
    model = exact()
    ruled = sampled(
        node("MeancapGuidanceRule", model, rule)[0], SHAPE, cfg=7.0 if rule == "Cap(1.1)" else 2.0
    )
    if rule != "apg(7)":
        theirs = sampled(model if same is None else capped(model, same), SHAPE, cfg=7.0)
        torch.testing.assert_close(ruled, theirs, rtol=1e-4, atol=1e-4)
    network, noise = model.model.diffusion_model, torch.randn(SHAPE, generator=torch.manual_seed(1))

    def predict(x, t):
        at, labels = (
            torch.full((len(x),), 1000 * (1 - t)),
            (torch.full((len(x), 1, 1), k) for k in (1.0, 0.0)),
        )
        return Prediction.from_velocity(x, t, *(-network(x, at, context=one) for one in labels))

    sigmas = node("BasicScheduler", model, "simple", 6, 1.0)[0]
    ours = sample(predict, rule if "CFG" in rule or "apg" in rule else f"CFG(7) | {rule}", noise, 1 - sigmas)
    torch.testing.assert_close(ruled, ours, rtol=1e-4, atol=1e-4)


def test_an_interval_over_50_steps_costs_80_passes_of_the_network():
    """ComfyUI may evaluate both conditions in one call, so the rows of the network are counted."""
    model, rows = exact(), []
    model.model.diffusion_model.register_forward_hook(lambda _, given, out: rows.append(len(out)))
    ruled = node("MeancapGuidanceRule", model, "CFG(7) | Interval(0.19, 0.79)")[0]
    found = sampled(ruled, SHAPE, steps=50, cfg=2.0)
    assert sum(rows) == 80 * SHAPE[0]
    run = hook_of(ruled).run
    assert len(run) == run.calls == 50
    rows.clear()
    both = sampled(capped(ruled, 100.0), SHAPE, steps=50, cfg=2.0)  # a later node may need both
    assert sum(rows) == 100 * SHAPE[0]
    torch.testing.assert_close(found, both, rtol=1e-4, atol=1e-4)
    rows.clear()
    sampled(node("MeancapGuidanceRule", model, "CFG(7)", start=0.0, end=0.5)[0], SHAPE, steps=50)
    assert sum(rows) == 100 * SHAPE[0], "outside start and end the workflow's own guidance stands"


@pytest.mark.parametrize("shift", [1.0, 3.0])
def test_start_and_end_are_shares_of_the_schedule_in_use(shift):
    """ModelSamplingSD3, put after the cap, replaces the schedule."""
    spy = Spy()
    model = capped(exact(), 1.0, "displacement", spy, start=0.25, end=0.75)
    sampled(node("ModelSamplingSD3", model, shift)[0], SHAPE, steps=10)
    first, last = (shift * v / (1 + (shift - 1) * v) for v in (0.75, 0.25))
    acted = [not torch.equal(args["denoised"], out) for args, out in zip(spy.calls, spy.out, strict=True)]
    assert acted == [last <= float(args["sigma"][0]) <= first for args in spy.calls]
    assert any(acted) and not all(acted)


def test_a_mask_and_a_partial_denoise_keep_what_they_keep():
    latent = {"samples": torch.randn(1, 4, 8, 8), "noise_mask": torch.zeros(1, 1, 64, 64)}
    latent["noise_mask"][..., 32:] = 1
    spy = Spy()
    out = sampled(capped(exact(), 1.05, spy=spy), None, latent=latent, denoise=0.5)
    torch.testing.assert_close(out[..., :4], latent["samples"][..., :4], rtol=1e-5, atol=1e-5)
    assert not torch.allclose(out[..., 4:], latent["samples"][..., 4:], atol=1e-2)
    check_furthest(spy, 1.05)


@pytest.mark.parametrize("name", NODES)
def test_last_in_the_chain_it_bounds_what_another_node_made(name):
    model = node(name, exact(ROOM[1:]), *NODES[name])[0]
    spy = Spy()
    out = sampled(capped(model, 1.05, spy=spy), ROOM)
    check_furthest(spy, 1.05)
    assert torch.equal(sampled(capped(model, 100.0), ROOM), sampled(model, ROOM))
    assert not torch.equal(out, sampled(capped(exact(ROOM[1:]), 1.05), ROOM))


def by_guider(guider, steps=6, samples=ROOM[0]):
    """What SamplerCustomAdvanced makes with a guider."""
    sigmas = node("BasicScheduler", exact(ROOM[1:]), "simple", steps, 1.0)[0]
    noise, sampler = node("RandomNoise", 1)[0], node("KSamplerSelect", "euler")[0]
    latent = {"samples": torch.zeros(samples, *ROOM[1:])}
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
    model = exact(ROOM[1:])
    out = by_guider(GUIDERS[name](capped(model, 1.05, spy=spy)))
    check_furthest(spy, 1.05)
    assert not torch.equal(out, by_guider(GUIDERS[name](model)))


@pytest.mark.parametrize("style", ["regular", "nested"])
def test_the_dual_guider_is_bounded_inside_its_hook(style):
    """It adds one term after the hook, which no post-CFG node can see."""
    spy = Spy()
    model = capped(exact(ROOM[1:]), 1.05, spy=spy)
    values = (words(1), words(2), words(0), 3.0, 3.0)
    try:
        guider = node("DualCFGGuider", model, *values, style)[0]
    except TypeError:  # before 0.3.49 there was no style
        guider = node("DualCFGGuider", model, *values)[0]
    by_guider(guider)
    check_furthest(spy, 1.05)


def test_the_basic_guider_has_no_negative_and_is_left_alone():
    model = exact(ROOM[1:])
    plain, limited = (by_guider(node("BasicGuider", m, words(1))[0]) for m in (model, capped(model, 1.0)))
    assert torch.equal(plain, limited)


def test_a_rule_with_something_to_avoid_takes_the_three_predictions_of_the_guider():
    """PerpNegGuider sums over the whole batch, a rule over each sample: alike for one sample."""

    def made(model, cfg, avoided=1.0):
        return by_guider(
            node("PerpNegGuider", model, words(1), words(2), words(0), cfg, avoided)[0], samples=1
        )

    model = exact(ROOM[1:])
    ruled = node("MeancapGuidanceRule", model, "perp_neg(7, weight=1.5)", 0.0, 1.0)[0]
    torch.testing.assert_close(made(ruled, 2.0), made(model, 7.0, 1.5), rtol=1e-4, atol=1e-4)
    both = node("MeancapGuidanceRule", model, "perp_neg(7) | Cap(1.05)", 0.0, 1.0)[0]
    made(both, 2.0)
    assert hook_of(both).run.stacked()["ratio"].max() <= 1.05 * (1 + 1e-6)
    with pytest.raises(ValueError, match="PerpNegGuider"):
        by_guider(node("CFGGuider", ruled, words(1), words(0), 7.0)[0])
    with pytest.raises(ValueError, match="neg_scale above 0"):
        made(ruled, 7.0, 0.0)


class Labels:
    """A text encoder for models whose prompts are labels."""

    def tokenize(self, text):
        return int(text)

    def encode_from_tokens_scheduled(self, tokens):
        return words(tokens)


def calibrated(model, prompts, **more):
    lines = "\n".join(str(one) for one in prompts)
    given = {"negative": words(0), "latent": {"samples": torch.zeros(SHAPE)}, "seed": 5, "steps": 6, **more}
    return node(
        "MeancapCalibrateGuidance", model=model, clip=Labels(), prompts=lines, scheduler="simple",
        level="q90", filename_prefix="calibration/exact", **given,
    )  # fmt: skip


@pytest.mark.parametrize("flow", [True, False])
def test_calibration_is_a_pilot_by_hand_and_its_rule_holds_its_bound(flow, folder):
    model, prompts = exact(flow=flow), [1, 2] * 4
    rule, text = calibrated(model, prompts)
    assert text.startswith(
        "BaseModel: 16 samples, 192 network calls, written to calibration/exact_00001_.json\n"
    )
    m_u, m_c = [], []
    for i, label in enumerate(prompts):
        spy = Spy()
        plain = spy.before(model)
        plain.set_model_sampler_post_cfg_function(lambda args: args["cond_denoised"])
        sampled(plain, SHAPE, seed=5 + i, conds=(words(label), words(0)))
        m_u.append(spy.calls[0]["uncond_denoised"].double())
        m_c.append(torch.stack([args["cond_denoised"].double() for args in spy.calls]))
    times = [float(noise_levels(args).time(args["sigma"])[0]) for args in spy.calls]
    anchor = torch.cat(m_u).mean((0, 2, 3))
    radii = (torch.cat(m_c, dim=1) - anchor[:, None, None]).flatten(2).norm(dim=2).quantile(0.9, dim=1)
    (cap,) = Calibration.load(folder / "calibration" / "exact_00001_.json").parts
    assert str(cap) == rule
    torch.testing.assert_close(cap.anchor.tensor(anchor), anchor, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(torch.tensor(cap.floor.times), torch.tensor(times), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(torch.tensor(cap.floor.values).double(), radii, rtol=1e-5, atol=1e-6)
    spy, file = Spy(), "calibration/exact_00001_.json"
    out = sampled(spy.after(node("MeancapGuidanceRule", spy.before(model), rule)[0]), SHAPE, cfg=20.0)
    assert torch.equal(out, sampled(node("MeancapGuidanceRule", model, file)[0], SHAPE, cfg=20.0))
    assert not torch.equal(out, sampled(model, SHAPE, cfg=20.0))
    for args, guided in zip(spy.calls, spy.out, strict=True):
        r, floor = anchor[:, None, None], cap.floor
        away, own = ((m.double() - r).flatten(1).norm(dim=1) for m in (guided, args["cond_denoised"]))
        bound = own.clamp(min=floor(float(noise_levels(args).time(args["sigma"])[0])))
        assert bool((away <= bound * (1 + 1e-4)).all())


def test_small_pilots_and_absent_negatives_are_refused(folder):
    few = "at least 16 samples; 2 prompts times the latent's batch of 2 make 4"
    with pytest.raises(ValueError, match=few):
        calibrated(exact(), [1, 2])
    late = node("ConditioningSetTimestepRange", words(0), 0.5, 1.0)[0]
    with pytest.raises(ValueError, match="needs the negative at every step"):
        calibrated(exact(), [1, 2] * 4, negative=late)
    assert not any(folder.rglob("*.json"))


def report(latent, model, prefix="guidance/report"):
    return node("MeancapGuidanceReport", {"samples": latent}, model, prefix)


def test_a_report_hands_the_latent_on_and_saves_picture_and_numbers(folder):
    model = capped(exact(), 1.05)
    latent = {"samples": sampled(model, SHAPE), "batch_index": [3, 4]}
    through, text, plot = node("MeancapGuidanceReport", latent, model, "guidance/report")
    assert through is latent and plot.shape == (1, 600, 768, 3)
    assert text == hook_of(model).run.text() and text.startswith("Cap(1.05): capped ")
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.*"))
    assert names == [f"guidance/report_00001_.{kind}" for kind in ("json", "png")]
    saved = json.loads((folder / "guidance" / "report_00001_.json").read_text(encoding="utf-8"))
    assert saved["about"]["headline"] == hook_of(model).run.headline() and len(saved["rows"]) == 12


def test_without_a_prefix_nothing_is_kept_and_no_prefix_leads_out(folder):
    model = capped(exact(), 1.05)
    latent = sampled(model, SHAPE)
    report(latent, model, "")
    assert not folder.exists() or not any(folder.rglob("*.*"))
    with pytest.raises(Exception, match="outside the output folder"):
        report(latent, model, "../../elsewhere")
    assert not any(folder.parent.parent.glob("elsewhere*"))


def test_every_report_is_of_the_run_that_made_its_latent(folder):
    model = node("RescaleCFG", capped(exact(), 1.05), 0.0)[0]  # a later node copies the model
    one, other = sampled(model, SHAPE, cfg=3.0), sampled(model, SHAPE, cfg=9.0, sampler="heun")
    assert "requested CFG 3.0" in report(one, model)[1] and "/6 steps" in report(one, model)[1]
    assert "requested CFG 9.0" in report(other, model)[1] and len(hook_of(model).runs) == 2
    changed = "not the one that a run made"
    assert changed not in report(other, model)[1]
    assert changed in report(torch.nn.functional.interpolate(other, scale_factor=2), model)[1]
    idle = report(sampled(model, SHAPE, cfg=1.0), model)[1]
    assert "did nothing in 6 steps" in idle and "Distilled models" in idle
    later = node("CFGZeroStar", capped(exact(), 1.05))[0]
    assert "Acting after this node: cfg_zero_star" in report(sampled(later, SHAPE), later)[1]


@pytest.mark.parametrize("reports", [1, 2])
def test_only_a_single_report_goes_into_images(comfy, folder, reports):
    """Images of a workflow share their text, so that of two reports neither would be known as its own."""
    made = comfy.known["MeancapGuidanceReport"]
    nodes = {str(i): {"class_type": "MeancapGuidanceReport"} for i in range(reports)}
    model = capped(exact(), 1.05)
    info = {"workflow": {}}
    before, made.hidden = made.hidden, SimpleNamespace(prompt=nodes, extra_pnginfo=info, unique_id="0")
    try:
        text = report(sampled(model, SHAPE), model)[1]
    finally:
        made.hidden = before
    assert info == {"workflow": {}, **({"meancap": text} if reports == 1 else {})}
    assert ("Not written into images" in text) == (reports == 2)


def test_bad_input_is_refused_before_anything_runs(comfy):
    cap, rule = comfy.known["MeancapPosteriorMeanCap"], comfy.known["MeancapGuidanceRule"]
    assert rule.validate_inputs(rule="CFG(7) | Cap(1.1)") is True
    assert "unknown name 'Kap'" in rule.validate_inputs(rule="CFG(7) | Kap(1.1)")
    assert "caps first" in rule.validate_inputs(rule="Cap(1.1) | CFG(7)")
    for made, given in ((cap, (1.1, "ball")), (rule, ("CFG(7)",))):
        with pytest.raises(ValueError, match="shares of the run"):
            made.execute(exact(), *given, start=0.9, end=0.2)
    with pytest.raises(ValueError, match="has no Posterior-Mean Cap"):
        report(torch.zeros(SHAPE), exact())
