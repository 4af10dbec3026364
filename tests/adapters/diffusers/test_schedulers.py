"""The posterior mean read off a scheduler is the one it uses itself; the paper's grid is pinned."""

import diffusers
import numpy as np
import pytest
import torch
from tiny_pipelines import call, pipeline

from meancap import Cap
from meancap.adapters.diffusers import guided
from meancap.adapters.diffusers.schedulers import FAMILIES, PathReader, family_of

PLAIN = {"clip_sample": False, "thresholding": False}
KINDS = {
    "DDIMScheduler": ("epsilon", "v_prediction", "sample"),
    "DDPMScheduler": ("epsilon", "v_prediction", "sample"),
    "CogVideoXDDIMScheduler": ("epsilon", "v_prediction", "sample"),
    "DPMSolverMultistepScheduler": ("epsilon", "v_prediction", "sample", "flow_prediction"),
    "DPMSolverSinglestepScheduler": ("epsilon", "v_prediction", "sample", "flow_prediction"),
    "UniPCMultistepScheduler": ("epsilon", "v_prediction", "sample", "flow_prediction"),
    "DEISMultistepScheduler": ("epsilon", "v_prediction", "sample", "flow_prediction"),
    "SASolverScheduler": ("epsilon", "v_prediction", "sample", "flow_prediction"),
    "EulerDiscreteScheduler": ("epsilon", "v_prediction", "sample"),
    "EulerAncestralDiscreteScheduler": ("epsilon", "v_prediction"),
    "HeunDiscreteScheduler": ("epsilon", "v_prediction", "sample"),
    "LMSDiscreteScheduler": ("epsilon", "v_prediction", "sample"),
    "KDPM2AncestralDiscreteScheduler": ("epsilon", "v_prediction"),
    "CosineDPMSolverMultistepScheduler": ("epsilon", "v_prediction"),
    "EDMEulerScheduler": ("epsilon", "v_prediction"),
    "EDMDPMSolverMultistepScheduler": ("epsilon", "v_prediction"),
}
PAIRS = [(name, kind) for name, kinds in KINDS.items() for kind in kinds]
SHAPE = (2, 4, 8, 8)


def made(name, kind):
    if name == "CosineDPMSolverMultistepScheduler":
        pytest.importorskip("torchsde")
    cls = getattr(diffusers, name)
    known = cls._get_init_keys(cls)
    wanted = PLAIN | {"prediction_type": kind, "algorithm_type": "dpmsolver++"}
    if name in ("DEISMultistepScheduler", "SASolverScheduler"):
        wanted.pop("algorithm_type")
    if kind == "flow_prediction":
        wanted |= {"use_flow_sigmas": True}
    return cls(**{k: v for k, v in wanted.items() if k in known})


def own_mean(scheduler, result):
    """What the scheduler itself takes for the data: stated by its step, or kept from its conversion."""
    stated = getattr(result, "pred_original_sample", None)
    return scheduler.model_outputs[-1] if stated is None else stated


@pytest.mark.parametrize(("name", "kind"), PAIRS)
def test_the_mean_is_the_schedulers_own(name, kind):
    scheduler, reader = made(name, kind), PathReader()
    scheduler.set_timesteps(10)
    drawn = torch.Generator().manual_seed(0)
    x = torch.randn(SHAPE, generator=drawn) * getattr(scheduler, "init_noise_sigma", 1.0)
    for t in scheduler.timesteps:
        out = torch.randn(SHAPE, generator=drawn)
        scheduler.scale_model_input(x, t)
        edge = reader.edge(scheduler, t)
        result = scheduler.step(out, t, x)
        own, found = own_mean(scheduler, result), edge.a * x.double() + edge.k * out.double()
        if (
            name == "DEISMultistepScheduler"
        ):  # keeps the noise that goes with its mean: alpha m + sigma noise = x
            alpha, sigma = scheduler._sigma_to_alpha_sigma_t(
                scheduler.sigmas[scheduler.step_index - 1].double()
            )
            own, found = x, alpha * found + sigma * own
        assert float((found - own).norm() / own.norm()) < 5e-6
        x = result.prev_sample


@pytest.mark.parametrize(("name", "kind"), PAIRS)
def test_a_pipeline_is_native_under_an_infinite_cap_and_bounded_under_a_finite_one(name, kind):
    pipe = pipeline("StableDiffusionPipeline", scheduler=made(name, kind))
    native = call("StableDiffusionPipeline", pipe)
    with guided(pipe, Cap(float("inf"))) as record:
        assert torch.equal(call("StableDiffusionPipeline", pipe), native)
    gamma = float(record.stacked()["ratio"].max()) ** 0.5
    assert gamma > 1.00005
    with guided(pipe, Cap(gamma)) as record:
        call("StableDiffusionPipeline", pipe)
    assert record.stacked()["active"].any()
    assert float(record.stacked()["ratio"].max()) <= gamma * (1 + 1e-6)


@pytest.mark.parametrize(
    ("name", "inverted"),
    [
        ("FlowMatchEulerDiscreteScheduler", False),
        ("FlowMatchEulerDiscreteScheduler", True),
        ("FlowMatchHeunDiscreteScheduler", False),  # Heun has no inverted sigmas
    ],
)
def test_on_a_straight_line_the_mean_of_a_flow_is_its_end(name, inverted):
    """Noise and data are fixed and the velocity exact, so every step of every solver stays on the line."""
    options = {"shift": 3.0} | ({"invert_sigmas": True} if inverted else {})
    scheduler, reader = getattr(diffusers, name)(**options), PathReader()
    scheduler.set_timesteps(7)
    noise, data = torch.randn(2, *SHAPE, generator=torch.Generator().manual_seed(0))
    x, out = noise.clone(), data - noise if inverted else noise - data
    seen = []
    for t in scheduler.timesteps:
        edge = reader.edge(scheduler, t)
        seen.append(edge.t)
        torch.testing.assert_close(edge.a * x + edge.k * out, data, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(x, edge.t * data + (1 - edge.t) * noise, rtol=1e-5, atol=1e-5)
        x = scheduler.step(out, t, x).prev_sample
    assert seen[0] == 0 and seen == sorted(seen)


def test_every_family_is_tested_and_others_raise():
    assert {*KINDS, "FlowMatchEulerDiscreteScheduler", "FlowMatchHeunDiscreteScheduler"} == set(FAMILIES)
    for name in (
        "KDPM2DiscreteScheduler",
        "PNDMScheduler",
        "LCMScheduler",
        "TCDScheduler",
        "CogVideoXDPMScheduler",
    ):
        with pytest.raises(NotImplementedError, match=f"{name} has no posterior mean that was checked"):
            family_of(getattr(diffusers, name)())


def test_a_pipeline_with_such_a_scheduler_is_refused_at_the_door():
    """PNDM is what Stable Diffusion 1.5 ships with."""
    pipe = pipeline("StableDiffusionPipeline", scheduler=diffusers.PNDMScheduler(skip_prk_steps=True))
    before = set(vars(pipe)), set(vars(pipe.scheduler))
    words = r"DDIMScheduler.from_config\(pipe.scheduler.config\)"
    with pytest.raises(NotImplementedError, match=words), guided(pipe, Cap(1.1)):
        pass
    assert (set(vars(pipe)), set(vars(pipe.scheduler))) == before
    pipe.scheduler = diffusers.DDIMScheduler.from_config(pipe.scheduler.config)
    with guided(pipe, Cap(1.1)) as record:
        call("StableDiffusionPipeline", pipe)
    assert len(record) == 3


def test_the_timestep_is_never_trusted():
    """CogView4's clock shows a time that is not 1000 sigma; UniPC's is rounded to whole numbers."""
    pipe = pipeline("CogView4Pipeline")
    pipe.scheduler = diffusers.FlowMatchEulerDiscreteScheduler(
        base_shift=0.25,
        max_shift=0.75,
        base_image_seq_len=256,
        use_dynamic_shifting=True,
        time_shift_type="linear",
    )
    with guided(pipe, Cap(float("inf"))) as record:
        call("CogView4Pipeline", pipe)
    sigmas = pipe.scheduler.sigmas[:-1].double()
    assert float((pipe.scheduler.timesteps / 1000 - sigmas).abs().max()) > 0.02
    torch.testing.assert_close(record.stacked()["t"][:, 0], 1 - sigmas)


PAPER = (1.0, 0.960129321, 0.913348973, 0.857692301, 0.790368259, 0.707278490, 0.602150559, 0.464876026,
         0.278048784, 0.008928572, 0.0)  # fmt: skip


def test_the_papers_grid_for_sd35_is_pinned():
    """Ten steps, shift 3.0: the grid of the scheduler as released, which shifts its smallest sigma twice."""
    scheduler = diffusers.FlowMatchEulerDiscreteScheduler(num_train_timesteps=1000, shift=3.0)
    scheduler.set_timesteps(10)
    np.testing.assert_allclose(scheduler.sigmas.numpy(), PAPER, rtol=0, atol=1e-7)
    u = np.linspace(1, 0.002994012087583542, 10)
    np.testing.assert_allclose(scheduler.sigmas[:-1].numpy(), 3 * u / (1 + 2 * u), rtol=0, atol=1.2e-7)


def test_the_grid_can_be_pinned_through_the_pipeline_and_is_recorded():
    """With sigmas= the shift is applied once, so a release without the double shift gives the same grid."""
    pipe = pipeline("StableDiffusion3Pipeline")
    with guided(pipe, Cap(1.15)) as record:
        call(
            "StableDiffusion3Pipeline",
            pipe,
            num_inference_steps=10,
            sigmas=list(np.linspace(1, 0.002994012087583542, 10)),
        )
    np.testing.assert_allclose(record.about["sigmas"], PAPER, rtol=0, atol=1.2e-7)
    np.testing.assert_allclose(record.stacked()["t"][:, 0], 1 - np.array(PAPER[:-1]), rtol=0, atol=1.2e-7)
