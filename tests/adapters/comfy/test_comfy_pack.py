"""The repository as a node pack and a Forge extension, with stand-ins for the hosts: needs neither."""

import ast
import copy
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
import torch
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


class Patcher:
    """A model with options of its own; a clone shares the weights and copies the options."""

    def __init__(self, model, options):
        self.model, self.model_options, self.wrappers = model, options, {}

    def clone(self):
        twin = Patcher(self.model, copy.deepcopy(self.model_options))
        twin.wrappers = {kind: dict(named) for kind, named in self.wrappers.items()}
        return twin

    def set_model_sampler_post_cfg_function(self, function):
        self.model_options.setdefault("sampler_post_cfg_function", []).append(function)

    def add_wrapper_with_key(self, kind, key, wrapper):
        self.wrappers.setdefault(kind, {})[key] = wrapper

    def wrapped(self, kind, function):
        for wrapper in self.wrappers.get(kind, {}).values():
            function = lambda *args, inner=function, outer=wrapper: outer(inner, *args)  # noqa: E731
        return function

    def sample(self, steps=4):
        """A run: the wrappers round a sampler that evaluates two conditions and calls the hooks."""
        self.passes = 0

        def sampler(latent):
            for i in range(steps):
                args = arguments(seed=i, sigma=1 - i / steps, model_options=self.model_options)
                both = [args["cond_denoised"], args["uncond_denoised"]]

                def predict(model, conds, x, timestep, options, both=both):
                    self.passes += sum(cond is not None for cond in conds)
                    return [v if cond is not None else 0 * v for v, cond in zip(both, conds, strict=True)]

                given = args["model"], [[{}], [{}]], args["input"], args["sigma"], self.model_options
                m_c, m_u = self.wrapped("calc_cond_batch", predict)(*given)
                args |= {"cond_denoised": m_c, "uncond_denoised": m_u, "denoised": m_u + 7 * (m_c - m_u)}
                for function in self.model_options.get("sampler_post_cfg_function", []):
                    args["denoised"] = function(args)
                latent = latent + args["denoised"]
            return latent

        return self.wrapped("outer_sample", sampler)(torch.zeros(2, 4, 8, 8))


class Output:
    def __init__(self, *args, ui=None):
        self.args, self.ui = args, ui


def field(*args, **named):
    return SimpleNamespace(id=args[0] if args else None, **named)


@pytest.fixture
def nodes(monkeypatch):
    """`nodes.py`, imported as if ComfyUI were there, and forgotten after the test."""
    kinds = ("Model", "Float", "Combo", "String", "Latent", "Clip", "Conditioning", "Int", "Image")
    io = SimpleNamespace(
        **{kind: SimpleNamespace(Input=field, Output=field) for kind in kinds},
        ComfyNode=type("ComfyNode", (), {"hidden": None}), Schema=field, NodeOutput=Output,
        Hidden=SimpleNamespace(prompt=0, extra_pnginfo=0, unique_id=0),
    )  # fmt: skip
    latest = {"io": io, "ui": SimpleNamespace(), "ComfyExtension": object}
    sampler = SimpleNamespace(SCHEDULERS=["simple"])
    kinds_of_wrappers = SimpleNamespace(OUTER_SAMPLE="outer_sample", CALC_COND_BATCH="calc_cond_batch")
    stands = {
        "comfy": {}, "comfy.samplers": {"KSampler": sampler}, "folder_paths": {}, "comfy_api": {},
        "comfy.patcher_extension": {"WrappersMP": kinds_of_wrappers},
        "comfy_api.latest": latest,
    }  # fmt: skip
    for name, contents in stands.items():
        module = types.ModuleType(name)
        module.__dict__.update(contents)
        monkeypatch.setitem(sys.modules, name, module)
    sys.modules["comfy"].samplers = sys.modules["comfy.samplers"]
    monkeypatch.delitem(sys.modules, "meancap.adapters.comfy.nodes", raising=False)
    yield importlib.import_module("meancap.adapters.comfy.nodes")
    sys.modules.pop("meancap.adapters.comfy.nodes", None)


def schemas(nodes):
    """Node id -> names of its inputs."""
    listed = [getattr(nodes, name) for name in dir(nodes) if isinstance(getattr(nodes, name), type)]
    made = [one.define_schema() for one in listed if "define_schema" in vars(one)]
    return {schema.node_id: [field.id for field in schema.inputs] for schema in made}


def patched(nodes, model):
    """The model behind each of the nodes that patch one."""
    return {
        "cap": nodes.PosteriorMeanCap.execute(model, 1.05, "ball").args[0],
        "rule": nodes.GuidanceRule.execute(model, "CFG(7) | Cap(1.05)").args[0],
        "window": nodes.PosteriorMeanCap.execute(model, 1.05, "displacement", start=0.2, end=0.8).args[0],
    }


def test_a_node_patches_a_clone_and_leaves_its_input_as_it_was(nodes):
    model = Patcher("weights", {"transformer_options": {}})
    native = model.sample()
    for name, made in patched(nodes, model).items():
        assert made is not model and made.model is model.model, name
        assert model.model_options == {"transformer_options": {}} and model.wrappers == {}, name
        assert torch.equal(model.sample(), native) and not torch.equal(made.sample(), native), name


def test_branches_of_one_model_have_a_cap_each(nodes):
    model = Patcher("weights", {})
    loose, strict = (nodes.PosteriorMeanCap.execute(model, gamma, "ball").args[0] for gamma in (100.0, 1.05))
    assert torch.equal(loose.sample(), model.sample()) and not torch.equal(strict.sample(), model.sample())
    both = nodes.PosteriorMeanCap.execute(loose, 1.05, "ball").args[0]
    assert len(both.model_options["sampler_post_cfg_function"]) == 2
    assert len(loose.model_options["sampler_post_cfg_function"]) == 1


def test_every_run_of_a_patched_model_is_known_by_its_latent(nodes):
    made = nodes.PosteriorMeanCap.execute(Patcher("weights", {}), 1.05, "ball").args[0]
    hook = made.model_options["sampler_post_cfg_function"][0]
    latents = [made.sample(steps) for steps in (2, 3)]
    assert [run.calls for run in hook.runs] == [2, 3]
    assert [hook.run_of(latent).calls for latent in latents] == [2, 3]


def test_an_interval_leaves_the_negative_out_unless_a_later_node_needs_it(nodes):
    """50 steps cost 80 passes; the result is the same as with both."""
    model = Patcher("weights", {})
    made = nodes.GuidanceRule.execute(model, "CFG(7) | Interval(0.19, 0.79)").args[0]
    found = made.sample(50)
    assert made.passes == 80
    capped = nodes.PosteriorMeanCap.execute(made, 100.0, "ball").args[0]
    assert torch.allclose(capped.sample(50), found) and capped.passes == 100
    windowed = nodes.GuidanceRule.execute(model, "CFG(7) | Interval(0.19, 0.79)", start=0.0, end=0.5).args[0]
    windowed.sample(50)
    assert windowed.passes == 90, "outside start and end the workflow's own guidance stands"


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


def test_the_nodes_and_their_inputs(nodes):
    assert schemas(nodes) == {
        "MeancapPosteriorMeanCap": ["model", "gamma", "form", "start", "end"],
        "MeancapGuidanceRule": ["model", "rule", "start", "end"],
        "MeancapGuidanceReport": ["latent", "model", "filename_prefix"],
        "MeancapCalibrateGuidance": [
            "model", "clip", "negative", "latent", "prompts", "seed", "steps", "scheduler", "level",
            "filename_prefix",
        ],
    }  # fmt: skip


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_an_example_workflow_fits_the_nodes(path, nodes):
    graph = json.loads(path.read_text(encoding="utf-8"))
    known, placed = schemas(nodes), {node["id"]: node for node in graph["nodes"]}
    own = [node for node in graph["nodes"] if node["type"].startswith("Meancap")]
    assert {node["type"] for node in own} <= set(known) and own
    for node in own:
        names = [slot["name"] for slot in node["inputs"]]
        assert names == known[node["type"]]
        linked = [slot["name"] for slot in node["inputs"] if slot["link"] is not None]
        assert len(node["widgets_values"]) == len(names) - len(linked)
    for number, source, out, target, into, kind in graph["links"]:
        assert placed[source]["outputs"][out]["type"] == kind
        assert placed[target]["inputs"][into]["link"] == number
    seeds = {node["widgets_values"][0] for node in graph["nodes"] if node["type"] == "KSampler"}
    fixed = {node["widgets_values"][1] for node in graph["nodes"] if node["type"] == "KSampler"}
    assert len(seeds) == 1 and fixed == {"fixed"}  # what is compared has the same noise


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
