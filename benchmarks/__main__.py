"""Runs benchmarks, one process each, and writes one report over them.

python -m benchmarks                     everything: ten minutes on two idle cores
python -m benchmarks gmm step --quick    some of them, roughly
python -m benchmarks --report-only       the report again, from the records of the last run
python -m benchmarks --counters          counts what the tests compare with, and writes it down
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from benchmarks.records import FOLDER
from benchmarks.report import TITLES, write

HERE = Path(__file__).parent


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(TITLES)}; all by default")
    parser.add_argument("--quick", action="store_true", help="fewer rounds and cases; ratios are rougher")
    parser.add_argument("--report-only", action="store_true", help="measure nothing")
    parser.add_argument("--counters", action="store_true", help="record the counters, measure nothing")
    parser.add_argument("--records", type=Path, default=FOLDER, help="folder of the records")
    parser.add_argument("--to", type=Path, default=HERE, help="folder of the report")
    options = parser.parse_args(arguments)
    if unknown := set(options.names) - set(TITLES):
        parser.error(f"unknown benchmark {', '.join(sorted(unknown))}; known are {', '.join(TITLES)}")
    if options.counters:
        from benchmarks.counters import save

        print(f"recorded in {save().name}")
        return 0
    failed = [] if options.report_only else [n for n in options.names or TITLES if not run(n, options)]
    try:
        written = write(options.records, options.to)
    except OSError as error:
        parser.error(str(error))
    print("\n" + "\n".join(f"wrote {path}" for path in written))
    if failed:
        print(f"did not finish: {', '.join(failed)}", file=sys.stderr)
    return int(bool(failed))


def run(name: str, options: argparse.Namespace) -> bool:
    """One benchmark in a process of its own; a missed goal is in the report, and no failure."""
    print(f"\n== {name}", flush=True)
    out = options.records / f"{name}.jsonl"
    command = [sys.executable, "-m", f"benchmarks.{name}", "--out", str(out)]
    code = subprocess.run([*command, *["--quick"][: options.quick]], check=False).returncode
    return code in (0, 1) and out.is_file()


if __name__ == "__main__":
    sys.exit(main())
