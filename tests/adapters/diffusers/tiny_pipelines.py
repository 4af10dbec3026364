"""Building and calling the tiny pipelines."""

import inspect
import types
from importlib.util import find_spec

import diffusers
import torch
from tiny_formulas import FORMULAS
from tiny_models import CASES as CLASSIC
from tiny_models import STEPS, component, components
from tiny_variants import VARIANTS

EVERY = CLASSIC | VARIANTS | FORMULAS
CASES = {name: case for name, case in EVERY.items() if not case.needs or find_spec(case.needs)}


def model(name, config, std=0.2, seed=0):
    made = component(name, config, seed)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.normal_(0, std)
    return made


def accepted(function, given):
    """Those of the arguments that a function takes."""
    known = inspect.signature(function).parameters
    return {name: value for name, value in given.items() if name in known}


def pipeline(name, dtype=torch.float32, **others):
    """The pipeline of one case; whatever is not given and not in the case is None."""
    case, cls = CASES[name], getattr(diffusers, name)
    needed = inspect.signature(cls.__init__).parameters
    given = {k: None for k, v in needed.items() if k != "self" and v.default is v.empty}
    denoiser = "unet" if "unet" in needed else "transformer"
    given |= {denoiser: model(case.model, case.config, case.std), "scheduler": case.scheduler()}
    parts = components(accepted(cls.__init__, case.parts))
    pipe = cls(**(given | parts | others))
    pipe.set_progress_bar_config(disable=True)
    for key, value in case.settings.items():
        setattr(pipe, key, types.MethodType(value, pipe) if isinstance(value, types.FunctionType) else value)
    pipe.to(dtype)
    for part in case.full:
        getattr(pipe, part).float()
    # What from_pretrained keeps in float32 stays so.
    for key, module in (pipe.unet if denoiser == "unet" else pipe.transformer).named_modules():
        if set(key.split(".")) & set(given[denoiser]._keep_in_fp32_modules or ()):
            module.float()
    return pipe


def call(name, pipe, seed=0, **changes):
    """One call with random embeddings; the latents that come out."""
    case = CASES[name]
    dtype = getattr(pipe, "unet", None) or pipe.transformer
    drawn = torch.Generator().manual_seed(1000 + seed)
    inputs, options = (accepted(type(pipe).__call__, given) for given in (case.inputs, case.call))
    arguments = {k: draw(v, drawn, dtype.dtype) for k, v in inputs.items()}
    arguments |= {"num_inference_steps": STEPS, "output_type": "latent", "return_dict": False}
    arguments |= {"generator": torch.Generator().manual_seed(seed)} | options
    if case.scale:
        arguments |= {case.scale: 7.0}
    torch.manual_seed(seed)  # some pipelines encode their images without the generator
    with torch.no_grad():
        found = pipe(**(arguments | changes))[0]
    return torch.cat([one.flatten() for one in found]) if isinstance(found, list) else found


def draw(what, generator, dtype):
    if isinstance(what, list):
        return [draw(one, generator, dtype) for one in what]
    if isinstance(what, tuple):
        return torch.randn(what, generator=generator).to(dtype)
    return what() if callable(what) else what
