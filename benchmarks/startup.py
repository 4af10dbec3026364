"""What starting costs: `import meancap` and `meancap --help` beside `import torch`, in fresh processes.

python -m benchmarks.startup
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
from collections.abc import Iterator

from benchmarks.records import Note, Reading, Row, command, progress
from benchmarks.timing import ratio

PROGRAMS = {
    "import torch": ["-c", "import torch"],
    "import meancap": ["-c", "import meancap"],
    "meancap --help": ["-m", "meancap", "--help"],
}
MODULES = "import sys, meancap; print(sum(name.partition('.')[0] == 'meancap' for name in sys.modules))"


def seconds(arguments: list[str]) -> float:
    """CPU seconds of one fresh process."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *arguments], check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def measure(options: argparse.Namespace) -> Iterator[Row]:
    rounds = 3 if options.quick else 7
    yield Note("startup", f"{rounds} fresh processes each, in turns.")
    progress("fresh processes")
    found: dict[str, list[float]] = {name: [] for name in PROGRAMS}
    for _ in range(rounds):
        for name, arguments in PROGRAMS.items():
            found[name].append(seconds(arguments))
    for name in PROGRAMS:
        yield Reading("startup", name, "CPU s", min(found[name]))
    yield Reading(
        "startup", "import meancap", "/ import torch", **ratio(found, "import meancap", "import torch")
    )
    loaded = subprocess.run(
        [sys.executable, "-c", MODULES], check=True, capture_output=True, text=True
    ).stdout
    yield Reading("startup", "import meancap", "modules of the package", float(loaded), goal=35, at_most=True)


def main() -> int:
    return command("startup", __doc__, measure)


if __name__ == "__main__":
    sys.exit(main())
