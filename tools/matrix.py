"""Tests of the library under other versions of Python and torch: `make matrix`, or --here in one of them.

Each pair gets an environment in out/matrix with torch, pytest and hypothesis, then the built wheel of the
library: its tests need nothing else. Then the laboratory's wheel joins, after the library and before it, and
its command must run. A pair without an interpreter on this machine, or whose torch pip could not install, is
reported as "not tried" with that reason. The table goes to out/matrix/matrix.md; CONTRIBUTING.md shows the
last one.
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
TOOLS = ("hypothesis", "pytest")
ORDERS = (("meancap", "meancap-lab"), ("meancap-lab", "meancap"))


def here() -> int:
    """The tests of the library in this environment: of the meancap that is installed, not of the sources."""
    command = [sys.executable, "-m", "pytest", "-q", "-m", "not slow", "-p", "no:cacheprovider", "tests"]
    return subprocess.run(command, cwd=ROOT, check=False).returncode


def build() -> None:
    """Both wheels, into out/matrix/dist."""
    shutil.rmtree(OUT / "dist", ignore_errors=True)
    for folder in (ROOT, ROOT / "lab"):
        command = [sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", str(OUT / "dist")]
        subprocess.run([*command, str(folder)], check=True, stdout=subprocess.DEVNULL)


def run(python: str, torch: str) -> tuple[str, str]:
    """One pair: the version of torch that was used, and what came of it."""
    program = shutil.which(f"python{python}")
    if program is None or subprocess.run([program, "-V"], capture_output=True, check=False).returncode:
        return torch or "newest", "not tried: no interpreter here"
    home = OUT / f"{python}-{torch or 'newest'}"
    own = str(home / ("Scripts" if sys.platform == "win32" else "bin") / "python")
    subprocess.run([program, "-m", "venv", str(home)], check=True)
    pip = [own, "-m", "pip", "--disable-pip-version-check", "-q"]
    done = _say([*pip, "install", f"torch=={torch}" if torch else "torch", *TOOLS])
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        return torch or "newest", f"not tried: pip failed ({lines[-1] if lines else 'no message'})"
    version = _say([own, "-c", "import torch; print(torch.__version__)"]).stdout.strip()
    wheels = [
        *pip,
        "install",
        "--no-index",
        "--find-links",
        str(OUT / "dist"),
        "--force-reinstall",
        "--no-deps",
    ]
    remove = [*pip, "uninstall", "-y", "meancap", "meancap-lab"]
    failed, log = [], []

    def need(what: str, command: list[str], code: int = 0) -> None:
        done = _say(command)
        log.append(f"{what}\n{done.stdout}{done.stderr}")
        failed.extend([what] if done.returncode != code else [])

    for one in (remove, [*wheels, "meancap"]):
        _say(one)
    need("tests", [own, str(Path(__file__)), "--here"])
    need("no command without the laboratory", [own, "-m", "meancap"], 2)
    for order in ORDERS:
        for one in (remove, *([*wheels, name] for name in order)):
            _say(one)
        need(" then ".join(order), [own, "-m", "meancap", "rules"])
    (home / "tests.log").write_text("\n".join(log), encoding="utf-8")
    return version, f"failed: {', '.join(failed)}; see {home.name}/tests.log" if failed else "passed"


def _say(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=OUT, capture_output=True, text=True, check=False)


def table(rows: list[tuple[str, str, str]]) -> str:
    """Python, torch and result, as Markdown."""
    return "\n".join(
        [
            "| Python | torch | library tests |",
            "|---|---|---|",
            *("| {} | {} | {} |".format(*r) for r in rows),
        ]
    )


def main(argv: list[str] | None = None) -> int:
    """Runs the pairs, prints the table; fails if a pair failed."""
    parser = argparse.ArgumentParser(
        description="Tests of the library under other versions of Python and torch."
    )
    parser.add_argument("--here", action="store_true", help="only run the tests, in this environment")
    parser.add_argument("--python", action="append", help="only this version, such as 3.12; may be repeated")
    options = parser.parse_args(argv)
    if options.here:
        return here()
    OUT.mkdir(parents=True, exist_ok=True)
    build()
    rows = []
    for python, torch in PAIRS:
        if options.python is None or python in options.python:
            rows.append((python, *run(python, torch)))
            print(*rows[-1], sep="  ", flush=True)
    (OUT / "matrix.md").write_text(table(rows) + "\n", encoding="utf-8")
    return 1 if any(result.startswith("failed") for *_, result in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
