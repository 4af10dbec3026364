"""Every loop and host, each as a function that makes guided steps in float32 and says how many they were."""

import sys
from pathlib import Path
from types import SimpleNamespace

import torch
from torch import nn

from meancap import CFG, Cap, Prediction, Record, guide, guided_velocity, noise, sample, trajectory, uniform
from meancap.adapters import diffsynth, sglang
from meancap.adapters.comfy.hooks import PostCFG
from meancap.adapters.diffusers import PosteriorMeanCappedGuidance, guided
from meancap.adapters.substitute import substituted
from meancap.sampling.wrappers import manifold_sample

RULE = CFG(7) | Cap(1.1)
SIGMAS = torch.tensor([1.0, 0.7, 0.4, 0.0])


def predict(x, t):
    return Prediction.from_velocity(x, t, 0.5 - x, -x)


def velocities(*shape):
    g = torch.Generator().manual_seed(0)
    return tuple(torch.randn(shape, generator=g) for _ in range(3))


def by_sample():
    sample(predict, RULE, noise(range(2), (2, 4)), uniform(3), record=Record())
    return 3


def by_trajectory():
    return len(list(trajectory(predict, RULE, noise(range(2), (2, 4)), uniform(3))))


def by_manifold_sample():
    manifold_sample(predict, RULE, noise(range(2), (2, 4)), uniform(3))
    return 3


def by_guide():
    x, c, u = velocities(2, 8)
    guide(RULE, Prediction.from_noise(x, c, u, alpha=0.8, sigma=0.6))
    guided_velocity(RULE, x, 0.3, c, u)
    return 2


def by_diffusers():
    from diffusers import FlowMatchEulerDiscreteScheduler, SD3Transformer2DModel, StableDiffusion3Pipeline

    small = {
        "sample_size": 8, "num_layers": 1, "attention_head_dim": 8, "num_attention_heads": 2,
        "caption_projection_dim": 16, "pos_embed_max_size": 8, "joint_attention_dim": 8,
        "pooled_projection_dim": 8,
    }  # fmt: skip
    transformer = SD3Transformer2DModel(**small).eval()
    pipe = StableDiffusion3Pipeline(transformer, FlowMatchEulerDiscreteScheduler(), *(None,) * 7)
    pipe.set_progress_bar_config(disable=True)
    words = {"prompt_embeds": (1, 4, 8), "pooled_prompt_embeds": (1, 8)}
    g = torch.Generator().manual_seed(0)
    texts = {
        f"{sign}{name}": torch.randn(n, generator=g)
        for sign in ("", "negative_")
        for name, n in words.items()
    }
    with guided(pipe, Cap(1.05)):
        pipe(**texts, height=64, width=64, num_inference_steps=2, guidance_scale=7.0, output_type="latent")
    return 2


def by_modular_diffusers():
    sys.path.insert(0, str(Path(__file__).parents[1] / "adapters" / "diffusers"))
    from tiny_modular import modular, run

    run(
        "StableDiffusion3AutoBlocks",
        modular("StableDiffusion3AutoBlocks"),
        PosteriorMeanCappedGuidance(7.0, 1.05),
    )
    return 3


def by_comfyui():
    """Forge calls the same hook with the same arguments."""
    x, c, u = velocities(2, 4, 4, 4)
    hook = PostCFG(Cap(1.05))
    hook({
        "denoised": u + 7 * (c - u), "cond_denoised": c, "uncond_denoised": u, "input": x,
        "sigma": torch.tensor([0.5, 0.5]), "cond_scale": 7.0, "uncond": [{}],
    })  # fmt: skip
    return 1


def by_substitution():
    class Network(nn.Module):
        def forward(self, x, t):
            return torch.cat([0.5 - x[:2], -x[2:]])

    network, x = Network(), velocities(2, 8)[0]
    with substituted(network, Cap(1.05), scale=7.0):
        for t in (0.0, 0.5):
            network(torch.cat([x, x]), torch.tensor(t))
    return 2


def by_diffsynth():
    class FlowMatchScheduler:
        sigmas, timesteps = SIGMAS[:-1], 1000 * SIGMAS[:-1]

    class Pipeline:
        scheduler = FlowMatchScheduler()

        def cfg_guided_model_fn(self, model_fn, cfg_scale, shared, positive, negative, **others):
            c, u = model_fn(**shared, **positive, **others), model_fn(**shared, **negative, **others)
            return u + cfg_scale * (c - u)

    pipe, x = Pipeline(), velocities(2, 8)[0]
    with diffsynth.guided(pipe, Cap(1.05)):
        pipe.cfg_guided_model_fn(
            lambda latents, to, **others: latents - to, 5.0, {"latents": x}, {"to": 1.0}, {"to": 0.2},
            timestep=FlowMatchScheduler.timesteps[0], progress_id=0,
        )  # fmt: skip
    return 1


def by_sglang():
    class FlowMatchEulerDiscreteScheduler:
        sigmas = SIGMAS

    x, c, u = velocities(2, 8)
    batch = SimpleNamespace(scheduler=FlowMatchEulerDiscreteScheduler(), latents=x)
    follower = sglang.Follower(Cap(1.05))
    for _ in range(2):
        follower.combine(c, u, u + 5 * (c - u), batch)
    return 2


WAYS = (
    by_sample, by_trajectory, by_manifold_sample, by_guide, by_diffusers, by_modular_diffusers, by_comfyui,
    by_substitution, by_diffsynth, by_sglang,
)  # fmt: skip
