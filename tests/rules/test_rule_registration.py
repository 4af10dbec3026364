"""A method is one edit, and a rule of another package is known wherever a rule can be typed."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import meancap.rules
from meancap import CFG, Interval, parse
from meancap.bench.families import families
from meancap.bench.ratios import Result
from meancap.rules import apg, catalogue, cfg_zero_star, cfgpp, register, renorm, skimmed
from meancap.rules.catalogue import FAMILIES, builds, catalogue_table, entry, method
from tools.rules_page import page

ROOT = Path(__file__).parents[2]


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
    result = Result(ROOT / "docs" / "benchmark")
    assert "middle" in catalogue_table() and "### middle" in page(result)
    assert "middle" in {family.name for family in families()}


def test_an_entry_is_what_the_docstring_says():
    _middle()
    e = entry("middle")
    assert (e.title, e.call, e.family) == ("In the middle", "middle({scale})", "other")
    assert e.formula == "m = m_u + scale (m_c - m_u) for 1/4 <= t <= 3/4"
    assert e.use == "the ends of the run need no guidance" and e.state == "none"
    assert e.defaults == (("any model", "scale 4, in two lines", "its code"),)
    assert e.notes == ("first", "second, which goes on")


@pytest.mark.parametrize("field", ["formula", "space", "source", "evidence", "use when", "state"])
def test_a_docstring_without_a_field_is_an_error_that_names_it(field):
    plain = re.sub(r"\n {8}[a-z].*", "", SHEET)  # every text in one line
    for sheet in (plain.replace(f"{field}:", "other:"), re.sub(rf"{field}: .*", f"{field}:", plain)):
        _middle(sheet)
        with pytest.raises(ValueError, match=f"the docstring of middle lacks {field};"):
            catalogue()


def test_a_default_without_its_source_is_an_error():
    _middle(SHEET.replace(" (its code)", ""))
    with pytest.raises(ValueError, match="defaults in the docstring of middle"):
        catalogue()


def test_a_registered_rule_says_what_its_docstring_says():
    @register
    def twice(scale: float):
        """CFG with twice the gap."""
        return CFG(2 * scale - 1)

    assert parse("twice(4)") == CFG(7)
    assert entry("twice").title == "CFG with twice the gap" and entry("twice").rule() == CFG(7)


def test_names_of_ours_cannot_be_taken():
    with pytest.raises(ValueError, match="'apg' is a rule of meancap already"):
        register(lambda scale: CFG(scale), name="apg")
    with pytest.raises(ValueError, match="'Cap' is a rule of meancap already"):
        register(lambda scale: CFG(scale), name="Cap")


def test_an_earlier_name_still_parses_and_imports_with_a_warning():
    assert parse("apg_diffusers(4, radius=0.3)") == apg(4, form="diffusers", eta=1, radius=0.3, momentum=None)
    assert parse("apg_mix()") == parse("apg(10, form='diffusers', radius=10, steps=6)")
    with pytest.warns(DeprecationWarning, match="meancap.rules.qwen_image is deprecated"):
        from meancap.rules import qwen_image
    assert qwen_image(4) == renorm(4, form="lumina2")
    assert "qwen_image" in builds() and "qwen_image" not in {e.name for e in catalogue()}


@pytest.mark.parametrize("recipe", [apg, cfg_zero_star, cfgpp, renorm, skimmed])
def test_an_unknown_form_is_one_sentence(recipe):
    with pytest.raises(ValueError, match=f"{recipe.__name__} has the forms .*; got 'nobody'"):
        recipe(0.6, form="nobody")


USES = """
from meancap import CFG, Cap, parse
from meancap.cli import main
from meancap.rules import catalogue
from meancap.bench.families import families, family_of

rule = parse("late_cap(7)")
assert str(rule) == "CFG(7) | Late() | Cap(1.1)" and parse(str(rule)) == rule
assert {"Late", "late_cap"} <= {e.name for e in catalogue()}
assert "late_cap" in {f.name for f in families()} and family_of("CFG(3) | Late(2)").knobs
assert main(["rules", "late_cap"]) == 0
"""


def test_an_installed_package_brings_its_rules_and_one_that_fails_is_left_out(tmp_path):
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", "--target"]
    source = ROOT / "examples" / "rule_package"
    subprocess.run([*pip, str(tmp_path / "site"), str(source)], check=True, capture_output=True)
    info = tmp_path / "site" / "broken-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[meancap.rules]\nBroken = no_such_module:Broken\n")
    script = tmp_path / "uses.py"
    script.write_text(f"import sys; sys.path.insert(0, {str(tmp_path / 'site')!r})\n" + USES)
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "late_cap: CFG that grows with time" in done.stdout
    assert "the rule 'Broken' of no_such_module:Broken was left out" in done.stderr


def test_every_family_is_a_module_that_is_loaded():
    """Nothing else would say that the methods of a new file are not there."""
    for file in Path(*meancap.rules.__path__).glob("*.py"):
        if "\n@method(" in file.read_text():
            assert file.stem in FAMILIES and f"meancap.rules.{file.stem}" in sys.modules, file.name
