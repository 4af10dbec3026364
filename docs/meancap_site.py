"""What the site adds to Sphinx: formulas without a script, docstrings as plain text, and a list of modules.

formulas    TeX between dollars becomes MathML, which browsers draw by themselves, offline
docstrings  are written to be read in an editor: a block that is indented or lined up stays as it is, the
            rest is prose in which only `names` are set apart
outside     a link to a folder or a page that is not on the site becomes its name: nothing could open
include     `<!-- include README.md -->` stands for that file of the repository; a link to a file that a page
            of the site includes leads to that page
code        blocks can be reached and scrolled by keys
{exports}   lists what a package offers to `from package import ...`, a line each
{modules}   documents a package and every public module under it, so that none can be forgotten
{commands}  prints the help of every command
"""

from __future__ import annotations

import argparse
import importlib.util
import inspect
import os
import pkgutil
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.parsers.rst import Directive
from docutils.statemachine import StringList
from docutils.utils.math.latex2mathml import tex2mathml

from docs.rules_page import rules_page
from meancap_lab import cli
from meancap_lab.bench.ratios import Result
from meancap_lab.cli.pipeline_list import pipelines_markdown

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
INCLUDE = re.compile(r"^<!-- include (\S+) -->$", re.MULTILINE)
LINK = re.compile(r"(!?)\[([^\]]*)\]\((?![a-z]+:|#)([^)#\s]+)(#[^)\s]*)?\)")
LINED_UP = re.compile(r"\S {2,}\S")
MARKDOWN = re.compile(r"([\\*|_<\[$])")
MARKUP = re.compile(r"([\\*|_`])")
OPTIONS = (":members:", ":member-order: bysource", ":ignore-module-all:")


def setup(app: Any) -> dict[str, bool]:
    app.add_html_math_renderer("mathml", (_inline, None), (_block, None))
    app.connect("source-read", _include)
    app.connect("autodoc-process-docstring", _plain)
    app.connect("autodoc-skip-member", _skip)
    app.connect("html-page-context", _focusable)
    for name, directive in (
        ("exports", Exports),
        ("modules", Modules),
        ("commands", Commands),
        ("rules", Rules),
        ("pipelines", Pipelines),
    ):
        app.add_directive(name, directive)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _focusable(app: Any, page: str, template: str, context: dict[str, Any], tree: Any) -> None:
    """Let the keyboard reach code blocks, which scroll sideways if a line is long."""
    if "body" in context:
        context["body"] = context["body"].replace("<pre>", '<pre tabindex="0">')


def _include(app: Any, name: str, source: list[str]) -> None:
    def text(match: re.Match[str]) -> str:
        path = ROOT / match[1]
        app.env.note_dependency(str(path))
        return on_the_site(path.read_text(encoding="utf-8"), path.parent, name)

    folder = (DOCS / name).parent
    parts = INCLUDE.split(source[0])  # every second part is the name of a file
    for k in range(0, len(parts), 2):
        parts[k] = on_the_site(parts[k], folder, name)
    source[0] = INCLUDE.sub(text, source[0]) if len(parts) > 1 else parts[0]


def on_the_site(text: str, folder: Path, name: str) -> str:
    """The text of a file in `folder`, its links as seen from the page `name`.

    A link to a folder or a page that is not on the site becomes its name: nothing could open.
    """
    included = {
        (ROOT / match[1]).resolve(): page
        for page in DOCS.rglob("*.md")
        if (match := INCLUDE.search(page.read_text(encoding="utf-8")))
    }

    def link(match: re.Match[str]) -> str:
        path = (folder / match[3]).resolve()
        path = included.get(path, path)
        if path.is_dir() or (path.suffix == ".md" and not path.is_relative_to(DOCS)):
            code = f"`{path.relative_to(ROOT)}`"
            return code if match[2] in code else f"{match[2]} ({code})"
        target = os.path.relpath(path, (DOCS / name).parent)
        return f"{match[1]}[{match[2]}]({target}{match[4] or ''})"

    return LINK.sub(link, text)


def _inline(writer: Any, node: nodes.math) -> None:
    writer.body.append(_mathml(node, as_block=False))
    raise nodes.SkipNode


def _block(writer: Any, node: nodes.math_block) -> None:
    writer.body.append(f'<div class="formula">{_mathml(node, as_block=True)}</div>')
    raise nodes.SkipNode


def _mathml(node: nodes.Element, as_block: bool) -> str:
    # A bar is no operator here but the side of a length: browsers would set it apart.
    return re.sub(
        r"<mo[^>]*>\|</mo>",
        '<mo stretchy="false" lspace="0" rspace="0">|</mo>',
        tex2mathml(node.astext(), as_block),
    )


def _plain(_app: Any, _what: str, _name: str, _object: Any, _options: Any, lines: list[str]) -> None:
    lines[:] = plain(lines)


def _skip(_app: Any, _what: str, _name: str, member: Any, _skip: bool, _options: Any) -> bool | None:
    """The fields of a named tuple are in its signature; Python's own words for them say nothing."""
    return True if (getattr(member, "__doc__", None) or "").startswith("Alias for field number") else None


def plain(lines: list[str]) -> list[str]:
    """The same text as reStructuredText that says nothing more than the text does."""
    out: list[str] = []
    for block in re.split(r"\n[ \t]*\n", "\n".join(lines).strip("\n")):
        rows = block.split("\n")
        if all(row.startswith(" ") for row in rows) or (len(rows) > 1 and LINED_UP.search(rows[0])):
            out += ["::", "", *(f"   {row}" for row in rows)]
        else:
            head = next((i for i, row in enumerate(rows) if i and row.startswith("  ")), len(rows))
            out += [_prose(row) for row in rows[:head]]
            if head < len(rows):
                out += ["", "::", "", *(f"   {row}" for row in rows[head:])]
        out.append("")
    return out


def _prose(row: str) -> str:
    """Markup characters escaped, but for `names`, which become code."""
    parts = re.split(r"`([^`]+)`", row)
    return "".join(f"``{part}``" if i % 2 else MARKUP.sub(r"\\\1", part) for i, part in enumerate(parts))


def _marked(line: str) -> str:
    """A docstring's line as Markdown, `names` left as they are."""
    parts = re.split(r"(`[^`]+`)", line)
    return "".join(part if i % 2 else MARKDOWN.sub(r"\\\1", part) for i, part in enumerate(parts))


class _Written(Directive):
    """A directive whose content is Markdown that a function writes."""

    required_arguments = 1
    final_argument_whitespace = True

    def run(self) -> list[nodes.Node]:
        holder = nodes.section()
        rows = self.write(*self.arguments[0].split())
        self.state.nested_parse(StringList(rows, source=self.name), 0, holder, match_titles=True)
        return holder.children

    def write(self, *arguments: str) -> list[str]:
        raise NotImplementedError


class Exports(_Written):
    """`{exports} meancap`."""

    def write(self, *names: str) -> list[str]:
        return [row for name in names for row in exported(name)]


class Modules(_Written):
    """`{modules} meancap.rules`: the package, then each of its public modules, in order of their names."""

    def write(self, *names: str) -> list[str]:
        rows = []
        for module in (m for name in names for m in public_modules(name)):
            rows += [f"## {module}", "", "```{eval-rst}", f".. automodule:: {module}"]
            rows += [*(f"   {option}" for option in OPTIONS), "```", "", *exported(module), ""]
        return rows


class Commands(_Written):
    """`{commands} generate score`: what `meancap NAME --help` prints."""

    def write(self, *names: str) -> list[str]:
        rows = []
        for name, text in helps(names):
            rows += [f"## meancap {name}", "", "```text", *text.rstrip().split("\n"), "```", ""]
        return rows


class Rules(_Written):
    """`{rules} benchmark`: the catalogue, with figures from the result in that folder of docs."""

    def write(self, *names: str) -> list[str]:
        return rules_page(Result(DOCS / names[0]))


class Pipelines(_Written):
    """`{pipelines} diffusers`: which pipelines can be guided, and how."""

    def write(self, *names: str) -> list[str]:
        return pipelines_markdown().split("\n")


def exported(package: str) -> list[str]:
    """A line for each name that a package imports from its own modules to offer it."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        return []
    rows, home = [], importlib.import_module(package)
    for name in getattr(home, "__all__", ()):
        value = getattr(home, name)
        module = getattr(value, "__module__", None)
        if module != package and (inspect.isclass(value) or inspect.isfunction(value)):
            line = " ".join((inspect.getdoc(value) or "").split("\n\n")[0].split())
            rows.append(f"- {{py:obj}}`{name} <{module}.{name}>`: {_marked(line)}")
    return rows


def helps(names: Sequence[str]) -> Iterator[tuple[str, str]]:
    """The help of each command, and of each kind of one that has kinds."""
    top = cli.parser()
    found = _commands(top)
    for name in names:
        yield name, found[name].format_help()
        for kind, parser in _commands(found[name]).items():
            yield f"{name} {kind}", parser.format_help()


def _commands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    groups = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
    return {name: sub for group in groups for name, sub in group.choices.items()}


def public_modules(name: str) -> list[str]:
    """A module and everything under it whose name has no leading underscore."""
    spec = importlib.util.find_spec(name)
    names = [name]
    for info in pkgutil.iter_modules((spec and spec.submodule_search_locations) or (), f"{name}."):
        if not info.name.rsplit(".", 1)[-1].startswith("_"):
            names += public_modules(info.name)
    return names
