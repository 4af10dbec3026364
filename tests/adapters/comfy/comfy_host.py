"""The real ComfyUI in this process, and models small enough to be exact.

    Exact    posterior mean of data ~ N(a_k, s_k^2), k from the conditioning; a real BaseModel round it
    tiny_sd3 a random SD3 of depth 1, recognised and built by ComfyUI itself
    Spy      the arguments of the post-CFG hook at every call, and what the node under test made of them

COMFYUI_PATH names a ComfyUI checkout (0.3.48 or newer) whose dependencies are installed; torchvision and
torchaudio may be missing. Without it nothing here is imported, and the tests that need it are not run.
"""

import asyncio
import os
import sys
import warnings
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import absent

ROOT = Path(__file__).parents[3]
NOT_RUN = "not run: set COMFYUI_PATH to a ComfyUI checkout (0.3.48 or newer) to test against the real host"
NODE_IDS = (
    "MeancapPosteriorMeanCap", "MeancapGuidanceRule", "MeancapGuidanceReport", "MeancapCalibrateGuidance",
)  # fmt: skip
EXTRAS = (
    "nodes_model_advanced", "nodes_custom_sampler", "nodes_apg", "nodes_cfg", "nodes_fresca", "nodes_lumina2",
    "nodes_mahiro", "nodes_perpneg", "nodes_tcfg",
)  # fmt: skip


def where():
    return os.environ.get("COMFYUI_PATH")


@cache
def host():
    """ComfyUI's modules and the node pack, loaded as ComfyUI loads it."""
    if not where():
        pytest.skip(NOT_RUN)
    sys.path.insert(0, str(Path(where()).resolve()))
    absent.install(*absent.COMFY)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from comfy.cli_args import args

        args.cpu = True
        import comfy.latent_formats
        import comfy.model_base
        import comfy.model_patcher
        import comfy.samplers
        import comfy.sd
        import comfy.supported_models_base
        import folder_paths
        import nodes

        assert asyncio.run(nodes.load_custom_node(str(ROOT)))
        for name in EXTRAS:
            path = Path(where(), "comfy_extras", f"{name}.py").resolve()
            assert asyncio.run(nodes.load_custom_node(str(path), module_parent="comfy_extras")), name
    return SimpleNamespace(comfy=comfy, nodes=nodes, folders=folder_paths, known=nodes.NODE_CLASS_MAPPINGS)


def node(name, *values, **named):
    """What a node returns, whether it is written the old way or the new."""
    made = host().known[name]
    if hasattr(made, "execute"):
        return made.execute(*values, **named).args
    return getattr(made(), made.FUNCTION)(*values, **named)


class Exact(torch.nn.Module):
    dtype = torch.float32

    def __init__(self, shape, flow):
        super().__init__()
        g = torch.Generator().manual_seed(7)
        self.flow = flow
        self.in_channels = shape[0]
        self.centres = torch.stack([torch.zeros(shape), *torch.randn(2, *shape, generator=g)])
        self.widths = torch.tensor([1.0, 0.6, 0.8])

    def forward(self, x, t, context=None, **options):
        if self.flow:
            sigma, alpha, seen = t / 1000, 1 - t / 1000, x
        else:
            sigma = self.sampling.sigma(t)
            alpha, seen = torch.ones_like(sigma), x * _like(torch.sqrt(sigma**2 + 1), x)
        k = context[:, 0, 0].long()
        a, s, alpha, sigma = self.centres[k], *(_like(v, x) for v in (self.widths[k], alpha, sigma))
        m = a + alpha * s**2 / (alpha**2 * s**2 + sigma**2) * (seen - alpha * a)
        return (seen - m) / sigma


def _like(v, x):
    return v.reshape(-1, *[1] * (x.dim() - 1))


def exact(shape=(4, 8, 8), flow=True, network=None):
    """An `Exact`, or another network, inside ComfyUI's own BaseModel and ModelPatcher."""
    comfy = host().comfy

    class Latents(comfy.latent_formats.LatentFormat):
        latent_channels = shape[0]
        latent_dimensions = max(1, len(shape) - 1)

    class Config(comfy.supported_models_base.BASE):
        latent_format = Latents
        sampling_settings = {"shift": 1.0} if flow else {}
        unet_extra_config = {}  # noqa: RUF012

    kind = comfy.model_base.ModelType.FLOW if flow else comfy.model_base.ModelType.EPS
    model = comfy.model_base.BaseModel(Config({"disable_unet_model_creation": True}), model_type=kind)
    model.diffusion_model = Exact(shape, flow) if network is None else network
    object.__setattr__(model.diffusion_model, "sampling", model.model_sampling)
    return comfy.model_patcher.ModelPatcher(model, torch.device("cpu"), torch.device("cpu"))


def tiny_weights():
    """Random weights with the names and shapes of SD3; every one is filled, and small enough to stay tame."""
    host()
    from comfy.ldm.modules.diffusionmodules.mmdit import MMDiT
    from comfy.ops import disable_weight_init

    words = {"target": "torch.nn.Linear", "params": {"in_features": 16, "out_features": 64}}
    net = MMDiT(
        in_channels=16, depth=1, input_size=None, patch_size=2, adm_in_channels=32, num_patches=64,
        pos_embed_max_size=8, pos_embed_scaling_factor=None, dtype=torch.float32, device="cpu",
        operations=disable_weight_init, context_embedder_config=words,
    )  # fmt: skip
    g = torch.Generator().manual_seed(3)
    return {name: 0.2 * torch.randn(v.shape, generator=g) for name, v in net.state_dict().items()}


def tiny_sd3():
    return host().comfy.sd.load_diffusion_model_state_dict(tiny_weights())


def words(label, *, tokens=1, width=1, pooled=None, **more):
    """A conditioning that carries only a label, or random embeddings made from it."""
    if pooled is None:
        return [[torch.full((1, tokens, width), float(label)), dict(more)]]
    g = torch.Generator().manual_seed(label)
    return [
        [
            torch.randn(1, tokens, width, generator=g),
            {"pooled_output": torch.randn(1, pooled, generator=g), **more},
        ]
    ]


def sampled(
    model, shape, *, cfg=7.0, steps=6, sampler="euler", scheduler="simple", seed=1, conds=None, **more
):
    """KSampler's own result."""
    positive, negative = conds or (words(1), words(0))
    latent = more.pop("latent", None) or {"samples": torch.zeros(shape)}
    return node("KSampler", model, seed, steps, cfg, sampler, scheduler, positive, negative, latent, **more)[
        0
    ]["samples"]


class Spy:
    """Put before and after the node under test."""

    def __init__(self):
        self.calls, self.out = [], []

    def before(self, model):
        model = model.clone()
        model.set_model_sampler_post_cfg_function(
            lambda args: (self.calls.append(dict(args)), args["denoised"])[1]
        )
        return model

    def after(self, model):
        model = model.clone()
        model.set_model_sampler_post_cfg_function(
            lambda args: (self.out.append(args["denoised"]), args["denoised"])[1]
        )
        return model


def capped(model, gamma=1.1, form="ball", spy=None, **window):
    """The node under test, between the two halves of a spy."""
    if spy is None:
        return node("MeancapPosteriorMeanCap", model, gamma, form, **window)[0]
    return spy.after(node("MeancapPosteriorMeanCap", spy.before(model), gamma, form, **window)[0])


def hook_of(model):
    return [f for f in model.model_options["sampler_post_cfg_function"] if type(f).__name__ == "PostCFG"][-1]
