"""A method is one edit, and a rule of another package is known wherever a rule can be typed."""

import subprocess
import sys
from pathlib import Path

import pytest

from meancap import CFG, Interval, parse
from meancap.report.rules_page import page
from meancap.rules import catalogue, methods, register
from meancap.rules.methods import registry
from meancap.rules.text.listing import catalogue_table
from meancap.runs.bench.families import families
from meancap.runs.bench.readings import read_readings

ROOT = Path(__file__).parents[2]


def test_a_method_is_known_everywhere_after_one_edit():
    @registry.method("in the middle", "nobody", "any", "m", "middle({scale})", seen="here", unit=True)
    def middle(scale):
        return CFG(scale) | Interval(0.25, 0.75)

    assert parse("middle(4)") == CFG(4) | Interval(0.25, 0.75)
    readings = read_readings(ROOT / "docs" / "benchmark")
    assert "middle" in catalogue_table() and "### middle" in page(readings)
    assert "middle" in {family.name for family in families()}


def test_a_registered_rule_says_what_its_docstring_says():
    @register
    def twice(scale: float):
        """CFG with twice the gap."""
        return CFG(2 * scale - 1)

    assert parse("twice(4)") == CFG(7)
    assert registry.entry("twice").title == "CFG with twice the gap" and registry.entry(
        "twice"
    ).rule() == CFG(7)


def test_names_of_ours_cannot_be_taken():
    with pytest.raises(ValueError, match="'apg' is a rule of meancap already"):
        register(lambda scale: CFG(scale), name="apg")
    with pytest.raises(ValueError, match="'Cap' is a rule of meancap already"):
        register(lambda scale: CFG(scale), name="Cap")


def test_an_alias_is_the_same_recipe():
    builds = registry.builds()
    assert builds["qwen_image"] is builds["lumina2"]
    assert {"qwen_image", "lumina2"} <= {e.name for e in catalogue()}


USES = """
from meancap import CFG, Cap, parse
from meancap.cli import main
from meancap.rules import catalogue
from meancap.runs.bench.families import families, family_of

rule = parse("late_cap(7)")
assert str(rule) == "CFG(7) | Late() | Cap(1.1)" and parse(str(rule)) == rule
assert {"Late", "late_cap"} <= {e.name for e in catalogue()}
assert "late_cap" in {f.name for f in families()} and family_of("CFG(3) | Late(2)").scaled
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


def test_a_module_with_a_method_is_loaded_with_its_package():
    """Nothing else would say that the methods of a new file are not there."""
    for file in Path(*methods.__path__).glob("*.py"):
        if "\n@method(" in file.read_text():
            said = f"write `from .{file.stem} import *` into {file.parent.name}/__init__.py"
            assert f"{methods.__name__}.{file.stem}" in sys.modules, said
