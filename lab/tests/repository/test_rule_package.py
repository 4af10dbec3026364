"""Rules of an installed package, in the library, the benchmark and the command."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


USES = """
from meancap import CFG, Cap, parse
from meancap_lab.cli import main
from meancap.rules import catalogue
from meancap_lab.bench.families import families, family_of

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
    assert "the rule 'Broken' of no_such_module:Broken cannot be loaded and is skipped" in done.stderr
