"""One HTML file of a benchmark folder: all tables, sorted and filtered in the browser, without a server.

Tables go into the page as JSON, and the script writes them with `textContent`, so that no rule text can
become markup.
"""

from __future__ import annotations

import base64
import html
import json
import re
from pathlib import Path
from typing import Any

from ..files import write_whole
from ..runs.bench.readings import Readings, Table, csv_text, read_readings
from ..runs.bench.tables import flat, held_out, tables
from . import bench_figures, style

_TITLES = {
    "summary": "Error over that of a perfect model, geometric mean over the problems held out",
    "kinds": "The same by the error of the model",
    "named": "Every rule on every named problem, tuned there; intervals over blocks of noise",
    "aligned": "At equal alignment, found by bisection: error over that of fixed CFG",
    "effective": "Error over that of fixed CFG at the effective scale that the rule had",
}
_ASSETS = Path(__file__).parent / "assets"


def write_report(folder: str | Path) -> Path:
    """Tables, figures and leaderboard.html, from the readings of the folder."""
    root = Path(folder)
    found = {name: flat(table) for name, table in tables(read_readings(root)).items()}
    for name, table in found.items():
        write_whole(root / f"{name}.csv", csv_text(table, columns(table)).encode())
    for draw in (bench_figures.ranking, bench_figures.fronts):
        style.save_figure(draw, root, draw.__name__)
    return write_whole(root / "leaderboard.html", leaderboard(root).encode())


def leaderboard(folder: Path) -> str:
    """The page, with everything it needs inside."""
    readings = read_readings(folder)
    found = {name: _columnar(_TITLES[name], flat(table)) for name, table in tables(readings).items()}
    parts = {
        "SETTINGS": html.escape(settings(readings)),
        "FIGURES": "".join(_picture(folder, name) for name in ("ranking", "fronts")),
        "STYLE": (_ASSETS / "leaderboard.css").read_text(encoding="utf-8"),
        "SCRIPT": (_ASSETS / "leaderboard.js").read_text(encoding="utf-8"),
        "DATA": json.dumps(found, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c"),
    }
    template = (_ASSETS / "leaderboard.html").read_text(encoding="utf-8")
    return re.sub(r"\{\{([A-Z]+)\}\}", lambda match: parts[match.group(1)], template)


def settings(readings: Readings) -> str:
    """The run in a sentence or two."""
    c = readings.config
    return (
        f"{len(readings.families)} rules, each tried at {c.spread + c.refined} settings of its knobs on "
        f"tuning noise and scored on other noise; {len(held_out(readings))} drawn problems held out, "
        f"{sum(n.startswith('drawn-') for n in readings.problems) - len(held_out(readings))} to choose "
        f"settings on; blocks of {c.points} samples, {c.blocks} to score drawn problems and "
        f"{c.named_blocks} to score named ones; {c.steps} Euler steps, and {c.steps} midpoint steps as the "
        f"converged solver; seed {c.seed}. Intervals: 95 %, Student's, over problems or over blocks."
    )


def columns(table: Table) -> list[str]:
    """All keys, in the order in which they first appear."""
    return list(dict.fromkeys(key for row in table for key in row))


def _columnar(title: str, rows: Table) -> dict[str, Any]:
    """Keys once, not in every row: a third of the size."""
    keys = columns(rows)
    return {"title": title, "keys": keys, "rows": [[row.get(key) for key in keys] for row in rows]}


def _picture(folder: Path, name: str) -> str:
    path = folder / "figures" / f"{name}.png"
    if not path.is_file():
        return ""
    content = base64.b64encode(path.read_bytes()).decode()
    return f'<img alt="{name.replace("_", " ")}" src="data:image/png;base64,{content}">'
