"""Calibration in the real ComfyUI: what the node writes is what a pilot by hand measures."""

import pytest
import torch
from comfy_host import Spy, exact, node, sampled, words

from meancap.adapters.comfy.hooks import noise_levels
from meancap.rules.caps import load_calibration

pytestmark = [pytest.mark.usefixtures("comfy"), pytest.mark.filterwarnings("ignore")]

SHAPE, PROMPTS = (2, 4, 8, 8), [1, 2] * 4


class Labels:
    """A text encoder for models whose prompts are labels."""

    def tokenize(self, text):
        return int(text)

    def encode_from_tokens_scheduled(self, tokens):
        return words(tokens)


@pytest.fixture
def folder(comfy, tmp_path):
    before = comfy.folders.get_output_directory()
    comfy.folders.set_output_directory(str(tmp_path))
    yield tmp_path
    comfy.folders.set_output_directory(before)


def calibrated(model, prompts=PROMPTS, **more):
    lines = "\n".join(str(one) for one in prompts)
    given = {"negative": words(0), "latent": {"samples": torch.zeros(SHAPE)}, "seed": 5, "steps": 6, **more}
    return node(
        "MeancapCalibrateGuidance", model=model, clip=Labels(), prompts=lines, scheduler="simple",
        filename_prefix="calibration/exact", **given,
    )  # fmt: skip


@pytest.mark.parametrize("flow", [True, False])
def test_the_node_writes_what_a_pilot_by_hand_measures(flow, folder):
    model = exact(flow=flow)
    file, text = calibrated(model)
    assert file == "calibration/exact_00001_.json"
    assert text.startswith("BaseModel: 8 runs, 48 steps, two predictions each\n16 samples")
    m_u, m_c = [], []
    for i, label in enumerate(PROMPTS):
        spy, plain = Spy(), model.clone()
        plain = spy.before(plain)
        plain.set_model_sampler_post_cfg_function(lambda args: args["cond_denoised"])
        sampled(plain, SHAPE, seed=5 + i, conds=(words(label), words(0)))
        m_u.append(spy.calls[0]["uncond_denoised"].double())
        m_c.append(torch.stack([args["cond_denoised"].double() for args in spy.calls]))
    times = [float(noise_levels(args).time(args["sigma"])[0]) for args in spy.calls]
    anchor = torch.cat(m_u).mean((0, 2, 3))
    radii = (torch.cat(m_c, dim=1) - anchor[:, None, None]).flatten(2).norm(dim=2)
    found = load_calibration(folder / file)
    torch.testing.assert_close(found.anchor.tensor(anchor), anchor, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(torch.tensor(found.times), torch.tensor(times), rtol=1e-5, atol=1e-6)
    for level, expected in (("rms", radii.square().mean(1).sqrt()), ("q90", radii.quantile(0.9, dim=1))):
        measured = torch.tensor(found.radii[level], dtype=torch.float64)
        torch.testing.assert_close(measured, expected, rtol=1e-5, atol=1e-6)
    assert calibrated(model)[0] == "calibration/exact_00002_.json"


def test_the_calibrated_cap_holds_the_bound_of_its_file(folder):
    model = exact()
    file = calibrated(model)[0]
    spy = Spy()
    out = sampled(spy.after(node("MeancapCalibratedCap", spy.before(model), file, "q50", 1.0)[0]), SHAPE)
    assert not torch.equal(out, sampled(model, SHAPE))
    rule = load_calibration(folder / file).cap(level="q50")
    for args, guided in zip(spy.calls, spy.out, strict=True):
        r = rule.anchor.tensor(guided.double())[:, None, None]
        away, own = ((m.double() - r).flatten(1).norm(dim=1) for m in (guided, args["cond_denoised"]))
        floor = rule.floor(float(1 - args["sigma"][0]))
        assert bool((away <= own.clamp(min=floor) * (1 + 1e-5)).all())


def test_files_elsewhere_small_pilots_and_absent_negatives_are_refused(comfy, folder):
    model = exact()
    (folder.parent / "secret.json").write_text("{}", encoding="utf-8")
    for file in ("../secret.json", str(folder.parent / "secret.json"), "none.json"):
        with pytest.raises(ValueError, match="no calibration"):
            node("MeancapCalibratedCap", model, file, "q90", 1.0)
    with pytest.raises(
        ValueError, match="at least 16 samples; 2 prompts times the latent's batch of 2 make 4"
    ):
        calibrated(model, [1, 2])
    late = node("ConditioningSetTimestepRange", words(0), 0.5, 1.0)[0]
    with pytest.raises(ValueError, match="needs the negative at every step"):
        calibrated(model, negative=late)
    assert not any(folder.rglob("*.json"))


def test_a_file_that_was_written_anew_is_read_anew(comfy, folder):
    made = comfy.known["MeancapCalibratedCap"]
    first = folder / "one.json"
    assert made.fingerprint_inputs(file="one.json", level="q90") is None
    first.write_text("{}", encoding="utf-8")
    assert made.fingerprint_inputs(file="one.json", level="q90") == first.stat().st_mtime_ns
