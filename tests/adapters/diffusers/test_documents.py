"""The documentation's table is the code's; the examples run, a missing diffusers is told."""

import json
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("model", ["sd35", "flux", "qwen", "wan"])
def test_the_example_runs_with_tiny_weights(model, tmp_path, monkeypatch, capsys):
    script, out = ROOT / "examples" / "diffusers" / "capped.py", tmp_path / "out"
    monkeypatch.setattr(sys, "argv", [script.name, model, "--tiny", "--steps", "3", "--out", str(out)])
    monkeypatch.syspath_prepend(str(script.parent))
    runpy.run_path(str(script), run_name="__main__")
    made = {p.name for p in out.iterdir()}
    assert {"guidance.json", "guidance.png"} < made and made & {"image.png", "video.gif"}
    record = json.loads((out / "guidance.json").read_text())
    summary, where = capsys.readouterr().out.strip().splitlines()
    assert record["summary"] == summary and where.startswith(str(out)), "and where the picture is"
    assert record["about"]["rule"] == ("CapDisplacement(1.15)" if model == "sd35" else "Cap(1.1)")
    assert len(record["rows"]) == 3


def test_the_papers_gamma_for_sd35_stands_with_its_own_form_only():
    """CapDisplacement(1.15) is the paper's; Cap(1.15) is another thing, and no page may offer it."""
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "examples").rglob("*.py")]
    pages += (ROOT / "src" / "meancap" / "adapters").rglob("*.py")
    telling = {"diffusers.md"}  # where the two are told apart
    for page in pages:
        if page.name not in telling:
            assert not re.search(r"\bCap\(1\.15\)", page.read_text(encoding="utf-8")), page


def test_without_diffusers_one_sentence_gives_the_command():
    code = "import sys; sys.modules['diffusers'] = None; import meancap.adapters.diffusers"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.strip().endswith(
        'ImportError: this needs diffusers; run pip install ".[diffusers]" in your clone of meancap'
    )


def test_the_adapter_is_imported_without_importing_diffusers():
    """Listing pipelines should not take the seconds that the host takes to load."""
    code = "import sys, meancap.adapters.diffusers; sys.exit('diffusers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
