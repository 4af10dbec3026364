"""Ctrl-C stops a benchmark at once: its processes do not go on with the cells they have."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

COMMAND = [sys.executable, "-m", "meancap", "bench", "lab", "--out"]


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").exists(), reason="not run: the system does not list its processes")
@pytest.mark.parametrize(
    ("to_all", "early"),
    [(True, False), (False, False), (True, True)],
    ids=["the terminal", "the parent alone", "the terminal, while the processes start"],
)
def test_an_interrupted_benchmark_ends_with_its_processes(tmp_path, to_all, early):
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "start_new_session": True}
    with subprocess.Popen([*COMMAND, str(tmp_path / "bench")], **pipes) as first:
        try:
            children = Path(f"/proc/{first.pid}/task/{first.pid}/children")

            def begun() -> bool:
                if early:
                    with suppress(OSError):  # one that has just ended has no maps
                        found = [Path(f"/proc/{pid}/maps") for pid in children.read_text().split()]
                        return any("libtorch_cpu" in one.read_text() for one in found)
                    return False
                return any(tmp_path.glob("bench/cells/*/*.json"))

            while first.poll() is None and not begun():
                time.sleep(0.01 if early else 0.05)
            started = time.monotonic()
            os.killpg(first.pid, signal.SIGINT) if to_all else first.send_signal(signal.SIGINT)
            said, _ = first.communicate(timeout=120)  # the pipe ends with the last process that holds it
            waited = time.monotonic() - started
        finally:
            with suppress(ProcessLookupError):
                os.killpg(first.pid, signal.SIGKILL)
    assert first.returncode == 130 and b"what was finished is kept" in said and b"Traceback" not in said
    assert waited < 8, "the cells under way, some ten seconds each, were waited for"
