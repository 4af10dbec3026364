"""What a node does to the model that it is given, with stand-ins for ComfyUI: needs none of it.

The stand-ins hold what `nodes.py` imports and the three methods of ModelPatcher that it calls; the tests
inside the real host say whether they are true.
"""

import copy
import importlib
import sys
import types
from types import SimpleNamespace

import pytest
import torch
from hook_arguments import arguments


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
