"""Every command on every page is one that exists, with options that exist; the cheap ones are run."""

import argparse
import importlib.util
import re
import shlex
import tomllib
from pathlib import Path

import pytest

from meancap import parse
from meancap.rules.grammar import all_names
from meancap_lab.cli import main, parser
from pages import PAGES, ROOT, blocks

INLINE = re.compile(r"(?<!`)`((?:meancap|make|python) [^`\n]*(?:\n[^`\n]*)?)`(?!`)")
RULE = re.compile(rf"(?<!`)`((?:{'|'.join(all_names())})\([^`\n]*\))`(?!`)")
FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
ELSEWHERE = {"npm", "cd", "git"}
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
PROJECTS = {name: tomllib.loads((ROOT / name / "pyproject.toml").read_text()) for name in (".", "./lab")}
EXTRAS = {name: set(found["project"]["optional-dependencies"]) for name, found in PROJECTS.items()}


def lines(text):
    """The commands of a shell block as words, without comments and `NAME=value` in front."""
    found = []
    for row in text.replace("\\\n", " ").split("\n"):
        words = shlex.split(row.removeprefix("$ "), comments=True)
        while words and re.match(r"[A-Z_]+=", words[0]):
            words = words[1:]
        if words:
            found.append(words)
    return found


SHELL = [
    pytest.param(words, id=f"{block.where}-{' '.join(words)[:60]}")
    for page in PAGES
    for block in blocks(page)
    if block.kind == "sh"
    for words in lines(block.text)
]
SPOKEN = [
    pytest.param(" ".join(text.split()), id=f"{page.name}-{' '.join(text.split())[:60]}")
    for page in PAGES
    for text in dict.fromkeys(INLINE.findall(FENCED.sub("", page.read_text(encoding="utf-8"))))
]


@pytest.mark.parametrize("words", SHELL)
def test_a_command_in_a_block_can_be_given(words, capsys):
    program, *rest = words
    if program == "meancap":
        reads(rest, capsys)
    elif program in ("torchrun", "accelerate", "srun"):
        start = rest.index("meancap")
        assert program == "srun" or rest[start - 1] == "-m"
        reads(rest[start + 1 :], capsys)
    elif program == "make":
        targets = [word for word in rest if "=" not in word]
        assert targets and TARGETS.issuperset(targets)
    elif program == "python":
        names_a_module(rest)
    elif program == "pip":
        assert rest[0] in ("install", "download")
        for folder, extra in re.findall(r"(\S+)\[(.*?)\]", " ".join(rest)):
            assert EXTRAS[folder].issuperset(extra.split(","))
    else:
        assert program in ELSEWHERE, f"nothing here checks {program}; add it or write it otherwise"


@pytest.mark.parametrize("text", SPOKEN)
def test_a_command_in_a_sentence_exists_and_so_do_its_options(text):
    words = text.replace("...", "").split()
    if words[0] == "make":
        assert TARGETS.issuperset(word for word in words[1:] if "=" not in word)
    elif words[0] == "python":
        names_a_module(words[1:])
    else:
        kinds, rest = [parser()], words[1:]
        while rest and all(found := [_commands(k).get(name) for k in kinds for name in rest[0].split("|")]):
            kinds, rest = found, rest[1:]
        assert kinds[0].prog != "meancap" or rest[0].startswith("--"), f"meancap has no command {rest[0]}"
        for option in re.findall(r"(?<!\S)--[a-z-]+", text):
            assert any(option in kind._option_string_actions for kind in kinds), f"{kinds[0].prog} {option}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_rule_in_a_sentence_can_be_typed(page):
    for text in RULE.findall(FENCED.sub("", page.read_text(encoding="utf-8"))):
        if "..." not in text:
            parse(text.replace("\\|", "|"))


def test_every_extra_is_on_the_page_of_installation():
    page = (ROOT / "docs" / "quickstart.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)) == set.union(*EXTRAS.values())


def test_cheap_commands_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    given = {tuple(one.values[0]) for one in SHELL} | {tuple(one.values[0].split()) for one in SPOKEN}
    cheap = [words for words in sorted(given) if words[0] == "meancap" and quick(words)]
    assert len(cheap) >= 4
    for words in cheap:
        assert main(words[1:]) == 0
        assert capsys.readouterr().out


def quick(words):
    listing = words[1] in ("rules", "pipelines") and "--page" not in words  # the page has a test of its own
    return listing or bool({"--list", "--plan"} & set(words))


@pytest.mark.slow
def test_the_run_of_the_quickstart_can_be_repeated(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (block,) = (one for one in blocks(ROOT / "docs" / "quickstart.md") if "--per-class 4" in one.text)
    for words in lines(block.text):
        assert main(words[1:]) == 0
    assert (tmp_path / "pictures" / "sheet.png").exists()
    assert (tmp_path / "runs" / "cap" / "scores.jsonl").exists()


@pytest.mark.slow
def test_the_mixture_table_is_printed_as_the_page_shows_it(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    page = blocks(ROOT / "docs" / "reproduce.md")
    command = next(block for block in page if block.kind == "sh")
    shown = next(block for block in page if block.kind == "text")
    assert main(lines(command.text)[0][1:]) == 0
    assert shown.text in capsys.readouterr().out


def reads(arguments, capsys):
    """The real parser takes these arguments."""
    try:
        parser().parse_args(arguments)
    except SystemExit as stop:
        assert stop.code == 0, capsys.readouterr().err


def names_a_module(rest):
    """`python -m module`, `python file.py` or `python -c code`, each of them there."""
    if rest[0] == "-m":
        name, *others = rest[1:]
        here = ROOT / name.replace(".", "/")
        assert here.is_dir() or here.with_suffix(".py").exists() or importlib.util.find_spec(name), name
        if name == "pytest":
            assert all((ROOT / word).exists() for word in others if "/" in word)
    elif rest[0] == "-c":
        compile(" ".join(rest[1:]).strip("'"), "-c", "exec")
    else:
        assert (ROOT / Path(rest[0])).exists(), rest[0]


def _commands(top):
    groups = [one for one in top._actions if isinstance(one, argparse._SubParsersAction)]
    return {name: kind for group in groups for name, kind in group.choices.items()}
