"""Guidance Report inside the real ComfyUI: whose run it tells of, what it hands on, what it saves."""

import inspect
import json
from types import SimpleNamespace

import pytest
import torch
from comfy_host import NODE_IDS, capped, exact, hook_of, node, sampled

pytestmark = [pytest.mark.usefixtures("comfy"), pytest.mark.filterwarnings("ignore")]

SHAPE = (2, 4, 8, 8)


@pytest.fixture
def folder(comfy, tmp_path):
    """ComfyUI's output folder for one test."""
    before = comfy.folders.get_output_directory(), comfy.folders.get_temp_directory()
    comfy.folders.set_output_directory(str(tmp_path / "output"))
    comfy.folders.set_temp_directory(str(tmp_path / "temp"))
    yield tmp_path / "output"
    comfy.folders.set_output_directory(before[0])
    comfy.folders.set_temp_directory(before[1])


def report(latent, model, prefix="guidance/report"):
    return node("MeancapGuidanceReport", {"samples": latent}, model, prefix)


def test_the_latent_goes_through_and_the_words_are_the_runs(folder):
    model = capped(exact(), 1.05)
    latent = {"samples": sampled(model, SHAPE), "batch_index": [3, 4]}
    through, text, plot = node("MeancapGuidanceReport", latent, model, "guidance/report")
    assert through is latent
    assert text == hook_of(model).run.text() and text.startswith("Cap(1.05): capped ")
    assert plot.shape == (1, 600, 768, 3)


def test_picture_and_numbers_are_saved_in_the_output_folder(folder):
    model = capped(exact(), 1.05)
    latent = sampled(model, SHAPE)
    for _ in range(2):
        report(latent, model)
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.*"))
    assert names == [f"guidance/report_0000{i}_.{kind}" for i in (1, 2) for kind in ("json", "png")]
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


def test_two_samplers_on_one_model_have_two_reports(folder):
    model = capped(exact(), 1.05)
    one, other = sampled(model, SHAPE, cfg=3.0), sampled(model, SHAPE, cfg=9.0, sampler="heun")
    assert "asked for CFG 3.0" in report(one, model)[1]
    assert "asked for CFG 9.0" in report(other, model)[1]


def test_a_latent_changed_after_sampling_is_said_to_be(folder):
    model = capped(exact(), 1.05)
    latent = sampled(model, SHAPE)
    assert "not the one that a run made" not in report(latent, model)[1]
    larger = torch.nn.functional.interpolate(latent, scale_factor=2)
    assert "not the one that a run made" in report(larger, model)[1]


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


def test_nodes_after_the_cap_are_named_in_its_report(folder):
    model = node("CFGZeroStar", capped(exact(), 1.05))[0]
    assert "Acting after this node: cfg_zero_star" in report(sampled(model, SHAPE), model)[1]


def test_words_to_search_by_are_given_where_comfyui_takes_them(comfy):
    from comfy_api.latest import io

    if "search_aliases" not in inspect.signature(io.Schema).parameters:
        pytest.skip("this ComfyUI finds nodes by their names alone")
    for name in NODE_IDS:
        assert {"cfg", "pmc"} <= set(comfy.known[name].define_schema().search_aliases)


def test_a_model_changed_after_the_cap_still_starts_afresh_with_every_run(folder):
    model = node("RescaleCFG", capped(exact(), 1.05), 0.7)[0]
    for _ in range(2):
        latent = sampled(model, SHAPE)
        assert "/6 steps" in report(latent, model)[1]
    assert len(hook_of(model).runs) == 2


def test_cfg_1_is_reported_as_nothing_done(folder):
    model = capped(exact(), 1.05)
    text, plot = report(sampled(model, SHAPE, cfg=1.0), model)[1:]
    assert "did nothing in 6 steps" in text and "Distilled models" in text
    assert plot.shape == (1, 600, 768, 3)
    assert [path.suffix for path in folder.rglob("*.*")] == [".png"]


def test_a_model_without_guidance_nodes_gets_one_sentence():
    with pytest.raises(ValueError, match="carries no Posterior-Mean Cap"):
        report(torch.zeros(SHAPE), exact())


def test_bad_input_is_refused_before_anything_runs(comfy):
    cap, rule = comfy.known["MeancapPosteriorMeanCap"], comfy.known["MeancapGuidanceRule"]
    assert rule.validate_inputs(rule="CFG(7) | Cap(1.1)") is True
    assert "unknown name 'Kap'" in rule.validate_inputs(rule="CFG(7) | Kap(1.1)")
    assert "caps first" in rule.validate_inputs(rule="Cap(1.1) | CFG(7)")
    assert "must not be after" in cap.validate_inputs(start=0.9, end=0.2)
    assert list(inspect.signature(cap.validate_inputs).parameters) == ["start", "end"]  # where it is shown
    with pytest.raises(ValueError, match="must not be after"):
        rule.execute(exact(), "CFG(7)", start=0.9, end=0.2)
    assert "from 0 to 1" in cap.validate_inputs(start=-0.1) and "from 0 to 1" in cap.validate_inputs(end=2.0)
    with pytest.raises(ValueError, match="one of ball"):
        cap.execute(exact(), 1.1, "cube")
    assert cap.validate_inputs(start=0.0, end=1.0) is True and cap.validate_inputs() is True
