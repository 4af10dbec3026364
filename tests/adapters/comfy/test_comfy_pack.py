"""The repository as a node pack and a Forge extension: needs neither host; Forge has a stand-in."""

import ast
import importlib
import importlib.util
import json
import re
import subprocess
import sys
import types
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
from hook_arguments import arguments, forge

from meancap import parse
from meancap.adapters.comfy.hooks import noise_levels

ROOT = Path(__file__).parents[3]
PACK = ROOT / "src" / "meancap" / "adapters" / "comfy"
FORGE = ROOT / "integrations" / "forge"
HOSTS = {
    "comfy", "comfy_api", "comfy_extras", "folder_paths", "nodes", "server", "modules", "backend", "gradio",
}  # fmt: skip
WORKFLOWS = sorted((ROOT / "example_workflows").glob("*.json"))


def imports(path):
    """The packages that a file imports by name."""
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module for node in nodes if isinstance(node, ast.ImportFrom) and not node.level]
    return {name.split(".")[0] for name in names}


@pytest.mark.parametrize("path", sorted(PACK.glob("*.py")), ids=lambda path: path.name)
def test_only_the_nodes_import_comfyui(path):
    names = imports(path)
    assert bool(names & HOSTS) == (path.name == "nodes.py")
    assert names <= set(sys.stdlib_module_names) | {"torch", "PIL"} | HOSTS


def test_the_pack_never_imports_the_library_by_name():
    """ComfyUI does not put a pack on the path: everything the nodes reach must be imported relatively."""
    for path in (ROOT / "src" / "meancap").rglob("*.py"):
        assert "meancap" not in imports(path), path


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


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_an_example_workflow_is_whole(path):
    graph = json.loads(path.read_text(encoding="utf-8"))
    placed = {node["id"]: node for node in graph["nodes"]}
    for number, source, out, target, into, kind in graph["links"]:
        assert placed[source]["outputs"][out]["type"] == kind
        assert placed[target]["inputs"][into]["link"] == number
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


class Unet:
    """As Forge's: a clone carries the functions that were set on it."""

    def __init__(self, functions=()):
        self.functions = list(functions)

    def clone(self):
        return Unet(self.functions)

    def set_model_sampler_post_cfg_function(self, function):
        self.functions.append(function)


@pytest.fixture
def script(monkeypatch):
    """The extension's script, as Forge would make it."""
    gradio, modules, scripts = (types.ModuleType(name) for name in ("gradio", "modules", "modules.scripts"))
    gradio.Accordion = lambda **options: nullcontext()
    gradio.Checkbox = gradio.Slider = gradio.Radio = lambda **options: options
    scripts.Script, scripts.AlwaysVisible = object, object()
    modules.scripts = scripts
    for name, module in (("gradio", gradio), ("modules", modules), ("modules.scripts", scripts)):
        monkeypatch.setitem(sys.modules, name, module)
    spec = importlib.util.spec_from_file_location("forge_script", FORGE / "scripts" / "posterior_mean_cap.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.PosteriorMeanCap()


def processing():
    model = SimpleNamespace(forge_objects=SimpleNamespace(unet=Unet()))
    return SimpleNamespace(sd_model=model, extra_generation_params={})


def test_both_passes_of_hires_fix_are_told(script, capsys):
    p = processing()
    for calls in (4, 2):
        p.sd_model.forge_objects.unet = Unet()
        script.process_before_every_sampling(p, True, 1.05, "ball")
        (hook,) = p.sd_model.forge_objects.unet.functions
        for i in range(calls):
            hook(forge(arguments(seed=i)))
    script.postprocess_batch(p)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(",")[0] for line in lines if line.startswith("pass")] == [
        "pass 1: Cap(1.05): capped 4/4 steps",
        "pass 2: Cap(1.05): capped 2/2 steps",
    ]
    script.postprocess_batch(p)
    assert capsys.readouterr().out == ""


def test_switched_off_it_touches_nothing(script):
    p = processing()
    before = p.sd_model.forge_objects.unet
    script.process_before_every_sampling(p, False, 1.05, "ball")
    assert p.sd_model.forge_objects.unet is before and not p.extra_generation_params


def test_a_schedule_without_noise_scaling_is_known_by_its_noise_levels():
    """Forge classic: neither SD 1.5 nor SDXL can be asked how much of the data is left."""
    for largest, flow in ((14.6, False), (1.0, True)):
        schedule = SimpleNamespace(sigma_max=largest, percent_to_sigma=lambda share: 1 - share)
        found = noise_levels({"model": SimpleNamespace(model_sampling=schedule)})
        assert found.flow is flow and found.level(0.25) == 0.75


def test_the_forge_extension_says_that_nobody_ran_it():
    path = FORGE / "scripts" / "posterior_mean_cap.py"
    assert "NOT RUN" in path.read_text(encoding="utf-8")
    assert "Not run" in (FORGE / "README.md").read_text(encoding="utf-8")
    assert imports(path) == {"gradio", "meancap", "modules"}
