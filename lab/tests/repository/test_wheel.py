"""The wheels alone, in a new environment: what a user gets without the repository. It installs torch."""

import os
import subprocess
import sys

import pytest

from pages import ROOT, blocks

# One command for each extra, in one environment that grows from the library: torch is installed once.
COMMANDS = {
    "meancap[lab]": "rules apg",
    "meancap[fast]": "rules pmc",
    "meancap-lab[report]": "reproduce gmm --samples 1000 --out gmm",
    "meancap-lab[images]": "generate --model fashion --rule CFG(4) --per-class 1 --steps 2 --out made",
    "meancap-lab[metrics]": "score made --protocol fashion",
    "meancap[diffusers]": "pipelines",
}


def clean(tmp_path):
    """An environment with nothing in it but pip, outside the repository, and without our paths."""
    home = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
    python = home / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
    return str(python), {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}


def build_wheels(out):
    pytest.importorskip("build")
    command = [sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", str(out)]
    for folder in (ROOT, ROOT / "lab"):
        subprocess.run([*command, str(folder)], check=True, capture_output=True)


def do(command, tmp_path, env):
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
    return done.stdout


def readme(extra):
    """The README's Python, as one script; the part that draws needs the `images` extra."""
    parts = [block.text for block in blocks(ROOT / "README.md") if block.kind == "python"]
    if not extra:
        parts[0] = "from meancap import CFG, Cap, Record, noise, sample, uniform"
    return "\n".join(parts)


@pytest.mark.slow
def test_the_wheels_alone_run_the_readme_and_a_command_of_each_extra(tmp_path):
    build_wheels(tmp_path / "dist")
    python, env = clean(tmp_path)
    constraints = ROOT / "constraints.txt"
    torch = next(
        line for line in constraints.read_text(encoding="utf-8").split("\n") if line.startswith("torch==")
    )
    pip = [python, "-m", "pip", "install", "-q", "--disable-pip-version-check", "-c", str(constraints)]
    do([*pip, torch], tmp_path, env)
    pip += ["--find-links", str(tmp_path / "dist")]
    do([*pip, "meancap"], tmp_path, env)
    do([python, "-c", readme("")], tmp_path, env)
    without = subprocess.run([python, "-m", "meancap"], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert without.returncode == 2 and 'pip install "meancap[lab]"' in without.stderr
    installed = do([python, "-m", "pip", "list", "--format=freeze"], tmp_path, env)
    assert "numpy==" not in installed and "pillow==" not in installed.lower()
    for extra, command in COMMANDS.items():
        do([*pip, extra], tmp_path, env)
        assert do([python, "-m", "meancap", *command.split()], tmp_path, env)
        if "images" in extra:
            do([python, "-c", readme(extra)], tmp_path, env)
    assert (tmp_path / "garments.png").stat().st_size > 1000
