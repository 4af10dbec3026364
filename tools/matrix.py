"""Tests of the core under other versions of Python and torch: `make matrix`, or --here in one of them.

Each pair gets an environment in out/matrix, with torch, pytest and what the tests import, and nothing else of
the extras. A pair without an interpreter on this machine, or whose torch pip could not install, is reported
as "not tried" with that reason. The table goes to out/matrix/matrix.md; CONTRIBUTING.md shows the last one.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
OUT = ROOT / "out" / "matrix"
# The oldest torch that we support, with the oldest Python; then the newest that pip finds for each.
PAIRS = (("3.11", "2.4.0"), ("3.12", ""), ("3.13", ""), ("3.14", ""))
TESTS = ("array", "caps", "diagnostics", "path", "rules", "sampling", "text")
TOOLS = ("hypothesis", "mpmath", "numpy", "pytest")


def here() -> int:
    """The tests of the core in this environment; the meancap that is installed, not the sources beside us."""
    names = [f"tests/test_{name}.py" for name in TESTS]
    command = [sys.executable, "-m", "pytest", "-q", "-m", "not slow", "-p", "no:cacheprovider", *names]
    return subprocess.run(command, cwd=ROOT, check=False).returncode


def run(python: str, torch: str) -> tuple[str, str]:
    """One pair: the version of torch that was used, and what came of it."""
    program = shutil.which(f"python{python}")
    if program is None or subprocess.run([program, "-V"], capture_output=True, check=False).returncode:
        return torch or "newest", "not tried: no interpreter here"
    home = OUT / f"{python}-{torch or 'newest'}"
    binaries = home / ("Scripts" if sys.platform == "win32" else "bin")
    subprocess.run([program, "-m", "venv", str(home)], check=True)
    wanted = [f"torch=={torch}" if torch else "torch", *TOOLS, str(ROOT)]
    pip = [str(binaries / "python"), "-m", "pip", "install", "-q", "--disable-pip-version-check", *wanted]
    done = subprocess.run(pip, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        return torch or "newest", f"not tried: pip failed ({lines[-1] if lines else 'no message'})"
    code = "import torch; print(torch.__version__)"
    told = subprocess.run([str(binaries / "python"), "-c", code], capture_output=True, text=True, check=True)
    tests = [str(binaries / "python"), str(Path(__file__)), "--here"]
    done = subprocess.run(tests, capture_output=True, text=True, check=False)
    (home / "tests.log").write_text(done.stdout + done.stderr, encoding="utf-8")
    return told.stdout.strip(), "passed" if done.returncode == 0 else f"failed: see {home.name}/tests.log"


def table(rows: list[tuple[str, str, str]]) -> str:
    """Python, torch and result, as Markdown."""
    return "\n".join(
        ["| Python | torch | core tests |", "|---|---|---|", *("| {} | {} | {} |".format(*r) for r in rows)]
    )


def main(argv: list[str] | None = None) -> int:
    """Runs the pairs, prints the table; fails if a pair failed."""
    parser = argparse.ArgumentParser(
        description="Tests of the core under other versions of Python and torch."
    )
    parser.add_argument("--here", action="store_true", help="only run the tests, in this environment")
    parser.add_argument("--python", action="append", help="only this version, such as 3.12; may be repeated")
    options = parser.parse_args(argv)
    if options.here:
        return here()
    OUT.mkdir(parents=True, exist_ok=True)
    rows = []
    for python, torch in PAIRS:
        if options.python is None or python in options.python:
            rows.append((python, *run(python, torch)))
            print(*rows[-1], sep="  ", flush=True)
    (OUT / "matrix.md").write_text(table(rows) + "\n", encoding="utf-8")
    return 1 if any(result.startswith("failed") for *_, result in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
