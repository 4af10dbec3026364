"""The arguments of a post-CFG hook written by hand, and an oracle that shares nothing with the library.

KEYS is what ComfyUI hands over; `test_comfy_inside.py` compares it with the real thing where that is present.
"""

from types import SimpleNamespace

import torch

from meancap import Prediction
from meancap.adapters.comfy.hooks import noise_levels

KEYS = {
    "denoised", "cond", "uncond", "cond_scale", "model", "uncond_denoised", "cond_denoised", "sigma",
    "model_options", "input",
}  # fmt: skip


class FlowSchedule:
    """x = (1 - sigma) data + sigma noise, with the shares of a run shifted as in SD3."""

    def noise_scaling(self, sigma, noise, latent_image, max_denoise=False):
        return sigma * noise + (1.0 - sigma) * latent_image

    def percent_to_sigma(self, percent):
        return 3 * (1 - percent) / (1 + 2 * (1 - percent))


class NoiseSchedule:
    """x = data + sigma noise."""

    def noise_scaling(self, sigma, noise, latent_image, max_denoise=False):
        return latent_image + sigma * noise

    def percent_to_sigma(self, percent):
        return 999999999.9 if percent <= 0 else 14.6 * (1 - percent)


def arguments(
    batch=2,
    shape=(4, 8, 8),
    *,
    scale=7.0,
    sigma=0.7,
    seed=0,
    flow=True,
    dtype=torch.float32,
    levels=None,
    **more,
):
    """What ComfyUI gives a hook behind plain CFG."""
    g = torch.Generator().manual_seed(seed)
    x, m_c, gap = (torch.randn(batch, *shape, generator=g).to(dtype) for _ in range(3))
    m_u = m_c - 0.3 * gap
    transformer = {} if levels is None else {"sample_sigmas": torch.tensor(levels)}
    schedule = FlowSchedule() if flow else NoiseSchedule()
    found = {
        "denoised": m_u + (m_c - m_u) * scale,
        "cond": [{}], "uncond": [{}], "cond_scale": scale,
        "model": SimpleNamespace(model_sampling=schedule),
        "uncond_denoised": m_u, "cond_denoised": m_c,
        "sigma": torch.full((batch,), sigma),
        "model_options": {"transformer_options": transformer},
        "input": x,
    }  # fmt: skip
    return {**found, **more}


def forge(args):
    """The same from Forge: no scale is told, and the model calls its schedule a predictor."""
    model = SimpleNamespace(predictor=args["model"].model_sampling)
    return {**{k: v for k, v in args.items() if k != "cond_scale"}, "model": model}


def furthest(m, nominal, gamma, form="ball"):
    """The furthest point from m towards nominal that the cap allows, by bisection in float64, per sample."""
    m, g = m.double(), (nominal.double() - m.double())
    out = []
    for m_i, g_i in zip(m, g, strict=True):
        size = m_i.norm()

        def inside(s, m_i=m_i, g_i=g_i, size=size):
            if form == "ball":
                return (m_i + s * g_i).norm() <= gamma * size
            return (s * g_i).norm() <= (gamma - 1) * size

        lo, hi = 0.0, 1.0
        if inside(1.0):
            lo = 1.0
        else:
            for _ in range(60):
                mid = (lo + hi) / 2
                lo, hi = (mid, hi) if inside(mid) else (lo, mid)
        out.append(m_i + lo * g_i)
    return torch.stack(out)


def prediction(args):
    """The host's two means."""
    how = noise_levels(args).place(args["sigma"])
    return Prediction.from_affine(args["input"], args["cond_denoised"], args["uncond_denoised"], how)
