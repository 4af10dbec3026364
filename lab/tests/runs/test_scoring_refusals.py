"""Images, files and options that cannot be used: one sentence each, and nothing half-written."""

from pathlib import Path

import pytest
import torch

from made import made_run
from meancap_lab.cli import main
from meancap_lab.metrics import protocol
from meancap_lab.metrics.extractor import Extractor
from meancap_lab.metrics.images import Unreadable, open_images, open_npz
from meancap_lab.runs.scoring import open_target, read_scores, score_target


@pytest.mark.parametrize(
    ("array", "words"),
    [
        (torch.zeros(2, 3, 8, 8, dtype=torch.uint8), "1 or 3"),
        (torch.zeros(2, 8, 8, 3), "must be uint8"),
        (torch.zeros(8, 8, 3, dtype=torch.uint8), "must be uint8 of shape"),
    ],
)
def test_npz_files_of_another_form_are_refused(array, words, tmp_path):
    numpy = pytest.importorskip("numpy")
    numpy.savez(tmp_path / "x.npz", arr_0=array.numpy())
    with pytest.raises(Unreadable, match=words):
        open_npz(tmp_path / "x.npz")


def test_bad_input_is_one_sentence_and_exit_code_2(tmp_path, garments, capsys, monkeypatch):
    run = made_run(tmp_path / "run", garments[0][:40], garments[1][:40])
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.setenv("MEANCAP_FASHION_MNIST", str(tmp_path / "nowhere"))
    monkeypatch.delenv("MEANCAP_WEIGHTS", raising=False)
    torch.save({"a": torch.zeros(3)}, tmp_path / "other.pth")
    for command, words in (
        ("{run}", "at least one RUN and one --protocol"),
        ("{run} --protocol fid", "unknown protocol 'fid'"),
        ("{run} --protocol fashion --threads 0", "--threads must be at least 1"),
        ("{here}/none --protocol fashion", "there is no"),
        ("{run} --protocol adm-imagenet256", "weights-inception-2015-12-05"),
        ("{run} --protocol efficientnet-lite0", "needs --reference"),
        ("{run} --protocol efficientnet-lite0 --reference fashion-mnist", "Fashion-MNIST"),
        ("{run} --protocol fashion --reference {here}/no", "there is no"),
        ("{run} --protocol fashion --weights {here}/other.pth", "is not a Fashion-MNIST classifier"),
        ("{run} --protocol fashion --weights {here}/none.pth", "there is no file of weights"),
    ):
        assert main(["score", *(word.format(run=run, here=tmp_path) for word in command.split())]) == 2
        said = capsys.readouterr().err
        assert words in said and said.count("\n") == 1 and said.startswith("meancap: ") and len(said) < 400
    assert not (run / "scores.jsonl").exists()


def test_prompt_protocols_need_prompts(tmp_path, garments):
    run = made_run(tmp_path / "run", garments[0][:10], garments[1][:10])
    asks = Extractor("asks", lambda images, prompts: {"x": images.float().flatten(1)}, needs_prompts=True)
    with pytest.raises(Unreadable, match="has no prompts"):
        list(score_target(open_target(run), protocol("clip-b32"), asks, None))


@pytest.mark.parametrize("content", [b"{torn", b"[1]\n", b'{"name": "FID"}\n', b"\xff\xfe\n"])
def test_damaged_scores_are_reported(tmp_path, content):
    (tmp_path / "scores.jsonl").write_bytes(content)
    with pytest.raises(ValueError, match="delete it and score again"):
        read_scores(tmp_path)


def test_damaged_files_are_named_in_one_sentence(tmp_path, garments, capsys):
    def cut(path):
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])

    def flip(path):
        content = bytearray(path.read_bytes())
        content[len(content) // 3] ^= 255
        path.write_bytes(content)

    def begun(path):
        path.write_text('{"format": 1}')

    for name, damage, words in (
        ("samples.npz", cut, "samples.npz is not an .npz file"),
        ("samples.npz", flip, "samples.npz is damaged"),
        ("records.jsonl", cut, "records.jsonl is missing or damaged"),
        ("records.jsonl", Path.unlink, "records.jsonl is missing or damaged"),
        ("run.json", begun, "run.json lacks config"),
        ("scores/hsv.safetensors", cut, "hsv.safetensors is damaged; score again with --force"),
    ):
        run = made_run(tmp_path / f"run-{words[:9]}-{damage.__name__}", garments[0][:20], None)
        command = ["score", str(run), "--protocol", "hsv"]
        if "/" in name:
            assert main(command) == 0
        damage(next(run.glob(name)))
        capsys.readouterr()
        assert main(["report", str(run)] if name.startswith("scores") else [*command, "--force"]) == 2
        said = capsys.readouterr().err.rpartition("\r")[2]
        assert words in said and said.startswith("meancap: ") and said.count("\n") == 1


def test_labels_of_an_npz_are_one_whole_number_per_image(tmp_path):
    numpy = pytest.importorskip("numpy")
    arr_0 = numpy.zeros((4, 28, 28, 1), dtype=numpy.uint8)
    path = tmp_path / "x.npz"
    for arr_1 in ([0, 1], [0.5, 1, 2, 3], ["a", "b", "c", "d"], [[0], [1], [2], [3]]):
        numpy.savez(path, arr_0=arr_0, arr_1=numpy.asarray(arr_1))
        with pytest.raises(Unreadable, match="arr_1"):
            open_target(path)
    for arr_1, labels in (([3, 1, 0, 2], [3, 1, 0, 2]), ([-1] * 4, None)):
        numpy.savez(path, arr_0=arr_0, arr_1=numpy.asarray(arr_1, dtype=numpy.int16))
        found = open_target(path).labels
        assert (None if found is None else found.tolist()) == labels
    numpy.savez(path, arr_0=arr_0[:0])
    with pytest.raises(Unreadable, match="no images"):
        open_target(path)


def test_pictures_of_sixteen_bits_are_refused_rather_than_cut_to_white(tmp_path):
    image, numpy = pytest.importorskip("PIL.Image"), pytest.importorskip("numpy")
    image.fromarray(numpy.full((4, 4), 5000, dtype=numpy.uint16)).save(tmp_path / "deep.png")
    with pytest.raises(Unreadable, match="more than 8 bits"):
        open_images(tmp_path).read(0, 1)
