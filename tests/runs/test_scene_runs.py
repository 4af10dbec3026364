"""`meancap generate --model scenes`: a run of sentences, negative ones among them."""

from meancap.cli import main
from meancap.runs.folder import Run


def test_the_command_makes_a_run_of_a_sentence(tmp_path, capsys):
    out = tmp_path / "run"
    said = ["--prompt", "a red disc left of a blue square", "--negative", "dark background"]
    options = ["generate", "--model", "scenes", *said, "--rule", "CFG(4) | Cap(1.1)", "--steps", "4"]
    assert main([*options, "--per-class", "3", "--batch", "3", "--out", str(out)]) == 0
    found = Run.open(out)
    assert found.images().shape == (3, 32, 32, 3) and set(found.prompts) == {said[1]}
    assert all(r["negative"] == "dark background" for r in found.records)
    assert main(["generate", "--model", "scenes", "--prompt", "a cat", "--out", str(tmp_path / "x")]) == 2
    assert "know no 'cat'" in capsys.readouterr().err
    assert main(["generate", "--model", "scenes", "--out", str(tmp_path / "x")]) == 2
    assert "--prompt" in capsys.readouterr().err
    assert main(["generate", "--model", "fashion", "--prompt", "a disc", "--out", str(tmp_path / "x")]) == 2
