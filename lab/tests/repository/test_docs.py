"""Every code block of every page runs, and prints what the page says it prints.

    python     is run; the blocks of a page share their names, in order, in an empty folder
    console    `$ command`, run in the same folder, and what it prints
    text       what the python block before it prints; a number with decimals may differ by one in its last
               digit, and so may a percentage, for processors round differently
    sh         commands that are read by the real parser, see test_docs_commands.py
    (none)     a drawing, or numbers from a run that is named beside them

A block that cannot run here says so in a comment before it, `<!-- not run: reason -->`; its code must still
compile, and the names it takes from meancap must exist.
"""

import ast
import contextlib
import importlib
import io
import re
import shlex
import sys
from types import ModuleType

import pytest

from meancap_lab.cli import main
from pages import PAGES, ROOT, blocks

KINDS = {"python", "console", "text", "sh", "bibtex", ""}
DIRECTIVES = {"{toctree}", "{modules}", "{exports}", "{commands}", "{rules}", "{pipelines}"}
CODE = re.compile(
    r"^(\$ |meancap |make |pip |python3? |import |from \w+ import |git |torchrun )", re.MULTILINE
)
NUMBER = re.compile(r"(-?\d+(?:\.\d+)?%?)")
HOST = "docs/diffusers.md"
# What diffusers itself says while it is imported and called.
UPSTREAM = ("ignore::FutureWarning:diffusers", "ignore::DeprecationWarning:diffusers", "ignore:__array")


def named(page):
    return str(page.relative_to(ROOT))


def with_code():
    chosen = [page for page in PAGES if any(b.kind in ("python", "console") for b in blocks(page))]
    marks = {HOST: [pytest.mark.filterwarnings(one) for one in UPSTREAM]}
    return [pytest.param(page, id=named(page), marks=marks.get(named(page), [])) for page in chosen]


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_no_block_escapes_the_tests(page):
    found = blocks(page)
    fences = re.findall(r"^\s*(?:```|~~~)", page.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(fences) == 2 * len(found)
    for block in found:
        assert block.kind in KINDS or block.kind.split()[0] in DIRECTIVES, f"{block.where}: {block.kind}"
        if block.kind == "":
            assert not CODE.search(block.text), f"{block.where}: say which language this is"
        if block.note.startswith(("not run", "shown")):
            reason = block.reason("not run") or block.reason("shown")
            assert len(reason.split()) >= 2, f"{block.where}: give the reason"


@pytest.mark.parametrize("page", with_code())
def test_the_code_of_a_page_runs_and_prints_what_the_page_says(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if named(page) == HOST:
        random_weights(monkeypatch)
    module = ModuleType("page")
    monkeypatch.setitem(sys.modules, "page", module)
    printed = None
    for block in blocks(page):
        if block.kind == "python":
            printed = None if block.reason("not run") else run(block, module)
            if block.reason("not run"):
                check(block)
        elif block.kind == "console":
            for command, promised in commands(block):
                assert told(command) == promised, block.where
            printed = None
        elif block.kind == "text" and not block.reason("shown"):
            assert printed is not None, f"{block.where}: no code before this output, and no comment says why"
            agrees(printed.rstrip("\n"), block)


def run(block, module):
    """What a block prints; the line numbers of its errors are those of the page."""
    out = io.StringIO()
    code = compile("\n" * block.line + block.text, str(block.page), "exec", dont_inherit=True)
    with contextlib.redirect_stdout(out):
        exec(code, module.__dict__)
    return out.getvalue()


def agrees(printed, block):
    """The output is what the page shows, but for the last digit of a number that was rounded."""
    told, shown = NUMBER.split(printed), NUMBER.split(block.text)
    assert told[::2] == shown[::2], f"{block.where} shows\n{block.text}\nbut the code prints\n{printed}"
    for ours, theirs in zip(told[1::2], shown[1::2], strict=True):
        decimals = len(theirs.rstrip("%").partition(".")[2])
        slack = 1.001 * 10**-decimals if decimals or theirs.endswith("%") else 0
        difference = abs(float(ours.rstrip("%")) - float(theirs.rstrip("%")))
        assert difference <= slack, f"{block.where} shows {theirs}, but the code prints {ours}"


def check(block):
    """A block that cannot run here compiles, and what it imports from meancap is there."""
    for node in ast.walk(ast.parse(block.text, str(block.page))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "meancap":
            module = importlib.import_module(node.module)
            missing = [one.name for one in node.names if not hasattr(module, one.name)]
            assert not missing, f"{block.where}: {node.module} has no {missing}"


def commands(block):
    """Each `$ command` of a console block with what it prints."""
    parts = re.split(r"^\$ ", block.text + "\n", flags=re.MULTILINE)
    assert parts[0] == "" and len(parts) > 1, f"{block.where}: a console block begins with `$ command`"
    return [tuple(part.split("\n", 1)) for part in parts[1:]]


def told(command):
    """What a meancap command prints to standard output."""
    program, *arguments = shlex.split(command)
    assert program == "meancap", f"only meancap is run by the tests; got {command}"
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        try:
            code = main(arguments)
        except SystemExit as stop:
            code = stop.code
    assert code == 0, command
    return out.getvalue()


def random_weights(monkeypatch):
    """The real pipelines round tiny random networks, in place of gigabytes that are not here."""
    import diffusers
    import transformers

    diffusers.utils.logging.set_verbosity_error()
    transformers.utils.logging.set_verbosity_error()
    monkeypatch.syspath_prepend(str(ROOT / "examples" / "diffusers"))
    monkeypatch.delitem(sys.modules, "tiny", raising=False)
    from tiny import tiny

    classic = diffusers.StableDiffusion3Pipeline

    def modular(name):
        pipe = diffusers.StableDiffusion3AutoBlocks().init_pipeline()
        wanted = {spec.name for spec in pipe.blocks.expected_components}
        parts = {key: part for key, part in tiny(classic).components.items() if key in wanted}
        pipe.update_components(**parts)
        pipe.load_components = lambda: None
        pipe.set_progress_bar_config(disable=True)
        return pipe

    monkeypatch.setattr(classic, "from_pretrained", lambda name: tiny(classic))
    monkeypatch.setattr(diffusers.ModularPipeline, "from_pretrained", modular)
