"""What the studies share: the command line, cells that survive a stop, tables, figures and the page.

    OUT/study.json        what was asked for, the seeds, the versions
    OUT/cells/NAME.npz    what one cell measured; a cell whose file exists is not computed again
    OUT/readings.csv      the table, and OUT/figures/NAME.png

The options of a study are the fields of a frozen dataclass, each made by `option`. A page is the README.md of
a study's folder: what stands between `<!-- name -->` and `<!-- /name -->` is computed from the readings.csv
beside it. To publish a study, copy readings.csv and the figures there and give `--page`.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import json
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from meancap.files import csv_text, write_whole
from meancap_lab.metrics.score import Estimate
from meancap_lab.report.style import look, save_png
from meancap_lab.runs.config import versions

T = TypeVar("T")
Row = dict[str, Any]


def interval_columns(estimate: Estimate, name: str) -> Row:
    """A value and the ends of its interval, as columns of a table; nan if no interval is known."""
    low, high = estimate.interval() or (math.nan, math.nan)
    return {name: estimate.value, f"{name} from": low, f"{name} to": high}


def option(default: Any, about: str) -> Any:
    """A field of a study's dataclass, which is an option of its command as well."""
    return dataclasses.field(default=default, metadata={"about": about})


def command(doc: str, example: str, full: Any) -> argparse.ArgumentParser:
    """The parser of a study: --out, --quick, --page, --threads, and an option for each field of `full`."""
    p = argparse.ArgumentParser(
        prog=f"python -m {example.split()[2]}",
        description=doc,
        epilog=f"example:\n  {example}\n\nThe same command in the same folder resumes after a stop.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    p.add_argument("--out", type=Path, metavar="DIR", help="folder of cells, readings.csv and figures")
    p.add_argument("--quick", action="store_true", help="few samples: the whole way in a minute or two")
    p.add_argument("--page", action="store_true", help="write the study's README.md from its readings.csv")
    p.add_argument("--threads", type=int, default=1, help="CPU threads (1)")
    if full is not None:
        add_options(p, full)
    return p


def add_options(p: argparse.ArgumentParser, full: Any) -> None:
    """An option for each field of `full` that `option` made."""
    for f in dataclasses.fields(full):
        if "about" not in f.metadata:
            continue
        value = getattr(full, f.name)
        reader = _read_list(type(value[0])) if isinstance(value, tuple) else type(value)
        name = f"--{f.name.replace('_', '-')}"
        p.add_argument(name, type=reader, metavar="V", help=f"{f.metadata['about']} ({value})")


def with_given(args: argparse.Namespace, full: T) -> T:
    """`full` with the options that were given."""
    names = [f.name for f in dataclasses.fields(full) if "about" in f.metadata]
    given = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
    return dataclasses.replace(full, **given)


def chosen(args: argparse.Namespace, full: T, quick: T) -> T:
    """The options as given, over those of the full or of the quick study; sets the threads."""
    if args.out is None:
        raise ValueError("give --out DIR, or --page")
    torch.set_num_threads(args.threads)
    return with_given(args, quick if args.quick else full)


def run(
    argv: Sequence[str] | None, doc: str, example: str, sizes: tuple[T, T],
    readings: Callable[[T, Cells], Iterable[Row]], parts: Callable[[Path], Mapping[str, str]],
    drawings: Mapping[str, Callable[[Cells], Any]],
) -> None:  # fmt: skip
    """The command of a study; `sizes` is the full and the quick one."""
    args = command(doc, example, sizes[0]).parse_args(argv)
    if args.page:
        folder = Path(__file__).parent / example.split()[2].partition(".")[2]
        return write_page(folder, parts(folder))
    study = chosen(args, *sizes)
    cells = Cells(args.out, study)
    write_csv(args.out / "readings.csv", readings(study, cells))
    return write_figures(args.out, {name: partial(draw, cells) for name, draw in drawings.items()})


def start(main: Callable[[Sequence[str] | None], None]) -> None:
    """Runs a study's `main`; bad input prints one sentence and exits with code 1."""
    try:
        main(None)
    except (ValueError, OSError, ImportError) as error:
        raise SystemExit(f"{error}") from None
    except KeyboardInterrupt:
        raise SystemExit("stopped; rerun the command to resume") from None


def need_same(folder: Path, before: Row, now: Row, free: Sequence[str]) -> None:
    """Raises an error if a folder was begun with other options; those in `free` may change."""
    changed = [k for k in {**before, **now} if k not in free and before.get(k) != now.get(k)]
    if changed:
        words = "; ".join(f"{k} was {before.get(k)}, now {now.get(k)}" for k in changed)
        raise ValueError(f"{folder} was begun with other options: {words}; give another folder")


class Cells:
    """The cells of a study in a folder."""

    def __init__(self, out: Path, asked: Any, free: Sequence[str] = ("seeds",), **more: Any) -> None:
        """Begins the folder or resumes it; only the options in `free` may differ from those before."""
        self.folder, self.asked = out, json.loads(json.dumps(dataclasses.asdict(asked) | more))
        path = out / "study.json"
        if path.is_file():
            need_same(out, json.loads(path.read_text(encoding="utf-8"))["asked"], self.asked, free)
        (out / "cells").mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps({"asked": self.asked, "versions": versions()}, indent=1) + "\n")

    def __contains__(self, name: str) -> bool:
        return self._path(name).is_file()

    def make(self, name: str, work: Callable[[], Mapping[str, Tensor]]) -> dict[str, Tensor]:
        """A cell from its file, or from `work`."""
        if name not in self:
            buffer = BytesIO()
            np.savez(buffer, **{key: value.cpu().numpy() for key, value in work().items()})
            write_whole(self._path(name), buffer.getvalue())
            print(name, file=sys.stderr, flush=True)
        return self.load(name)

    def load(self, name: str) -> dict[str, Tensor]:
        with np.load(self._path(name), allow_pickle=False) as archive:
            return {key: torch.from_numpy(archive[key]) for key in archive.files}

    def _path(self, name: str) -> Path:
        plain = "".join(c if c.isalnum() or c in ".|" else "-" for c in name.lower()).replace("|", "cap")
        return self.folder / "cells" / f"{'-'.join(part for part in plain.split('-') if part)}.npz"


def write_csv(path: Path, rows: Iterable[Row]) -> Path:
    """Rows with four decimals, one column for each key; the file appears whole or not at all."""
    rows = [{k: round(v, 4) if isinstance(v, float) else v for k, v in row.items()} for row in rows]
    print(f"wrote {path}", file=sys.stderr)
    return write_whole(path, csv_text(rows))


def read_csv(path: Path) -> list[dict[str, str]]:
    """The rows of a table, as text."""
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def write_figures(out: Path, drawings: Mapping[str, Callable[[], Any]]) -> None:
    """Each drawing as figures/NAME.png."""
    if drawings:
        (out / "figures").mkdir(exist_ok=True)
    with look():
        for name, draw in drawings.items():
            save_png(draw(), out / "figures" / f"{name}.png", dots=130)


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def with_parts(text: str, parts: Mapping[str, str]) -> str:
    """A page whose parts between <!-- name --> and <!-- /name --> are replaced, each exactly once."""
    for name, content in parts.items():
        start, end = f"<!-- {name} -->\n", f"<!-- /{name} -->"
        if (text.count(start), text.count(end)) != (1, 1):
            raise ValueError(f"the page needs one place for {name!r}; it has {text.count(start)}")
        head, _, old = text.partition(start)
        text = f"{head}{start}{content.rstrip()}\n{end}{old.partition(end)[2]}"
    return text


def write_page(folder: Path, parts: Mapping[str, str]) -> None:
    """Replaces the marked parts of a study's README.md."""
    path = folder / "README.md"
    write_whole(path, with_parts(path.read_text(encoding="utf-8"), parts))


def interval(row: Mapping[str, str], name: str, sign: str = "") -> str:
    """A value of a table with its interval, whose columns are `NAME from` and `NAME to`."""
    value, low, high = (float(row[f"{name}{end}"]) for end in ("", " from", " to"))
    return f"{value:{sign}.2f} [{low:{sign}.2f}, {high:{sign}.2f}]"


def _read_list(kind: type) -> Callable[[str], tuple[Any, ...]]:
    return lambda text: tuple(kind(part) for part in text.split(","))
