"""Killed at any moment, a run loses at most the block in hand, and ends in the same bytes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from meancap_lab.models.checkpoint import save_sit
from small_sit import pixels, random_sit


@pytest.mark.parametrize("kills", [5, pytest.param(50, marks=pytest.mark.slow)])
def test_kills_at_random_moments_change_nothing(tmp_path, kills):
    if not hasattr(os, "fork"):
        pytest.skip("needs fork")
    model = save_sit(tmp_path / "tiny.safetensors", random_sit(spread=0.4), pixels())
    script = Path(__file__).with_name("killing.py")
    found = subprocess.run(
        [sys.executable, str(script), str(model), str(tmp_path), str(kills), "7"],
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
        timeout=600,
    )
    assert found.returncode == 0, found.stderr[-2000:]
    assert json.loads(found.stdout)["kills"] == kills
