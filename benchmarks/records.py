"""What a benchmark hands over: frozen rows, kept as JSON lines, from which the report is made.

Reading  one number: what it is of, its spread over the rounds, and the goal that was set for it
Curve    a cost against batch, size, steps or components
Note     a sentence that belongs to the numbers
Setting  versions, processor, threads and load of one run
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

FOLDER = Path("out") / "bench"
PACKAGES = (
    "torch", "numpy", "numba", "scipy", "diffusers", "flow_matching", "torchdiffeq", "torchmetrics",
)  # fmt: skip


@dataclass(frozen=True)
class Reading:
    """`value` is the median over the rounds where `low` and `high` tell their range."""

    bench: str
    case: str
    what: str
    value: float
    unit: str = ""
    low: float | None = None
    high: float | None = None
    goal: float | None = None
    at_most: bool = False  # otherwise the goal is a least value

    @property
    def met(self) -> bool | None:
        if self.goal is None:
            return None
        return self.value <= self.goal if self.at_most else self.value >= self.goal


@dataclass(frozen=True)
class Curve:
    bench: str
    title: str
    line: str
    axis: str
    unit: str
    at: tuple[float, ...]
    value: tuple[float, ...]


@dataclass(frozen=True)
class Note:
    bench: str
    text: str


@dataclass(frozen=True)
class Setting:
    bench: str
    quick: bool
    threads: int
    load: float
    processor: str
    packages: dict[str, str] = field(default_factory=dict)


Row = Reading | Curve | Note | Setting
KINDS: dict[str, type[Row]] = {kind.__name__: kind for kind in (Reading, Curve, Note, Setting)}


def write(path: Path, records: Iterable[Row]) -> Path:
    """One JSON object per line; the file appears whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps({"kind": type(one).__name__} | asdict(one)) for one in records]
    return whole(path, "\n".join(lines) + "\n")


def whole(path: Path, text: str) -> Path:
    """Writes a text file under another name first."""
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False, encoding="utf-8") as part:
        part.write(text)
    made = Path(part.name)
    made.chmod(0o644)  # a temporary file is for its owner alone
    return made.replace(path)


def read(path: Path) -> list[Row]:
    found: list[Row] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        entry = json.loads(line)
        kind = KINDS[entry.pop("kind")]
        found.append(kind(**{k: tuple(v) if isinstance(v, list) else v for k, v in entry.items()}))
    return found


def setting(bench: str, quick: bool) -> Setting:
    """Where and with what this process measures; neither the name of the machine nor a path of it."""
    packages = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            packages[name] = version(name)
        except PackageNotFoundError:
            packages[name] = "absent"
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else float("nan")
    return Setting(bench, quick, torch.get_num_threads(), round(load, 2), processor(), packages)


def processor() -> str:
    """The processor's own name for itself, its vector units and the number of cores in use."""
    name, info = platform.machine(), Path("/proc/cpuinfo")
    if info.exists():
        lines = (line.partition(":") for line in info.read_text().splitlines())
        fields = {key.strip(): value.strip() for key, _, value in lines}
        family, model = fields.get("cpu family", "?"), fields.get("model", "?")
        name = f"{fields.get('model name', name)} (family {family}, model {model})"
    return f"{name}, {torch.backends.cpu.get_cpu_capability()}, {os.cpu_count()} cores"


def shown(one: Reading) -> str:
    """The number with its spread, to three digits."""
    spread = "" if one.low is None or one.high is None else f" ({number(one.low)}–{number(one.high)})"
    return f"{number(one.value)}{spread}{' ' + one.unit if one.unit else ''}"


def number(v: float) -> str:
    if v != v or abs(v) in (0.0, float("inf")):
        return f"{v:g}"
    return f"{v:,.0f}" if abs(v) >= 1000 else f"{v:.3g}"


Measure = Callable[[argparse.Namespace], Iterator[Row]]


def command(
    bench: str, doc: str, measure: Measure, options: Sequence[tuple[str, dict[str, Any]]] = ()
) -> int:
    """A benchmark as a command: prints its readings as they come; exit code 1 where a goal is missed."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer rounds and cases; ratios are rougher")
    parser.add_argument("--out", type=Path, help="write the records to this file, as JSON lines")
    for name, how in options:
        parser.add_argument(name, **how)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    found: list[Row] = [setting(bench, chosen.quick)]
    for one in measure(chosen):
        found.append(one)
        if isinstance(one, Reading):
            goal = "" if one.goal is None else f"   goal {'<=' if one.at_most else '>='} {one.goal:g}"
            verdict = "" if one.met is None else f": {'met' if one.met else 'MISSED'}"
            print(f"{one.case:32}  {one.what:28}  {shown(one)}{goal}{verdict}", flush=True)
        elif isinstance(one, Note):
            print(one.text, flush=True)
    if chosen.out:
        write(chosen.out, found)
    return int(any(isinstance(one, Reading) and one.met is False for one in found))


def progress(text: str) -> None:
    print(f"  … {text}", file=sys.stderr, flush=True)
