"""`meancap calibrate` by path matching: batches, stops, files, figures, pipelines, `generate --rule FILE`."""

import json

import pytest
import torch

from meancap import Calibration, uniform
from meancap_lab.cli import main
from meancap_lab.mixtures.problems import problem
from meancap_lab.runs.calibrate import encode_pictures, examples, match_examples, match_pipeline

RULES = ["CFG(1)", "CFG(2)"]


def test_batches_change_nothing_and_a_stopped_calibration_resumes(tmp_path):
    case = problem("under-8")
    (_, data), calls = examples("lab:under-8", 40)[0], []

    def predict(x, t):
        calls.append(t)
        return case.model().predict(x, t)

    whole = match_examples([(predict, data)], uniform(4), RULES)
    parts = match_examples([(predict, part) for part in data.split(17)], uniform(4), RULES)
    assert whole.rule == parts.rule
    assert [c.mismatch for c in whole.candidates] == pytest.approx([c.mismatch for c in parts.candidates])
    with pytest.raises(KeyboardInterrupt):
        match_examples([(predict, data)], uniform(4), RULES, folder=tmp_path, tick=_stop_at(2))
    calls.clear()
    assert match_examples([(predict, data)], uniform(4), RULES, folder=tmp_path) == whole
    assert len(calls) == 4  # the examples and the first rule were kept
    with pytest.raises(ValueError, match="needs 8 examples; got 7"):
        match_examples([(predict, data[:7])], uniform(4), RULES)
    match_examples([(predict, data + 1)], uniform(4), RULES, folder=tmp_path)
    assert len(calls) == 16  # other examples are another calibration


def _stop_at(count):
    seen = []

    def tick():
        seen.append(1)
        if len(seen) == count:
            raise KeyboardInterrupt

    return tick


def test_the_command_chooses_and_generate_follows_it(tmp_path, capsys):
    out = tmp_path / "c.json"
    command = ["calibrate", "--samples", "16", "--steps", "3", "--out", str(out)]
    rules = ["--rule", "CFG(1)", "--rule", "CFG(2) | Cap(1.1)"]
    assert main([*command, "--model", "scenes", *rules]) == 0
    said = capsys.readouterr().out
    assert said.startswith("16 examples, 3 steps, 2 rules and the examples themselves: 288 network calls\n")
    found = Calibration.load(out)
    assert f"c.json: {found}: mismatch" in said
    assert (found.model, found.examples, found.seed, found.calls) == ("scenes", 16, 0, 288)
    assert [one["rule"] for one in found.details["candidates"]] == ["CFG(1)", "CFG(2) | Cap(1.1)"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["c.json", "c.json.png"]
    run = ["generate", "--model", "scenes", "--prompt", "a red disc", "--steps", "2", "--per-class", "1"]
    assert main([*run, "--rule", str(out), "--out", str(tmp_path / "a")]) == 0
    assert json.loads((tmp_path / "a" / "run.json").read_text())["config"]["rule"] == str(found)
    assert main([*run, "--rule", "auto", "--out", str(tmp_path / "b")]) == 0
    assert capsys.readouterr().out.endswith("b: 1 samples, CFG(2) | Cap(1.1, anchor='first')\n")
    assert main([*run, "--rule", str(tmp_path / "a" / "run.json"), "--out", str(tmp_path / "d")]) == 2
    assert "cannot be read as a calibration (it has another format)" in capsys.readouterr().err
    assert main([*command, "--model", "fashion"]) == 2
    assert "needs --data DIR" in capsys.readouterr().err


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """A random SD3 with its own autoencoder and text encoders, and a folder of pictures with captions."""
    pytest.importorskip("diffusers")
    from PIL import Image

    from meancap_lab.runs.reproduce import tiny_sd3

    folder, data = tmp_path_factory.mktemp("sd3"), tmp_path_factory.mktemp("pictures")
    draw = torch.Generator().manual_seed(0)
    for i in range(8):
        pixels = (torch.rand(16, 16, 3, generator=draw) * 255).byte().numpy()
        Image.fromarray(pixels).save(data / f"{i}.png")
        (data / f"{i}.txt").write_text("a cat" if i % 2 else "boats")
    (data / "no caption.png").write_bytes((data / "0.png").read_bytes())
    return tiny_sd3(folder), data


@pytest.mark.filterwarnings("default")
def test_a_pipeline_walks_its_encoded_pictures_and_its_rules(tiny):
    from PIL import Image

    from meancap.adapters.diffusers import guided
    from meancap_lab.runs.path_matching import Follow
    from meancap_lab.runs.prompts import open_pipeline

    source, data = tiny
    pipe = open_pipeline(source, dtype=torch.float32, device="cpu")
    pictures = [Image.open(data / f"{i}.png").convert("RGB") for i in range(8)]
    latents = encode_pictures(pipe, pictures)
    with torch.no_grad(), guided(pipe, Follow(latents[:1])):
        end = pipe(
            "a cat", height=16, width=16, num_inference_steps=4, guidance_scale=2.0, output_type="latent"
        )
    torch.testing.assert_close(end.images, latents[:1], rtol=1e-4, atol=1e-4)
    captions = [(data / f"{i}.txt").read_text() for i in range(8)]
    match = match_pipeline(pipe, pictures, captions, RULES, num_inference_steps=4)
    again = match_pipeline(pipe, latents, captions, RULES, num_inference_steps=4, height=16, width=16)
    assert match == again and match.examples == 8 and match.model == "StableDiffusion3Pipeline"
    with pytest.raises(ValueError, match="each picture needs its caption"):
        match_pipeline(pipe, pictures, captions[:3], RULES)
