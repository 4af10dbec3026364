"""Markdown pages as their fenced blocks: what the tests run, parse and compare."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
CARDS = ROOT / "lab" / "src" / "meancap_lab" / "models" / "weights"
PAGES = (
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md")),
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "studies").rglob("*.md")),
    *sorted((ROOT / "conformance").glob("*.md")),
    *sorted(CARDS.glob("*.md")),
)
FENCE = re.compile(r"^( *)(```+|~~~+)(.*)$")
NOTE = re.compile(r"<!--\s*(.*?)\s*-->\s*\Z", re.DOTALL)


@dataclass(frozen=True)
class Block:
    """One fenced block: its kind (python, sh, ...), its text, and the comment that stands before it."""

    page: Path
    line: int  # of the opening fence, from 1
    kind: str
    text: str
    note: str

    @property
    def where(self):
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    def reason(self, word):
        """What the comment `<!-- word: reason -->` before the block says; '' without one."""
        head, _, reason = self.note.partition(":")
        return reason.strip() if head == word else ""


def blocks(page):
    """The blocks of a page, in order. Fences inside lists or of tildes are refused: nothing may be missed."""
    found = []
    inside = None
    body = []
    before = []
    for number, row in enumerate(page.read_text(encoding="utf-8").split("\n"), 1):
        fence = FENCE.match(row)
        if inside is None and fence:
            if fence[1] or fence[2] != "```":
                raise ValueError(f"{page.name}:{number}: write fences as ``` at the start of a line")
            note = NOTE.search("\n".join(before))
            inside, body = (number, fence[3].strip(), note[1] if note else ""), []
        elif inside is not None and row.startswith("```"):
            found.append(Block(page, inside[0], inside[1], "\n".join(body), inside[2]))
            inside, before = None, []
        elif inside is not None:
            body.append(row)
        else:
            before.append(row)
    if inside is not None:
        raise ValueError(f"{page.name}:{inside[0]}: this block never ends")
    return found
