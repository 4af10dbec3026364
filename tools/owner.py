"""Writes the owner of the repository, and the id at the ComfyUI registry, wherever they stand.

    python tools/owner.py NAME [--publisher ID]     from whatever stands there now; may be run again
    python tools/owner.py --check [--tag v0.1.0]    fails while something is left to do

The present owner is read from `[project.urls]` in pyproject.toml; the files that name it are in FILES, and
`lab/tests/repository/test_release.py` checks that there are no others. Needs Python alone.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PLACEHOLDER = "OWNER"
FILES = (
    "pyproject.toml",
    "lab/pyproject.toml",
    "lab/README.md",
    "CITATION.cff",
    ".github/ISSUE_TEMPLATE/config.yml",
    "integrations/huggingface/**/*.md",
    "integrations/huggingface/**/requirements.txt",
)
NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,37}[A-Za-z0-9])?")
PUBLISHER = re.compile(r'^(PublisherId = )"([^"]*)"', re.MULTILINE)
REPOSITORY = re.compile(r'^Repository = "https://github\.com/([^/"]+)/meancap"', re.MULTILINE)
VERSION = re.compile(r'^__version__ = "([^"]+)"', re.MULTILINE)


def files(root: Path) -> list[Path]:
    """The files that may name the owner, in order."""
    return sorted(path for pattern in FILES for path in root.glob(pattern))


def owner(root: Path) -> str:
    """Who owns the repository, according to pyproject.toml."""
    found = REPOSITORY.search((root / "pyproject.toml").read_text(encoding="utf-8"))
    if found is None:
        raise ValueError('pyproject.toml needs a line: Repository = "https://github.com/OWNER/meancap"')
    return found[1]


def fill(root: Path, name: str, publisher: str) -> list[str]:
    """Writes both names; returns the files that changed."""
    for value in (name, publisher):
        if not NAME.fullmatch(value):
            raise ValueError(
                f"a GitHub name has letters, digits and single hyphens, at most 39; got {value!r}"
            )
    # NAME/meancap in addresses, and NAME.github.io; nothing else can be meant by these.
    before = re.compile(rf"(?<![\w.-]){re.escape(owner(root))}(?=/meancap|\.github\.io/meancap)")
    changed = []
    for path in files(root):
        old = path.read_text(encoding="utf-8")
        new = before.sub(name, old)
        if path.name == "pyproject.toml":
            new = PUBLISHER.sub(rf'\g<1>"{publisher}"', new)
        if new != old:
            path.write_text(new, encoding="utf-8", newline="\n")
            changed.append(path.relative_to(root).as_posix())
    return changed


def problems(root: Path, tag: str | None) -> list[str]:
    """What stands between this tree and a release, a sentence each."""
    said = []
    text = (root / "pyproject.toml").read_text(encoding="utf-8")
    publisher = PUBLISHER.search(text)
    if owner(root) == PLACEHOLDER or publisher is None or publisher[2] == PLACEHOLDER:
        said.append("the owner is not filled in; run: python tools/owner.py NAME")
    version = VERSION.search((root / "src" / "meancap" / "__init__.py").read_text(encoding="utf-8"))
    number = version[1] if version else "nothing"
    if tag is not None and tag != f"v{number}":
        said.append(f"the tag {tag} is not the version; meancap.__version__ is {number}")
    if f"version: {number}\n" not in (root / "CITATION.cff").read_text(encoding="utf-8"):
        said.append(f"CITATION.cff does not name version {number}")
    log = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    if tag is not None and f"## {number}" not in log:
        said.append(f"CHANGELOG.md has no heading '## {number}'; rename 'Unreleased'")
    return said


def main(argv: list[str] | None = None, root: Path = ROOT) -> int:
    """Runs the command; returns its exit code."""
    parser = argparse.ArgumentParser(
        description="Writes the owner wherever it stands, or checks that it does."
    )
    parser.add_argument("name", nargs="?", help="the GitHub user or organisation")
    parser.add_argument(
        "--publisher", help="the id at registry.comfy.org; the owner in lower case if not given"
    )
    parser.add_argument("--check", action="store_true", help="fail while something is left to fill in")
    parser.add_argument("--tag", help="with --check: the tag of the release, such as v0.1.0")
    options = parser.parse_args(argv)
    if options.check == bool(options.name):
        parser.error("give a NAME to write, or --check")
    try:
        if options.check:
            said = problems(root, options.tag)
            print(*said or ["ready"], sep="\n")
            return 1 if said else 0
        changed = fill(root, options.name, options.publisher or options.name.lower())
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    print(*changed or ["nothing to change"], sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
