"""The command line parses and prints; what is wrong is said in one sentence."""

import os
import subprocess
import sys

import pytest

from meancap_lab.cli import COMMANDS, main, parser


def said(arguments, capsys):
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    captured = capsys.readouterr()
    return stop.value.code, captured.out, captured.err


def test_help_lists_every_command_and_an_example(capsys):
    code, out, _ = said(["--help"], capsys)
    assert code == 0 and "example" in out
    names = {add.__name__.removeprefix("add_") for add in COMMANDS}
    assert "reproduce" in names
    assert all(name in out for name in names)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "COMMAND"),
        (["fly"], "invalid choice: 'fly'"),
        (["reproduce"], "KIND"),
        (["reproduce", "gmm"], "--out"),
    ],
)
def test_what_is_missing_or_unknown_is_one_line_with_the_way_to_help(arguments, words, capsys):
    code, out, err = said(arguments, capsys)
    assert code == 2 and out == "" and words in err
    assert err.count("\n") == 1 and "--help" in err


def test_a_missing_package_is_one_sentence_with_the_pip_command(monkeypatch, tmp_path, capsys):
    for name in [
        name for name in sys.modules if name.startswith(("meancap_lab.report", "meancap_lab.mixtures"))
    ]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(["reproduce", "gmm", "--out", str(tmp_path / "out")]) == 2
    err = capsys.readouterr().err
    assert 'pip install "./lab[report]"' in err and err.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_commands_parse_without_importing_what_they_run():
    code = "import sys; from meancap_lab.cli import parser; parser(); print('matplotlib' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
    assert parser().prog == "meancap"


def test_a_reader_that_has_seen_enough_is_no_error():
    command = [sys.executable, "-m", "meancap", "rules"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as program:
        program.stdout.close()
        assert program.stderr.read() == b"" and program.wait() == 0


def test_a_closed_output_is_no_error():
    """As `meancap rules >&-` starts it."""
    command = f"exec {sys.executable} -m meancap rules apg >&-"
    done = subprocess.run(["sh", "-c", command], stderr=subprocess.PIPE, text=True)
    assert done.returncode == 0 and done.stderr == ""


def test_a_link_to_nowhere_is_named(tmp_path, capsys):
    (tmp_path / "out").symlink_to(tmp_path / "gone")
    assert main(["generate", "--model", "fashion", "--out", str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    assert f"is a link to {tmp_path / 'gone'}, which does not exist" in said and said.count("\n") == 1


@pytest.mark.parametrize("command", [["demo"], ["pictures", "r"], ["reproduce", "fashion"]])
def test_a_file_in_the_place_of_a_folder_is_named(tmp_path, capsys, command):
    (tmp_path / "afile").write_text("mine")
    assert main([*command, "--out", str(tmp_path / "afile")]) == 2
    assert f"--out {tmp_path / 'afile'} is a file; give a folder" in capsys.readouterr().err


def test_python_m_meancap_is_the_same_program_also_without_numpy(tmp_path, capsys):
    """A stand-in that fails as a missing NumPy does."""
    (tmp_path / "numpy.py").write_text("raise ModuleNotFoundError(\"No module named 'numpy'\")\n")
    where = os.pathsep.join([str(tmp_path), *sys.path])
    command = [sys.executable, "-m", "meancap", "rules", "apg"]
    said = subprocess.run(command, env={**os.environ, "PYTHONPATH": where}, capture_output=True, text=True)
    assert said.returncode == 0 and said.stderr == ""
    assert main(["rules", "apg"]) == 0 and said.stdout == capsys.readouterr().out


def test_ctrl_c_while_torch_is_imported_is_one_line_in_a_command_alone(tmp_path):
    (tmp_path / "torch.py").write_text("raise KeyboardInterrupt\n")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    command, library = (
        subprocess.run([sys.executable, *how], capture_output=True, text=True, env=environment)
        for how in (["-m", "meancap_lab", "rules"], ["-c", "import meancap"])
    )
    assert (command.returncode, command.stderr) == (130, "meancap: stopped\n")
    assert library.stderr.endswith("KeyboardInterrupt\n")


_LOOP = """
import torch

class Network(torch.nn.Module):
    def forward(self, x, t, label):
        return label * torch.linspace(1, 2, x.shape[1]) - x

def subject():
    network, x = Network(), torch.randn(4, 8, generator=torch.Generator().manual_seed(0))
    both = torch.cat([torch.ones(4, 1), torch.zeros(4, 1)])

    def run(x=x):
        for i in range(6):
            c, u = network(torch.cat([x, x]), i / 6, both).chunk(2)
            x = x + (u + 5 * (c - u)) / 6

    return network, run
"""


def test_an_audit_of_a_loop_is_printed_and_written(tmp_path, monkeypatch, capsys):
    (tmp_path / "audited_loop.py").write_text(_LOOP)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert main(["audit", "audited_loop:subject", "--gamma", "1.05", "--out", "found"]) == 0
    out = capsys.readouterr().out
    assert "applied scale 5.0" in out and "formula: u + s (c - u)" in out and "samples above 1.05" in out
    assert (tmp_path / "found" / "audit.json").exists()
    assert main(["audit", "audited_loop:missing"]) == 2
    assert "my_model:subject" in capsys.readouterr().err
