"""README.md as PyPI shows it: links to files of the repository become addresses, as PyPI has no such files.

A metadata hook of hatchling (`[tool.hatch.metadata.hooks.custom]`); the repository's address is that of
`[project.urls]` in pyproject.toml.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

LINK = re.compile(r"(!?)\[([^\]]*)\]\((?![a-z]+:|#)([^)\s]+)\)")


class LongDescription(MetadataHookInterface):
    """Sets `project.readme`, which pyproject.toml declares dynamic."""

    def update(self, metadata: dict[str, Any]) -> None:
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        text = absolute(text, metadata["urls"]["Repository"])
        metadata["readme"] = {"content-type": "text/markdown", "text": text}


def absolute(text: str, repository: str) -> str:
    """The same page with whole addresses: the raw file of a picture, the page of anything else."""
    owner, name = repository.removeprefix("https://github.com/").split("/")

    def link(match: re.Match[str]) -> str:
        picture, words, path = match.groups()
        base = (
            f"https://raw.githubusercontent.com/{owner}/{name}/main" if picture else f"{repository}/blob/main"
        )
        return f"{picture}[{words}]({base}/{path})"

    return LINK.sub(link, text)
