"""A pilot in a pipeline measures as by hand; a pipeline can follow encoded pictures."""

import pytest
import torch
from diffusers import AutoencoderKL
from PIL import Image
from spy import Spy
from tiny_pipelines import call, pipeline

from meancap import Cap
from meancap.adapters.diffusers import guided
from meancap.rules import Calibration, Pilot
from meancap.schedules import Piecewise
from meancap_lab.runs.calibrate import encode_pictures
from meancap_lab.runs.path_matching import Follow, path_statistics

NAMES = ["StableDiffusion3Pipeline", "FluxPipeline", "WanPipeline", "StableAudio3Pipeline"]


def piloted(name, runs=8, **options):
    """A pilot of some runs of two samples each, every run with embeddings of its own."""
    pilot, pipe = Pilot(), pipeline(name)
    with guided(pipe, pilot):
        for i in range(runs):
            call(name, pipe, seed=i, generator=torch.Generator().manual_seed(i), **options)
    return pilot


@pytest.mark.parametrize("name", NAMES)
def test_anchor_and_radii_are_those_of_a_pilot_by_hand(name, tmp_path):
    found = piloted(name)
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
    torch.testing.assert_close(found.cap().anchor.tensor(anchor), anchor, rtol=1e-5, atol=1e-6)
    for level, due in (("rms", radii.square().mean(1).sqrt()), ("q90", radii.quantile(0.9, dim=1))):
        made = torch.tensor(found.cap(level).floor.values).double()
        torch.testing.assert_close(made, due, rtol=1e-4, atol=1e-6)
    made = found.calibration("q90", model=name)
    assert made.examples == 16 and made.calls == 2 * 16 * 3
    assert Calibration.load(made.save(tmp_path / "rule.json")) == made


def test_the_cap_of_a_calibration_holds_its_bound_in_the_pipeline():
    name = "StableDiffusion3Pipeline"
    rule = piloted(name).cap("q50")
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
    with pytest.raises(ValueError, match="at least 16 samples"):
        piloted("StableDiffusion3Pipeline", 2).cap()
    with pytest.raises(ValueError, match="needs two predictions"):
        piloted("StableDiffusion3Pipeline", guidance_scale=1.0)


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
