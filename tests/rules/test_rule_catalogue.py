"""The catalogue says the same everywhere, and what it names exists."""

import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
from worked_example import guided_example

import meancap.bench.policy
import meancap.rules
import meancap.sampling
from meancap.cli import main
from meancap.rules import CFG, Rule, apg, catalogue, pmc, pmc_displacement
from meancap.rules.catalogue import CONFIDENCE, FAMILIES, entry
from meancap.rules.parse import known_names, known_parts
from tools.rules_page import drawing, drawn_mean, write_rules_page

SPACES = {"any", "mean", "velocity", "noise", "score", "state"}
PAGE = Path(__file__).parents[2] / "docs" / "rules.md"


def test_the_page_in_the_docs_is_what_the_tool_writes(tmp_path):
    (tmp_path / "benchmark").symlink_to(PAGE.parent / "benchmark")
    write_rules_page(tmp_path)
    made, kept = (
        {p.relative_to(root).as_posix(): p.read_text() for p in (root / "rules.md", *root.glob("rules/*"))}
        for root in (tmp_path, PAGE.parent)
    )
    wrong = [name for name in {*made, *kept} if made.get(name) != kept.get(name)]
    assert not wrong, f"{', '.join(sorted(wrong))} differ: run tools/rules_page.py docs"


def test_drawn_means_lie_where_the_rules_put_them():
    side = 0.35 * math.sqrt(3) / 2
    assert drawn_mean(CFG(1)) == pytest.approx((1, 0, 0), abs=1e-6)
    assert drawn_mean(CFG(4)) == pytest.approx((1 + 3 * 0.175, 3 * side, 0), abs=1e-6)
    capped, moved = drawn_mean(pmc(4, 1.1)), drawn_mean(pmc_displacement(4, 1.15))
    assert math.hypot(capped.x, capped.y) == pytest.approx(1.1, abs=1e-6)
    assert math.hypot(moved.x - 1, moved.y) == pytest.approx(0.15, abs=1e-6)
    assert drawn_mean(apg(4, eta=0, momentum=None)).x == pytest.approx(1, abs=1e-6)  # nothing along m_c
    far = drawing(replace(entry("CFG"), scale=40.0))
    assert "scale 40" in far and "outside the frame" in far


def test_pages_count_the_methods_that_there_are():
    root, count = PAGE.parents[1], len(catalogue())
    pages = [root / "README.md", *(root / "docs").glob("*.md")]
    said = {
        (p.name, int(n)) for p in pages for n in re.findall(r"\[?(\d+) (?:published )?methods", p.read_text())
    }
    wrong = sorted(name for name, n in said if n != count)
    assert said and not wrong, f"there are {count} methods; correct the number in {', '.join(wrong)}"


def test_every_entry_is_whole():
    names = [e.name for e in catalogue(forms=True)]
    assert len({n.lower() for n in names}) == len(names), "two methods share a name; rename the new one"
    for e in catalogue():
        assert e.confidence in CONFIDENCE and e.space in SPACES and e.family in FAMILIES, e.name
        assert e.family != "other" and len(e.title) < 80, e.name
        for text in (e.title, e.use, e.formula, *e.notes, *(v for d in e.defaults for v in d)):
            fits = "`" not in text and not text.endswith(".")
            assert fits, f"{e.name}: no backticks, no full stop; got {text!r}"


def test_every_entry_can_be_typed_or_imported():
    places = {"model": meancap.sampling, "solver": meancap.sampling, "laboratory": meancap.bench.policy}
    for e in catalogue():
        if e.kind == "rule":
            assert isinstance(e.rule(), Rule)
            assert e.name in known_names() and e.name in meancap.rules.__all__
        else:
            assert any(e.name in name for name in dir(places[e.kind])), e.name
            with pytest.raises(ValueError, match="not a rule"):
                e.rule()


def test_every_method_has_an_entry_and_every_part_is_public():
    names = {e.name for e in catalogue(forms=True)}
    missing = known_names().keys() - known_parts().keys() - names
    assert not missing, f"put @method(...) above {', '.join(sorted(missing))}"
    hidden = known_parts().keys() - {*meancap.rules.__all__, *meancap.__all__}
    assert not hidden, f"add {', '.join(sorted(hidden))} to __all__ of meancap.rules"


@pytest.mark.parametrize("e", [e for e in catalogue(forms=True) if e.check], ids=lambda e: e.name)
def test_the_check_value_is_what_the_rule_makes_of_the_worked_example(e):
    made = tuple(guided_example(e.rule(), e.axes))
    assert made == pytest.approx(e.check, abs=1.1e-6), (
        f"if {made} is right by hand, write it as check= above {e.name}; otherwise mend the recipe"
    )


def test_only_rules_that_need_a_larger_image_have_no_check_value():
    without = [e.name for e in catalogue() if e.kind == "rule" and not e.check]
    assert without == ["fdg"], f"write check= (its worked example) into @method above {', '.join(without)}"


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
    ],
)
def test_a_word_that_is_no_name_is_searched_in_names_families_and_sheets(word, names, capsys):
    assert main(["rules", word]) == 0
    assert names <= {line.split()[0] for line in capsys.readouterr().out.splitlines()}


def test_an_unknown_name_is_one_sentence_and_code_two(capsys):
    assert main(["rules", "apq"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "'apq'" in said and "apg" in said
