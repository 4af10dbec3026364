"""Runs every benchmark, one process each: `python -m benchmarks [NAME ...]`."""

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
SHARED = {"__init__", "__main__", "timing"}


def main() -> int:
    known = sorted(p.stem for p in HERE.glob("*.py") if p.stem not in SHARED)
    asked = sys.argv[1:] or known
    if unknown := set(asked) - set(known):
        print(
            f"unknown benchmark {', '.join(sorted(unknown))}; known are {', '.join(known)}", file=sys.stderr
        )
        return 2
    worst = 0
    for name in asked:
        print(f"\n== {name}", flush=True)
        worst = max(
            worst, subprocess.run([sys.executable, "-m", f"benchmarks.{name}"], check=False).returncode
        )
    return worst


if __name__ == "__main__":
    sys.exit(main())
