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
from ..runs.bench.table_files import read_csv
from ..runs.bench.tables import columns
from ..runs.ledger import Ledger
from . import bench_figures, style
from .bench_findings import Finding, findings

_TABLES = {
    "summary": "Over all problems: SW2 over that of a perfect model, geometric mean",
    "equal_scale": "At equal nominal scale; differences from fixed CFG are paired",
    "equal_alignment": "At equal alignment, interpolated along each rule's own sweep",
    "tuned": "Every rule at its own best scale",
    "open_loop": "Adaptive rules against their own average, and fixed CFG of the same mean scale",
    "calibration": "Anchored and calibrated caps against Γ = 1.1",
    "results": "Every reading",
}
_ASSETS = Path(__file__).parent / "assets"


def write_report(folder: str | Path) -> Path:
    """Figures and leaderboard.html beside the tables of the folder."""
    root = Path(folder)
    for draw in (bench_figures.scale_error, bench_figures.fronts):
        style.save_figure(draw, root, draw.__name__)
    path = root / "leaderboard.html"
    write_whole(path, leaderboard(root).encode())
    return path


def leaderboard(folder: Path) -> str:
    """The page, with everything it needs inside."""
    run = Ledger(folder, "bench").read()
    if run is None:
        raise ValueError(f"{folder} holds no benchmark; run `meancap bench lab --out {folder}` first")
    tables = {name: _columnar(title, read_csv(folder / f"{name}.csv")) for name, title in _TABLES.items()}
    config = run["config"]
    settings = (
        f"{len(run['problems'])} problems, {len(run['families'])} rules, {config['blocks']} × "
        f"{config['points']} samples, {config['steps']} Euler steps, seed {config['seed']}. Intervals: 95 %, "
        "bootstrap over blocks of shared noise."
    )
    sentences = findings(folder)
    parts = {
        "SETTINGS": html.escape(settings),
        "TOP": _top_ten(read_csv(folder / "summary.csv")),
        "WINS": _sentences(sentences, "wins", "Where it, or calibration, wins"),
        "LOSES": _sentences(sentences, "loses", "Where it loses"),
        "EVEN": _sentences(sentences, "even", "Where neither can be said"),
        "FIGURES": "".join(_picture(folder, name) for name in ("scale_error", "fronts")),
        "STYLE": (_ASSETS / "leaderboard.css").read_text(encoding="utf-8"),
        "SCRIPT": (_ASSETS / "leaderboard.js").read_text(encoding="utf-8"),
        "DATA": json.dumps(tables, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c"),
    }
    template = (_ASSETS / "leaderboard.html").read_text(encoding="utf-8")
    return re.sub(r"\{\{([A-Z]+)\}\}", lambda match: parts[match.group(1)], template)


def _columnar(title: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Keys once, not in every row: a third of the size."""
    keys = columns(rows)
    return {"title": title, "keys": keys, "rows": [[row.get(key) for key in keys] for row in rows]}


def _top_ten(rows: list[dict[str, Any]]) -> str:
    """The first ten of the summary by their worst scale, each with its interval, below the references."""
    known = [row for row in rows if row["kind"] == "all" and isinstance(row.get("worst"), float)]
    known.sort(key=lambda row: (row["group"] != "reference", row["worst"]))
    chosen = known[: 10 + sum(row["group"] == "reference" for row in known)]

    def number(row: dict[str, Any], name: str) -> str:
        low, high = row.get(f"{name}_low"), row.get(f"{name}_high")
        band = f" <small>[{low:.3g}, {high:.3g}]</small>" if isinstance(low, float) else ""
        return f'<td class="number">{row[name]:.3g}{band}</td>'

    lines = "".join(
        f"<tr><td>{html.escape(row['family'])}</td><td>{html.escape(row['group'])}</td>"
        f"{number(row, 'best')}{number(row, 'worst')}</tr>"
        for row in chosen
    )
    head = "<th>rule</th><th>kind</th><th>best scale ↓</th><th>worst scale ↓</th>"
    return f"<table><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table>"


def _sentences(sentences: list[Finding], verdict: str, title: str) -> str:
    items = []
    for one in sentences:
        if one.verdict == verdict:
            text = re.sub(r"\*\*(.+?)\*\*", r"<strong>\1</strong>", html.escape(one.text))
            items.append(f"<li>{text}</li>")
    content = f"<ul>{''.join(items)}</ul>" if items else "<p>Nothing in this run.</p>"
    return f"<details><summary>{html.escape(title)} ({len(items)})</summary>{content}</details>"


def _picture(folder: Path, name: str) -> str:
    path = folder / "figures" / f"{name}.png"
    if not path.is_file():
        return ""
    content = base64.b64encode(path.read_bytes()).decode()
    return f'<img alt="{name.replace("_", " ")}" src="data:image/png;base64,{content}">'
