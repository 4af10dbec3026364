"""Our rules beside the functions of diffusers 0.42.1, on latents, packed tokens and video."""

import pytest
import torch

from meancap import CFG, guided_velocity
from meancap.rules import Rescale, dynamic_threshold, fdg, mambo_g, parse

pytest.importorskip("diffusers.guiders")
from diffusers.guiders import (
    AdaptiveProjectedGuidance,
    AdaptiveProjectedMixGuidance,
    ClassifierFreeGuidance,
    ClassifierFreeZeroStarGuidance,
    MagnitudeAwareGuidance,
)
from diffusers.guiders.guider_utils import rescale_noise_cfg

SHAPES = [(2, 4, 8, 8), (2, 16, 12), (2, 3, 4, 8, 8)]
every_shape = pytest.mark.parametrize("shape", SHAPES, ids=str)


def velocities(shape, steps=8):
    g = torch.Generator().manual_seed(1)
    for i in range(steps):
        yield (0.1 * i, *(torch.randn(*shape, generator=g, dtype=torch.float64) for _ in range(3)))


def same(guider, rule, shape, *, rtol=1e-9):
    """A run of eight steps: diffusers speaks noise - data, which is minus our velocity."""
    state = rule.init()
    for step, (t, x, v_c, v_u) in enumerate(velocities(shape)):
        guider.set_state(step=step, num_inference_steps=8, timestep=torch.tensor(1000 * (1 - t)))
        guider.prepare_inputs({})
        theirs = -guider.forward(-v_c, -v_u).pred
        ours, state = guided_velocity(rule, x, t, v_c, v_u, state)
        torch.testing.assert_close(ours, theirs, rtol=rtol, atol=rtol)


PLAIN = {"guidance_scale": 4.0}
PROJECTED = {**PLAIN, "adaptive_projected_guidance_rescale": 6.0, "eta": 0.3}
ORIGINAL = {**PROJECTED, "guidance_scale": 3.0, "use_original_formulation": True}
MOMENTUM = {"adaptive_projected_guidance_momentum": -0.5}


@every_shape
@pytest.mark.parametrize(
    ("guider", "options", "text"),
    [
        (ClassifierFreeGuidance, PLAIN, "CFG(4)"),
        (ClassifierFreeGuidance, {**PLAIN, "use_original_formulation": True}, "CFG(5)"),
        (AdaptiveProjectedGuidance, PROJECTED, "apg(4, form='diffusers', eta=0.3, radius=6, momentum=None)"),
        (AdaptiveProjectedGuidance, PROJECTED | MOMENTUM, "apg(4, form='diffusers', eta=0.3, radius=6)"),
        (AdaptiveProjectedGuidance, ORIGINAL | MOMENTUM, "apg(4, eta=0.3, radius=6, space='velocity')"),
        (AdaptiveProjectedMixGuidance, {}, "apg(10, form='diffusers', radius=10, steps=6)"),
        (ClassifierFreeZeroStarGuidance, {**PLAIN, "zero_init_steps": 1}, "cfg_zero_star(4)"),
        (ClassifierFreeZeroStarGuidance, {**PLAIN, "zero_init_steps": 0}, "ZeroStar() | CFG(4)"),
    ],
    ids=str,
)
def test_a_guider_is_our_rule(guider, options, text, shape):
    rtol = 1e-6 if guider is ClassifierFreeZeroStarGuidance else 1e-9  # theirs rounds the factor to float32
    same(guider(**options), parse(text), shape, rtol=rtol)


@every_shape
def test_rescale(shape):
    for t, x, v_c, v_u in velocities(shape):
        guided = v_u + 4 * (v_c - v_u)
        ours, _ = guided_velocity(CFG(4) | Rescale(0.7), x, t, v_c, v_u)
        torch.testing.assert_close(ours, rescale_noise_cfg(guided, v_c, 0.7))


def test_mambo_g_on_packed_tokens_and_its_formula_where_diffusers_raises():
    same(MagnitudeAwareGuidance(guidance_scale=10.0, alpha=2.0), mambo_g(10, alpha=2.0), (2, 16, 12))
    for shape in ((2, 4, 8, 8), (2, 3, 4, 8, 8)):
        _, x, v_c, v_u = next(velocities(shape))
        ours, _ = guided_velocity(mambo_g(10), x, 0.4, v_c, v_u)
        ratio = (v_c - v_u).flatten(1).norm(dim=1) / v_u.flatten(1).norm(dim=1)
        weight = (9 * torch.exp(-8 * ratio)).reshape(-1, *[1] * (len(shape) - 1))
        torch.testing.assert_close(ours, v_c + weight * (v_c - v_u))


def test_dynamic_threshold_is_that_of_the_scheduler():
    from diffusers import DDPMScheduler

    scheduler = DDPMScheduler(thresholding=True, dynamic_thresholding_ratio=0.9, sample_max_value=1.5)
    x, v_c, v_u = (torch.randn(2, 3, 8, 8) for _ in range(3))
    ours, _ = guided_velocity(dynamic_threshold(4, quantile=0.9, most=1.5), x, 0.4, v_c, v_u)
    guided = x + 0.6 * (v_u + 4 * (v_c - v_u))
    torch.testing.assert_close(x + 0.6 * ours, scheduler._threshold_sample(guided), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("parallel", [None, (0.2, 0.7)])
def test_fdg(parallel):
    pytest.importorskip("kornia")
    from diffusers.guiders import FrequencyDecoupledGuidance

    guider = FrequencyDecoupledGuidance(
        guidance_scales=[9.0, 4.0],
        parallel_weights=parallel and list(parallel),
        use_original_formulation=True,
    )
    same(guider, fdg(10.0, 5.0, parallel=parallel), (2, 4, 16, 16))
