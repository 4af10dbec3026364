"""The pages hang together: links lead somewhere, the reference is whole, the site builds and is offline."""

import itertools
import re
import subprocess
import sys
from pathlib import Path

import pytest

from meancap.rules import catalogue
from pages import PAGES, ROOT

SOURCES = (ROOT / "src" / "meancap", ROOT / "lab" / "src" / "meancap_lab")
DOCS = ROOT / "docs"
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
EVERY = (*PAGES, ROOT / "CHANGELOG.md", *sorted((DOCS / "api").glob("*.md")))
# Command line and web page are used from outside Python (commands.md, explorer.md).
NOT_A_LIBRARY = {"__init__", "__main__", "cli", "explorer"}


def prose(page):
    return FENCED.sub("", page.read_text(encoding="utf-8"))


def anchors(page):
    """The names of a page's headings, as GitHub and the site make them."""
    titles = re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    titles += [e.name for e in catalogue()] if page.name == "rules.md" else []  # which the site fills in
    plain = (re.sub(r"[^\w\- ]", "", re.sub(r"[`*]", "", title.lower())) for title in titles)
    return {title.strip().replace(" ", "-") for title in plain}


@pytest.mark.parametrize("page", EVERY, ids=lambda page: str(page.relative_to(ROOT)))
def test_relative_links_lead_somewhere(page):
    for link in LINK.findall(prose(page)):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), f"{page.name} links to {link}"
        assert not anchor or anchor in anchors(target), f"{target.name} has no heading #{anchor}"


def test_every_page_is_in_the_navigation():
    index = (DOCS / "index.md").read_text(encoding="utf-8")
    listed = re.findall(r"^([\w-]+)$", index, re.MULTILINE)
    assert sorted(listed) == sorted(page.stem for page in DOCS.glob("*.md") if page.stem != "index")


def test_the_reference_holds_every_package():
    shown = set()
    for page in (DOCS / "api").glob("*.md"):
        for names in re.findall(r"\{modules\} (.*)", page.read_text(encoding="utf-8")):
            shown |= set(names.split())
    packages = {
        (source.name, path.stem)
        for source in SOURCES
        for path in source.iterdir()
        if path.suffix == ".py" or (path / "__init__.py").exists()
    }
    assert shown == {f"{package}.{name}" for package, name in packages if name not in NOT_A_LIBRARY}


def test_every_command_is_on_the_page_of_commands():
    from meancap_lab.cli import COMMANDS

    page = (DOCS / "commands.md").read_text(encoding="utf-8")
    shown = re.search(r"\{commands\} (.*)", page)[1].split()
    assert sorted(shown) == sorted(add.__name__.removeprefix("add_") for add in COMMANDS)


@pytest.mark.slow
def test_the_site_builds_without_a_warning_and_asks_no_other_host(tmp_path):
    made = tmp_path / "site"
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html"]
    done = subprocess.run(
        [*command, "-d", str(tmp_path / "trees"), str(DOCS), str(made)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    pages = sorted(made.rglob("*.html"))
    shown = {page.relative_to(made).with_suffix(".md") for page in pages}
    assert {page.relative_to(DOCS) for page in DOCS.rglob("*.md")} <= shown
    assert {Path("studies", study.name + ".md") for study in (ROOT / "studies").glob("[a-z]*/")} <= shown
    for page in pages:
        text = page.read_text(encoding="utf-8")
        loaded = re.findall(r"<(?:script|img|iframe)[^>]*src=\"([^\"]+)\"|<link[^>]*href=\"([^\"]+)\"", text)
        for one in (src or href for src, href in loaded):
            assert not re.match(r"(https?:)?//", one), f"{page.name} loads {one}"
        assert "<pre>" not in text, f"keys cannot scroll a code block of {page.name}"
        levels = [int(level) for level in re.findall(r"<h([1-6])[ >]", text)]
        assert all(b <= a + 1 for a, b in itertools.pairwise(levels)), f"{page.name} skips a heading level"
    for style in made.rglob("*.css"):
        assert not re.search(r"(@import|url\()\s*['\"]?(https?:)?//", style.read_text(encoding="utf-8")), (
            style
        )
    ours = made / "_static" / "meancap.css"
    fonts = re.findall(r"url\(\"([^\"]+)\"\)", ours.read_text(encoding="utf-8"))
    assert fonts and all((ours.parent / font).is_file() for font in fonts)
    assert "<math" in (made / "theory.html").read_text(encoding="utf-8")
    assert "meancap.rules.caps.Cap" in (made / "api" / "rules.html").read_text(encoding="utf-8")
