"""The commands that show what there is: rules and pipelines."""

import pytest

from meancap.adapters.diffusers import LAYOUTS
from meancap.rules import catalogue
from meancap_lab.cli import main
from meancap_lab.cli.pipeline_list import pipelines_markdown, pipelines_text


def test_the_command_lists_and_tells(capsys):
    assert main(["rules"]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in listed] == [e.name for e in catalogue()]
    assert main(["rules", "APG", "adg"]) == 0
    told = capsys.readouterr().out
    assert (
        "Sadat" in told and "Momentum(-0.5) | Clip(15) | Project() | CFG(4)" in told and "Rotation(4)" in told
    )


@pytest.mark.parametrize(
    ("word", "names"),
    [
        ("cap", {"pmc", "pmc_displacement"}),
        ("Qwen", {"renorm"}),
        ("memory", {"smc", "higs"}),
        ("2410.02416", {"apg"}),
        ("CapDisplacement", {"pmc_displacement"}),
    ],
)
def test_a_word_that_is_no_name_is_searched_in_names_families_sheets_and_parts(word, names, capsys):
    assert main(["rules", word]) == 0
    assert names <= {line.split()[0] for line in capsys.readouterr().out.splitlines()}


def test_an_unknown_name_is_one_sentence_and_code_two(capsys):
    assert main(["rules", "apq"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "'apq'" in said and "apg" in said


def test_the_command_prints_every_pipeline(capsys):
    assert main(["pipelines"]) == 0
    shown = capsys.readouterr().out
    assert shown == pipelines_text() + "\n"
    assert all(f"\n{name} " in shown for name in LAYOUTS)
    assert all(f"{name.removesuffix('Pipeline')}" in pipelines_markdown() for name in LAYOUTS)
    caps = {line.split()[0] for line in shown.splitlines() if line.split()[1:2] == ["caps"]}
    assert caps == {name for name, layout in LAYOUTS.items() if layout.caps_only} >= {"OmniGenPipeline"}
