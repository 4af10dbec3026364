"""The catalogue: what it names exists, a method is one edit, and rules of other packages are known."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from rule_cases import guided_example

import meancap.rules
import meancap.sampling
from meancap import Interval, parse
from meancap.rules import CFG, Rule, apg, catalogue, register
from meancap.rules.grammar import all_names, part_classes
from meancap.rules.methods import CONFIDENCE, FAMILIES, builtin_names, catalogue_table, entry, method

SPACES = {"any", "mean", "velocity", "noise", "score", "state"}
ROOT = Path(__file__).parents[2]


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
    for e in catalogue():
        if e.kind == "rule":
            assert isinstance(e.rule(), Rule)
            assert e.name in all_names() and e.name in meancap.rules.__all__
        else:
            named = {*dir(meancap.sampling), *meancap.rules.__all__}
            assert e.kind == "laboratory" or any(e.name in name for name in named), e.name
            with pytest.raises(ValueError, match="not a rule"):
                e.rule()


def test_every_method_has_an_entry_and_every_part_is_public():
    names = {e.name for e in catalogue(forms=True)}
    missing = builtin_names() - part_classes().keys() - names
    assert not missing, f"put @method(...) above {', '.join(sorted(missing))}"
    hidden = part_classes().keys() - {*meancap.rules.__all__, *meancap.__all__}
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


SHEET = """In the middle. An example.

    formula: m = m_u + scale (m_c - m_u)
        for 1/4 <= t <= 3/4
    space: any
    source: nobody
    evidence: here
    use when: the ends of the run
        need no guidance
    state: none
    defaults:
        - any model: scale 4, in two
          lines (its code)
    notes:
        - first
        - second, which
          goes on
    """


def _middle(sheet=SHEET):
    def middle(scale):
        return CFG(scale) | Interval(0.25, 0.75)

    middle.__doc__ = sheet
    return method(check=(1.0,))(middle)


def test_a_method_is_known_everywhere_after_one_edit():
    _middle()
    assert parse("middle(4)") == CFG(4) | Interval(0.25, 0.75)
    assert "middle" in catalogue_table()


def test_an_entry_is_what_the_docstring_says():
    _middle()
    e = entry("middle")
    assert (e.title, e.call, e.family) == ("In the middle", "middle({scale})", "other")
    assert e.formula == "m = m_u + scale (m_c - m_u) for 1/4 <= t <= 3/4"
    assert e.use == "the ends of the run need no guidance" and e.state == "none"
    assert e.defaults == (("any model", "scale 4, in two lines", "its code"),)
    assert e.notes == ("first", "second, which goes on")


@pytest.mark.parametrize("field", ["formula", "space", "source", "evidence", "use when"])
def test_a_docstring_without_a_field_is_an_error_that_names_it(field):
    plain = re.sub(r"\n {8}[a-z].*", "", SHEET)  # every text in one line
    for sheet in (plain.replace(f"{field}:", "other:"), re.sub(rf"{field}: .*", f"{field}:", plain)):
        with pytest.raises(ValueError, match=f"the docstring of middle lacks {field};"):
            _middle(sheet)


@pytest.mark.parametrize(
    ("written", "instead", "error"),
    [
        (" (its code)", "", "defaults in the docstring of middle"),
        ("space: any", "space: all", "the space of"),
    ],
)
def test_a_field_of_another_form_is_an_error_when_the_method_is_declared(written, instead, error):
    with pytest.raises(ValueError, match=error):
        _middle(SHEET.replace(written, instead))
    assert "middle" not in {e.name for e in catalogue()}


def test_a_registered_rule_says_what_its_docstring_says():
    @register
    def twice(scale):
        """CFG with twice the gap."""
        return CFG(2 * scale - 1)

    assert parse("twice(4)") == CFG(7)
    assert entry("twice").title == "CFG with twice the gap" and entry("twice").rule() == CFG(7)


def test_names_of_ours_cannot_be_taken():
    with pytest.raises(ValueError, match="'apg' is a rule of meancap already"):
        register(lambda scale: CFG(scale), name="apg")
    with pytest.raises(ValueError, match="'Cap' is a rule of meancap already"):
        register(lambda scale: CFG(scale), name="Cap")


def test_a_form_is_typed_as_an_option_of_its_recipe():
    assert entry("apg_mix").rule() == apg(10, form="diffusers", radius=10, steps=6)
    assert "apg_mix" not in all_names() and not hasattr(meancap.rules, "apg_mix")
    assert {e.form_of for e in catalogue(forms=True)} == {
        "",
        "apg",
        "cfgpp",
        "cfg_zero_star",
        "renorm",
        "skimmed",
    }


def test_without_docstrings_the_catalogue_says_why_and_rules_still_parse():
    code = "from meancap.rules import catalogue, parse; assert False; print(parse('CFG(7)')); catalogue()"
    done = subprocess.run([sys.executable, "-OO", "-c", code], capture_output=True, text=True)
    assert done.stdout == "CFG(7)\n"
    assert done.stderr.endswith("which python -OO removes; run python without -OO\n")


def test_every_family_is_a_module_that_is_loaded():
    """Nothing else would say that the methods of a new file are not there."""
    for file in Path(*meancap.rules.__path__).glob("*.py"):
        if "\n@method(" in file.read_text():
            assert file.stem in FAMILIES and f"meancap.rules.{file.stem}" in sys.modules, file.name
