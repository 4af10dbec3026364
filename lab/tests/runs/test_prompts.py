"""Runs over prompt files, on a tiny random SD3 pipeline with real text encoders and tokenizers."""

import json
import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from killing import contents

from meancap.files import sha256_of
from meancap_lab.cli import main
from meancap_lab.runs.config import RunConfig
from meancap_lab.runs.folder import Run
from meancap_lab.runs.generate import make_run, open_model, read_prompts
from meancap_lab.runs.paper_protocols import pinned_sigmas

pytest.importorskip("diffusers")
pytestmark = pytest.mark.filterwarnings("default")  # the hosts warn about their own future


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory):
    from meancap_lab.runs.reproduce import tiny_sd3

    return tiny_sd3(tmp_path_factory.mktemp("sd3"))


@pytest.fixture(scope="module")
def source(pipeline):
    return open_model(RunConfig(f"diffusers:{pipeline}"))


@pytest.fixture
def lines(tmp_path):
    path = tmp_path / "prompts.txt"
    path.write_text('a cat\n\n   \n<b>a "dog"</b> & é\u2028x\nboats\n\n', encoding="utf-8")
    return path


def wanted(pipeline, lines, **changes):
    base = RunConfig(
        f"diffusers:{pipeline}", prompts=lines, steps=4, size=(16, 16), seed=3, guidance_scale=5.0
    )
    return replace(base, **{"rule": "Cap(1.1)", **changes})


def made(source, config, folder, rank=0, world=1):
    prepared = source.prepare(config)
    list(make_run(prepared.store(folder), prepared.make, rank, world))
    return folder


def test_blank_lines_keep_their_number_and_shift_nothing(tmp_path, pipeline, source, lines):
    run = Run.open(made(source, wanted(pipeline, lines), tmp_path / "a"))
    assert [r["index"] for r in run.records] == [0, 3, 4]
    assert run.prompts == ["a cat", '<b>a "dog"</b> & é\u2028x', "boats"]
    names = sorted(p.name for p in (tmp_path / "a" / "samples").iterdir())
    assert names == ["000000.png", "000003.png", "000004.png"]
    full = tmp_path / "full.txt"
    full.write_text('a cat\nnow\nthere\n<b>a "dog"</b> & é\u2028x\nboats\n', encoding="utf-8")
    other = Run.open(made(source, wanted(pipeline, full), tmp_path / "b"))
    for name in names:
        assert (tmp_path / "a" / "samples" / name).read_bytes() == (
            tmp_path / "b" / "samples" / name
        ).read_bytes()
    assert len(other) == 5 and not np.array_equal(other.images([0]), other.images([1]))


@pytest.mark.parametrize("noise", ["per sample", "stream", "device"])
def test_two_processes_make_the_files_of_one(tmp_path, pipeline, source, lines, noise):
    chosen = wanted(pipeline, lines, noise=noise, diagnostics=True, images="npz")
    made(source, chosen, tmp_path / "one")
    for rank in (1, 0):
        made(source, chosen, tmp_path / "two", rank, 2)
    assert contents(tmp_path / "one") == contents(tmp_path / "two")
    run = Run.open(tmp_path / "one")
    assert run.images().shape == (3, 16, 16, 3)
    assert run.meter["ratio"].shape == (4, 3) and run.meter["ratio"].max() <= 1.1 * (1 + 1e-5)
    assert [r["evaluations"] for r in run.records] == [4, 4, 4]


@pytest.mark.parametrize("noise", ["stream", "device"])  # on a CPU they are one
def test_stream_is_what_one_generator_in_prompt_order_gives(tmp_path, pipeline, source, noise):
    path = tmp_path / "p.txt"
    path.write_text("one\ntwo\nthree\n")
    chosen = wanted(pipeline, path, rule=None, noise=noise, seed=42, sigmas=pinned_sigmas(10), steps=10)
    run = Run.open(made(source, chosen, tmp_path / "r"))
    assert run.config["noise"] == noise
    generator = torch.Generator().manual_seed(42)
    for prompt, image in zip(("one", "two", "three"), run.images(), strict=True):
        expected = source.pipe(
            prompt,
            generator=generator,
            guidance_scale=5.0,
            sigmas=list(pinned_sigmas(10)),
            height=16,
            width=16,
            output_type="np",
        ).images[0]
        assert np.array_equal(image, (expected * 255).round().astype(np.uint8))


def test_the_pinned_grid_is_the_native_one_of_ten_steps(pipeline, source, lines):
    native = source.prepare(wanted(pipeline, lines, steps=10)).config.times
    pinned = source.prepare(wanted(pipeline, lines, steps=10, sigmas=pinned_sigmas(10))).config.times
    assert max(abs(a - b) for a, b in zip(native, pinned, strict=True)) < 2e-7
    paper = (1.0, 0.960129321, 0.913348973, 0.857692301, 0.790368259, 0.707278490, 0.602150559, 0.464876026,
             0.278048784, 0.008928572, 0.0)  # fmt: skip
    assert max(abs(1 - t - s) for t, s in zip(pinned, paper, strict=True)) < 2e-7


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"prompts": None}, "--prompts"),
        ({"classes": ("1",)}, "--classes"),
        ({"guidance_scale": None}, "--guidance-scale"),
        ({"rule": None, "guidance_scale": None}, "--guidance-scale"),
        ({"rule": "Interval(0, 1)"}, "has no scale"),
        ({"rule": "perp_neg(4)"}, "'negative', which no pipeline makes"),
    ],
)
def test_a_wrong_wish_is_one_sentence(pipeline, source, lines, changes, words):
    with pytest.raises(ValueError, match=words):
        source.prepare(wanted(pipeline, lines, **changes))


def test_prompt_files_that_cannot_be_read_say_so(tmp_path):
    (tmp_path / "empty.txt").write_text("\n \n")
    with pytest.raises(ValueError, match="holds no prompt"):
        read_prompts(tmp_path / "empty.txt")
    (tmp_path / "latin.txt").write_bytes("café".encode("latin-1"))
    with pytest.raises(ValueError, match="not UTF-8"):
        read_prompts(tmp_path / "latin.txt")
    (tmp_path / "dos.txt").write_bytes(b"\xef\xbb\xbfone\r\ntwo\r\n")
    assert read_prompts(tmp_path / "dos.txt") == ["one", "two"]


def test_absent_weights_are_not_downloaded(tmp_path):
    with pytest.raises(ValueError, match="downloads nothing"):
        open_model(RunConfig("diffusers:nobody/nothing"))
    with pytest.raises(ValueError, match="no readable DiffusionPipeline"):
        open_model(RunConfig(f"diffusers:{tmp_path}"))


def test_prompts_of_coco_are_the_first_captions_in_the_authors_order(tmp_path, capsys):
    """Against a transcription of select_coco_prompts in ppposition/pmc @ b27a9640."""
    captions = [
        (7, 3, "a cat\n"),
        (2, 9, "late"),
        (2, 1, " two  dogs "),
        (5, 4, "boats"),
        (7, 8, "no"),
        (9, 2, "x"),
    ]
    rows = [{"image_id": image, "id": i, "caption": text} for image, i, text in captions]
    (tmp_path / "c.json").write_text(json.dumps({"annotations": rows}))
    out = tmp_path / "p.txt"
    command = ["prompts", "coco", str(tmp_path / "c.json"), "--out", str(out), "--count"]
    assert main([*command, "3"]) == 0
    first = [(2, "two dogs"), (5, "boats"), (7, "a cat"), (9, "x")]
    random.Random(42).shuffle(first)
    assert read_prompts(out) == [text for _, text in first[:3]]
    about = json.loads(out.with_suffix(".json").read_text())
    assert about["seed"] == 42 and about["images"] == [image for image, _ in first[:3]]
    assert about["prompts_sha256"] == sha256_of(out) and about["prompts_sha256"] in capsys.readouterr().out
    assert main([*command, "5"]) == 2 and "from 1 to 4" in capsys.readouterr().err
    (tmp_path / "c.json").write_text("{}")
    assert main([*command, "1"]) == 2 and "no captions of COCO" in capsys.readouterr().err
