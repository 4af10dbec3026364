"""The repository as a node pack: what ComfyUI finds, and what everybody else does not. Needs no ComfyUI."""

import ast
import json
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from meancap import parse

ROOT = Path(__file__).parents[3]
PACK = ROOT / "src" / "meancap" / "adapters" / "comfy"
NODES = ast.parse((PACK / "nodes.py").read_text(encoding="utf-8")).body
HOSTS = {
    "comfy",
    "comfy_api",
    "comfy_extras",
    "folder_paths",
    "nodes",
    "server",
    "modules",
    "backend",
    "gradio",
}
WORKFLOWS = sorted((ROOT / "example_workflows").glob("*.json"))


def imports(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((alias.name.split(".")[0], node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield node.module.split(".")[0], node.lineno


def schemas():
    """Node id -> names of its inputs, read off the text; start and end come from `_window`."""
    found, window = {}, []
    for part in NODES:
        ids = [
            call.args[0].value
            for call in ast.walk(part)
            if isinstance(call, ast.Call) and ast.unparse(call.func).endswith(".Input")
        ]
        if isinstance(part, ast.FunctionDef) and part.name == "_window":
            window = ids
        if isinstance(part, ast.ClassDef) and any("ComfyNode" in ast.unparse(base) for base in part.bases):
            text = ast.unparse(part)
            name = next(
                word.value.value
                for word in ast.walk(part)
                if isinstance(word, ast.keyword) and word.arg == "node_id"
            )
            found[name] = ids + (window if "*_window()" in text else [])
    return found


@pytest.mark.parametrize("path", sorted(PACK.glob("*.py")), ids=lambda path: path.name)
def test_only_the_nodes_import_comfyui(path):
    names = {name for name, _ in imports(path)}
    assert bool(names & HOSTS) == (path.name == "nodes.py")
    assert names <= set(sys.stdlib_module_names) | {"torch", "PIL"} | HOSTS


def test_the_pack_never_imports_the_library_by_name():
    """ComfyUI does not put a pack on the path: everything the nodes reach must be imported relatively."""
    for path in (ROOT / "src" / "meancap").rglob("*.py"):
        assert "meancap" not in {name for name, _ in imports(path)}, path


def test_a_clone_under_any_name_finds_the_library_beside_it(tmp_path):
    """As ComfyUI does it: the folder's __init__.py is loaded by path, under a name with dots and slashes."""
    code = """
import importlib, importlib.util, sys
class Nobody:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "meancap":
            raise ImportError("the installed library was asked for")
sys.meta_path.insert(0, Nobody())
name = sys.argv[1].replace(".", "_x_")
spec = importlib.util.spec_from_file_location(name, sys.argv[1] + "/__init__.py")
sys.modules[name] = module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
assert not hasattr(module, "comfy_entrypoint") and not hasattr(module, "NODE_CLASS_MAPPINGS")
hooks = importlib.import_module(name + ".src.meancap.adapters.comfy.hooks")
importlib.import_module(name + ".src.meancap.adapters.comfy.run_report")
print(hooks.PostCFG("CFG(7) | Cap(1.1)").rule)
"""
    clone = tmp_path / "meancap-0.1 (copy)"
    clone.symlink_to(ROOT, target_is_directory=True)
    done = subprocess.run(
        [sys.executable, "-c", code, str(clone)], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.stdout.strip() == "CFG(7) | Cap(1.1)", done.stderr


def test_a_clone_called_meancap_does_not_hide_the_library_from_the_folder_above(tmp_path):
    (tmp_path / "meancap").symlink_to(ROOT, target_is_directory=True)
    code = "import meancap; import meancap.rules.caps; print(meancap.CFG(3), meancap.__file__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout.startswith("CFG(3) "), done.stderr
    assert Path(done.stdout.split(" ", 1)[1].strip()).parent.name == "meancap"


def test_other_tools_that_import_the_root_get_nothing():
    found = runpy.run_path(str(ROOT / "__init__.py"))
    assert "comfy_entrypoint" not in found and "NODE_CLASS_MAPPINGS" not in found


def test_the_pack_asks_the_package_manager_for_nothing():
    assert not (ROOT / "requirements.txt").exists()  # torch is there already, and must not be touched
    assert not (ROOT / "install.py").exists()


def test_the_nodes_and_their_inputs():
    assert schemas() == {
        "MeancapPosteriorMeanCap": ["model", "gamma", "form", "start", "end"],
        "MeancapGuidanceRule": ["model", "rule", "start", "end"],
        "MeancapGuidanceReport": ["latent", "model", "filename_prefix"],
        "MeancapCalibrateGuidance": [
            "model", "clip", "negative", "latent", "prompts", "seed", "steps", "scheduler", "filename_prefix",
        ],
        "MeancapCalibratedCap": ["model", "file", "level", "gamma", "start", "end"],
    }  # fmt: skip


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_an_example_workflow_fits_the_nodes(path):
    graph = json.loads(path.read_text(encoding="utf-8"))
    known, nodes = schemas(), {node["id"]: node for node in graph["nodes"]}
    own = [node for node in graph["nodes"] if node["type"].startswith("Meancap")]
    assert {node["type"] for node in own} <= set(known) and own
    for node in own:
        names = [slot["name"] for slot in node["inputs"]]
        assert names == known[node["type"]]
        linked = [slot["name"] for slot in node["inputs"] if slot["link"] is not None]
        assert len(node["widgets_values"]) == len(names) - len(linked)
    for number, source, out, target, into, kind in graph["links"]:
        assert nodes[source]["outputs"][out]["type"] == kind
        assert nodes[target]["inputs"][into]["link"] == number
    seeds = {node["widgets_values"][0] for node in graph["nodes"] if node["type"] == "KSampler"}
    fixed = {node["widgets_values"][1] for node in graph["nodes"] if node["type"] == "KSampler"}
    assert len(seeds) == 1 and fixed == {"fixed"}  # what is compared has the same noise


def test_the_side_by_side_workflow_differs_in_gamma_alone():
    graph = json.loads((ROOT / "example_workflows" / "plain_against_capped.json").read_text(encoding="utf-8"))
    caps = [n["widgets_values"] for n in graph["nodes"] if n["type"] == "MeancapPosteriorMeanCap"]
    samplers = [n["widgets_values"] for n in graph["nodes"] if n["type"] == "KSampler"]
    assert caps == [[100, "ball", 0, 1], [1.1, "ball", 0, 1]] and samplers[0] == samplers[1]


def test_the_page_names_rules_that_can_be_read():
    page = (ROOT / "docs" / "comfyui.md").read_text(encoding="utf-8")
    rows = [line.split(" | ")[0] for line in page.splitlines() if re.match(r"\| `[A-Za-z]+\(", line)]
    texts = [text.replace("\\|", "|") for row in rows for text in re.findall(r"`([^`]+)`", row)]
    assert len(texts) >= 6
    for text in texts:
        assert parse(str(parse(text))) == parse(text)


def test_the_forge_script_compiles_and_says_that_nobody_ran_it():
    path = ROOT / "integrations" / "forge" / "scripts" / "posterior_mean_cap.py"
    text = path.read_text(encoding="utf-8")
    compile(text, str(path), "exec")
    assert "NOT RUN" in text and "Not run" in (path.parents[1] / "README.md").read_text(encoding="utf-8")
    assert {name for name, _ in imports(path)} == {"gradio", "meancap", "modules"}
