"""Fails if a page of results has over 800 words beside tables, or the README's first code over 12 lines."""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
WORDS, LINES = 800, 12
COMPUTED = re.compile(
    r"```.*?```|^\|.*?$|<!-- ([a-z ]+) -->\n.*?<!-- /\1 -->|<!--.*?-->", re.DOTALL | re.MULTILINE
)


def too_long() -> list[str]:
    """A sentence for each page that is too long."""
    said = []
    for page in (ROOT / "docs" / "benchmark.md", *sorted(ROOT.glob("studies/*/README.md"))):
        words = len(COMPUTED.sub("", page.read_text(encoding="utf-8")).split())
        if words > WORDS:
            said.append(
                f"{page.relative_to(ROOT)} has {words} words beside its tables; shorten it to {WORDS}"
            )
    first = re.search(r"```python\n(.*?)\n```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    if first is None or first[1].count("\n") >= LINES:
        said.append(f"README.md needs a first code of at most {LINES} lines")
    return said


if __name__ == "__main__":
    sys.exit("\n".join(too_long()) or 0)
