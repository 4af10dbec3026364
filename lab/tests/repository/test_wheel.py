"""The wheel alone, in a new environment: what a user gets without the repository. It installs torch."""

import os
import subprocess
import sys

import pytest

from pages import ROOT, blocks

# One command for each extra, in one environment that grows from the core: torch is installed once.
COMMANDS = {
    "": "rules apg",
    "fast": "rules pmc",
    "report": "reproduce gmm --samples 1000 --out gmm",
    "images": "generate --model fashion --rule CFG(4) --per-class 1 --steps 2 --out made",
    "metrics": "score made --protocol fashion",
    "diffusers": "pipelines",
}


def clean(tmp_path):
    """An environment with nothing in it but pip, outside the repository, and without our paths."""
    home = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
    python = home / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
    return str(python), {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}


def wheel(tmp_path):
    pytest.importorskip("build")
    command = [
        sys.executable,
        "-m",
        "build",
        "--no-isolation",
        "--wheel",
        "--outdir",
        str(tmp_path),
        str(ROOT),
    ]
    subprocess.run(command, check=True, capture_output=True)
    return next(tmp_path.glob("*.whl"))


def do(command, tmp_path, env):
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
    return done.stdout


def readme(extra):
    """The README's Python, as one script; the part that draws needs the `images` extra."""
    parts = [block.text for block in blocks(ROOT / "README.md") if block.kind == "python"]
    if extra == "":
        parts[0] = "from meancap import CFG, Cap, Record, noise, sample, uniform"
    return "\n".join(parts)


@pytest.mark.slow
def test_the_wheel_alone_runs_the_readme_and_a_command_of_each_extra(tmp_path):
    file, (python, env) = wheel(tmp_path), clean(tmp_path)
    constraints = ROOT / "constraints.txt"
    torch = next(
        line for line in constraints.read_text(encoding="utf-8").split("\n") if line.startswith("torch==")
    )
    pip = [python, "-m", "pip", "install", "-q", "--disable-pip-version-check", "-c", str(constraints)]
    do([*pip, torch], tmp_path, env)
    for extra, command in COMMANDS.items():
        do([*pip, f"meancap[{extra}] @ {file.as_uri()}" if extra else str(file)], tmp_path, env)
        words = command.split()
        assert do([python, "-m", "meancap", *words], tmp_path, env)
        if extra in ("", "images"):
            do([python, "-c", readme(extra)], tmp_path, env)
        if extra == "":
            said = do([python, "-m", "pip", "list", "--format=freeze"], tmp_path, env)
            assert "numpy==" not in said and "pillow==" not in said.lower()
    assert (tmp_path / "garments.png").stat().st_size > 1000
