"""The documentation's table is the code's; the examples run, a missing diffusers is told."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from meancap.adapters.diffusers import LAYOUTS
from meancap.adapters.diffusers.listing import markdown, text
from meancap.cli import main

ROOT = Path(__file__).parents[3]
EXAMPLES = sorted((ROOT / "examples" / "diffusers").glob("*.py"))


def test_the_table_in_the_documentation_is_the_one_in_the_code() -> None:
    page = (ROOT / "docs" / "diffusers.md").read_text(encoding="utf-8")
    found = page.split("<!-- pipelines -->\n")[1].split("\n<!-- /pipelines -->")[0]
    assert found == markdown(), "paste the output of `meancap pipelines --markdown` between the marks"


def test_the_command_prints_every_pipeline(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pipelines"]) == 0
    shown = capsys.readouterr().out
    assert shown == text() + "\n"
    assert all(f"\n{name} " in shown for name in LAYOUTS)
    assert main(["pipelines", "--markdown"]) == 0
    assert capsys.readouterr().out == markdown() + "\n"


@pytest.mark.parametrize("script", [p for p in EXAMPLES if p.stem != "tiny"], ids=lambda p: p.stem)
def test_an_example_runs_with_tiny_weights(
    script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [script.name, "--tiny", "--steps", "3", "--out", str(tmp_path / "out")])
    monkeypatch.syspath_prepend(str(script.parent))
    runpy.run_path(str(script), run_name="__main__")
    made = {p.name for p in (tmp_path / "out").iterdir()}
    assert {"guidance.json", "guidance.png"} < made and made & {"image.png", "video.gif"}
    record = json.loads((tmp_path / "out" / "guidance.json").read_text())
    assert record["summary"] == capsys.readouterr().out.strip()
    assert record["about"]["rule"] == "Cap(1.15)" and len(record["rows"]) == 3


def test_without_diffusers_one_sentence_gives_the_command() -> None:
    code = "import sys; sys.modules['diffusers'] = None; import meancap.adapters.diffusers"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.strip().endswith(
        'ImportError: this adapter needs diffusers: pip install "meancap[diffusers]"'
    )


def test_the_adapter_is_imported_without_importing_diffusers() -> None:
    """Listing pipelines should not take the seconds that the host takes to load."""
    code = "import sys, meancap.adapters.diffusers; sys.exit('diffusers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
