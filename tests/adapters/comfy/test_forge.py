"""The Forge extension, with stand-ins for the two modules that Forge brings. No Forge is run here."""

import configparser
import importlib.util
import sys
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from hook_arguments import arguments, forge

FOLDER = Path(__file__).parents[3] / "integrations" / "forge"


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
    gradio, modules, scripts = ModuleType("gradio"), ModuleType("modules"), ModuleType("modules.scripts")
    gradio.Accordion = lambda **options: nullcontext()
    gradio.Checkbox = gradio.Slider = gradio.Radio = lambda **options: options
    scripts.Script, scripts.AlwaysVisible = object, object()
    modules.scripts = scripts
    for name, module in (("gradio", gradio), ("modules", modules), ("modules.scripts", scripts)):
        monkeypatch.setitem(sys.modules, name, module)
    spec = importlib.util.spec_from_file_location(
        "forge_script", FOLDER / "scripts" / "posterior_mean_cap.py"
    )
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
    from meancap.adapters.comfy.hooks import noise_levels

    for largest, flow in ((14.6, False), (1.0, True)):
        schedule = SimpleNamespace(sigma_max=largest, percent_to_sigma=lambda share: 1 - share)
        found = noise_levels({"model": SimpleNamespace(model_sampling=schedule)})
        assert found.flow is flow and found.level(0.25) == 0.75


def test_the_order_of_calls_names_the_extensions_that_guide():
    parser = configparser.ConfigParser()
    parser.read(FOLDER / "metadata.ini", encoding="utf-8")
    after = {name.strip() for name in parser["scripts"]["After"].split(",")}
    assert {"sd_forge_sag", "sd_forge_perturbed_attention", "sd_forge_dynamic_thresholding"} <= after
