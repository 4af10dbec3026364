"""Calibration by unguided calls of a pipeline is a pilot by hand; a pipeline can follow encoded pictures."""

import inspect

import pytest
import torch
from diffusers import AutoencoderKL
from PIL import Image
from spy import Spy
from tiny_pipelines import call, pipeline

from meancap import Cap
from meancap.adapters.diffusers import calibrate, guided
from meancap.rules.caps import load_calibration
from meancap.rules.path_matching import Follow, path_statistics
from meancap.schedules import Piecewise
from meancap_lab.runs.calibrate import encode_pictures

NAMES = ["StableDiffusion3Pipeline", "FluxPipeline", "WanPipeline", "StableAudio3Pipeline"]


class Asked:
    """A pipeline of the tests, called with a prompt: every prompt has embeddings of its own."""

    def __init__(self, name):
        self.name, self.pipe = name, pipeline(name)
        asked, cls = self, type(self.pipe)

        def prompted(self, prompt, **options):
            type(self).__call__, found = cls.__call__, None
            try:
                found = call(asked.name, self, seed=int(prompt), **options)
            finally:
                type(self).__call__ = prompted
            return found

        prompted.__signature__ = inspect.signature(cls.__call__)
        self.pipe.__class__ = type(cls.__name__, (cls,), {"__call__": prompted})


def prompts(count=8):
    return [str(i) for i in range(count)]  # two samples each


@pytest.mark.parametrize("name", NAMES)
def test_anchor_and_radii_are_those_of_a_pilot_by_hand(name, tmp_path):
    pipe = Asked(name).pipe
    found = calibrate(pipe, prompts())
    plain = pipeline(name)
    end = 1.0 if plain.scheduler.config.get("invert_sigmas", False) else 0.0
    m_u, m_c = [], []
    for i in range(8):
        spy = Spy(name, plain)
        with guided(plain, "CFG([1, 1])"):  # one scale per sample, for which both predictions are made
            call(name, plain, seed=i, generator=torch.Generator().manual_seed(i))
        rows = [(s["x"].double(), end - float(s["sigma"]), s["parts"]) for s in spy.steps]
        m_u.append(rows[0][0] + rows[0][1] * rows[0][2]["u"].double())
        m_c.append(torch.stack([x + k * parts["c"].double() for x, k, parts in rows]))
        del plain.scheduler.step
    anchor = torch.cat(m_u).flatten(2).mean((0, 2))
    away = torch.cat(m_c, dim=1) - anchor.reshape(1, 1, -1, *[1] * (m_c[0].dim() - 3))
    radii = away.flatten(2).norm(dim=2)
    torch.testing.assert_close(found.anchor.tensor(anchor), anchor, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(
        torch.tensor(found.radii["rms"]).double(), radii.square().mean(1).sqrt(), rtol=1e-4, atol=1e-6
    )
    torch.testing.assert_close(
        torch.tensor(found.radii["q90"]).double(), radii.quantile(0.9, dim=1), rtol=1e-4, atol=1e-6
    )
    assert found.samples == 16 and found.model == f"{name}: 8 calls, 24 steps, two predictions each"
    again = load_calibration(found.save(tmp_path / "model.json"))
    assert again.cap(level="q90") == found.cap(level="q90")


def test_the_cap_of_a_calibration_holds_its_bound_in_the_pipeline():
    name = "StableDiffusion3Pipeline"
    rule = calibrate(Asked(name).pipe, prompts()).cap(level="q50")
    assert isinstance(rule, Cap) and isinstance(rule.floor, Piecewise)
    pipe = pipeline(name)
    spy = Spy(name, pipe)
    with guided(pipe, rule) as record:
        call(name, pipe, guidance_scale=20.0)
    assert record.stacked()["active"].any()
    anchor = rule.anchor.tensor(torch.ones(1).double())[:, None, None]
    for seen, t in zip(spy.steps, record.stacked()["t"][:, 0].tolist(), strict=True):
        m, m_c = (seen["x"].double() - (1 - t) * v.double() for v in (seen["received"], seen["parts"]["c"]))
        bound = torch.maximum((m_c - anchor).flatten(1).norm(dim=1), torch.tensor(rule.floor(t)).double())
        assert bool(((m - anchor).flatten(1).norm(dim=1) <= bound * (1 + 1e-5)).all())


def test_too_few_samples_and_a_call_without_guidance_are_refused():
    asked = Asked("StableDiffusion3Pipeline")
    with pytest.raises(ValueError, match="at least 16 samples"):
        calibrate(asked.pipe, prompts(2))
    with pytest.raises(ValueError, match="needs two predictions"):
        calibrate(asked.pipe, prompts(), guidance_scale=1.0)
    assert not asked.pipe.transformer._forward_hooks


BLOCKS = {"down_block_types": ("DownEncoderBlock2D",) * 2, "up_block_types": ("UpDecoderBlock2D",) * 2}


@pytest.mark.parametrize(("name", "packed"), [("FluxPipeline", 4), ("StableDiffusion3Pipeline", 1)])
def test_a_pipeline_that_follows_encoded_pictures_ends_on_them(name, packed):
    """Examples encoded by its autoencoder are what its own loop ends on, plain or packed."""
    channels = pipeline(name).transformer.config.in_channels // packed
    vae = AutoencoderKL(
        **BLOCKS, block_out_channels=(8, 8), norm_num_groups=4, latent_channels=channels, shift_factor=0.1
    )
    pipe = pipeline(name, vae=vae)
    pictures = [Image.new("RGB", (64, 64), (90 * i, 80, 200)) for i in range(2)]
    latents = encode_pictures(pipe, pictures)
    with guided(pipe, Follow(latents)) as record:
        end = call(name, pipe, height=64, width=64)
    torch.testing.assert_close(end, latents, rtol=1e-4, atol=1e-5)
    run = path_statistics(record)
    assert run.times[0] == 0 and run.values.shape == (2, len(run.times), 3)
