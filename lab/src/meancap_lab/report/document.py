"""A report as a list of blocks, written once and rendered twice: Markdown, and one HTML file that needs no
other.

Text may hold `code`, **strong words** and nothing else, and its lines are joined; everything is escaped in
HTML, whoever wrote it.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path


@dataclass(frozen=True)
class Heading:
    """A heading."""

    text: str
    level: int = 2


@dataclass(frozen=True)
class Text:
    """A paragraph."""

    text: str


@dataclass(frozen=True)
class Code:
    """Lines that are kept as they are."""

    text: str


@dataclass(frozen=True)
class Table:
    """`groups` are rows that belong together; the first `names` columns hold words, the others numbers.

    A cell of bytes is a PNG, which HTML alone shows.
    """

    columns: tuple[str, ...]
    groups: tuple[tuple[tuple[str | bytes, ...], ...], ...]
    names: int = 1


@dataclass(frozen=True)
class FigureFile:
    """A PNG beside the report, by its path within the folder; the SVG of the same name is linked to."""

    path: str
    caption: str


@dataclass(frozen=True)
class Drawing:
    """An SVG of our own making, set into the page as it is; `path` is where the same text lies as a file."""

    svg: str
    path: str
    caption: str


Block = Heading | Text | Code | Table | FigureFile | Drawing


def markdown(blocks: Sequence[Block]) -> str:
    """The whole document as Markdown."""
    return "\n\n".join(map(_markdown, blocks)) + "\n"


def aligned(table: Table) -> str:
    """A table for a terminal: words to the left, numbers to the right."""
    lines = [table.columns, *(row for group in table.groups for row in group)]
    rows = [[str(cell) for cell in line] for line in lines]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    marks = ["<" if i < table.names else ">" for i in range(len(widths))]
    return "\n".join(
        "  ".join(f"{cell:{m}{w}}" for cell, m, w in zip(row, marks, widths, strict=True)).rstrip()
        for row in rows
    )


def html(blocks: Sequence[Block], folder: Path) -> str:
    """One page with its pictures inside."""
    title = next((b.text for b in blocks if isinstance(b, Heading)), "Report")
    body = "\n".join(_html(block, folder) for block in blocks)
    return _PAGE.replace("{title}", escape(_bare(title))).replace("{body}", body)


def _markdown(block: Block) -> str:
    match block:
        case Heading(text, level):
            return f"{'#' * level} {text}"
        case Text(text):
            return _joined(text)
        case Code(text):
            return f"```\n{text}\n```"
        case FigureFile(path, caption) | Drawing(_, path, caption):
            return f"![{_title(caption)}]({path})\n\n{_joined(caption)}"
        case Table(columns, groups, names):
            marks = ["---"] * names + ["---:"] * (len(columns) - names)
            rows = [columns, tuple(marks), *(row for group in groups for row in group)]
            return "\n".join(
                f"| {' | '.join(str(cell).replace('|', chr(92) + '|') for cell in row)} |" for row in rows
            )


def _html(block: Block, folder: Path) -> str:
    match block:
        case Heading(text, level):
            return f"<h{level}>{_inline(text)}</h{level}>"
        case Text(text):
            return f"<p>{_inline(text)}</p>"
        case Code(text):
            return f"<pre>{escape(text)}</pre>"
        case FigureFile(path, caption):
            data = _data_uri((folder / path).read_bytes())
            vector = escape(str(Path(path).with_suffix(".svg")), quote=True)
            return (
                f'<figure><a href="{vector}"><img alt="{escape(_title(caption), quote=True)}" '
                f'src="{data}"></a><figcaption>{_inline(caption)}</figcaption></figure>'
            )
        case Drawing(svg, _, caption):
            return f"<figure>{svg}<figcaption>{_inline(caption)}</figcaption></figure>"
        case Table(columns, groups, names):
            rows = ["".join(f"<tr>{_cells(row, 'td', names)}</tr>" for row in group) for group in groups]
            bodies = "".join(f"<tbody>{body}</tbody>" for body in rows)
            head = f"<thead><tr>{_cells(columns, 'th', names)}</tr></thead>"
            return f'<div class="wide"><table>{head}{bodies}</table></div>'


def _cells(row: Sequence[str | bytes], tag: str, names: int) -> str:
    def cell(content: str | bytes) -> str:
        return _inline(content) if isinstance(content, str) else f'<img alt="" src="{_data_uri(content)}">'

    return "".join(f"<{tag}{'' if i < names else ' class=n'}>{cell(c)}</{tag}>" for i, c in enumerate(row))


def _data_uri(png: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(png).decode()


def _joined(text: str) -> str:
    return " ".join(text.split())


def _inline(text: str) -> str:
    safe = escape(_joined(text))
    safe = re.sub(r"`([^`]+)`", r"<code>\1</code>", safe)
    return re.sub(r"\*\*([^*]+)\*\*", r"<strong>\1</strong>", safe)


def _title(caption: str) -> str:
    """The words in bold that a caption begins with."""
    return _joined(_bare(caption.split(".")[0]))


def _bare(text: str) -> str:
    return text.replace("`", "").replace("**", "")


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
:root { --ink: #222; --grey: #6a6e76; --line: #d9dadd; --tint: #f5f7f9; --blue: #0072b2; }
body { font: 16px/1.55 system-ui, -apple-system, "Segoe UI", "Helvetica Neue", sans-serif; color: var(--ink);
  background: #fff; max-width: 62rem; margin: 2.5rem auto 5rem; padding: 0 1.25rem; }
h1 { font-size: 1.9rem; line-height: 1.2; margin-bottom: .4rem; }
h2 { font-size: 1.3rem; margin-top: 2.6rem; border-bottom: 1px solid var(--line); padding-bottom: .25rem; }
p { max-width: 46rem; }
code, pre { font: .88em/1.5 ui-monospace, "SF Mono", Menlo, Consolas, monospace; background: var(--tint); }
code { padding: .08em .3em; border-radius: 3px; }
pre { padding: .8rem 1rem; border-radius: 5px; overflow-x: auto; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .84rem; font-variant-numeric: tabular-nums; margin: 1rem 0; }
th, td { padding: .22rem .65rem; text-align: left; white-space: nowrap; }
th { border-bottom: 1.5px solid var(--ink); font-weight: 600; vertical-align: bottom; }
.n { text-align: right; }
tbody { border-bottom: 1px solid var(--line); }
tbody:hover { background: var(--tint); }
td img { display: block; width: 7rem; image-rendering: pixelated; }
figure { margin: 1.8rem 0; }
figure img { max-width: 100%; height: auto; display: block; }
figcaption { color: var(--grey); font-size: .88rem; max-width: 46rem; margin-top: .4rem; }
@media print { body { margin: 0; max-width: none; } h2, figure, tbody { break-inside: avoid; } }
</style></head><body>
{body}
</body></html>
"""
