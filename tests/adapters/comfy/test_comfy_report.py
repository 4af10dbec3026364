"""What a run says of itself, in words and as a picture: needs no ComfyUI."""

import pytest
import torch
from hook_arguments import arguments

from meancap.adapters.comfy.hooks import PostCFG, draw_run

LEVELS = [1.0, 0.75, 0.5, 0.25, 0.0]


def run(rule="Cap(1.1)", batch=1, sigmas=LEVELS[:-1], calm=(), **options):
    """A run in which the workflow asks for CFG 7, but hardly moves the mean in the steps named by `calm`."""
    hook = PostCFG(rule)
    for i, sigma in enumerate(sigmas):
        args = arguments(batch, seed=i, sigma=sigma, levels=LEVELS, **options)
        if i in calm:
            args["uncond_denoised"] = args["cond_denoised"] * (1 - 1e-3)
            args["denoised"] = args["uncond_denoised"] + 7e-3 * args["cond_denoised"]
        hook(args)
    return hook.run


def test_the_headline_counts_capped_steps_and_gives_the_scale_that_was_left():
    found = run(calm=(2, 3))
    s = found.stacked()
    assert found.headline() == f"capped 2/4 steps, effective CFG {float(s['scale'].min()):.1f} to 7.0"
    assert 1.0 < float(s["scale"][0, 0]) < 6.9
    assert "requested CFG 7.0; largest |m|/|m_c| 1.100" in found.text()


def test_model_calls_are_not_called_steps_where_a_sampler_makes_more():
    found = run(sigmas=[1.0, 0.75, 0.75, 0.5, 0.5, 0.25, 0.25])
    assert found.headline().startswith("capped 7/7 model calls")


def test_every_sample_of_a_batch_gets_its_line():
    lines = run(batch=3).text().splitlines()
    assert [line.split(":")[0] for line in lines[-3:]] == ["sample 1", "sample 2", "sample 3"]
    assert "(3 samples)" in lines[0]


def test_a_user_is_told_when_cfg_no_longer_matters_and_when_nothing_happened():
    assert "a higher cfg changes nothing" in run().text()
    assert "a higher cfg changes nothing" not in run(calm=(1,)).text()
    assert "bit for bit" in run("Cap(100)").text()
    assert "bit for bit" not in run("CFG(1.5) | Cap(100)").text()
    idle = run(scale=1.0)
    assert idle.headline() == "did nothing in 4 steps"
    assert "Distilled models" in idle.text()
    hook = PostCFG("Cap(1.1)", start=0.99)
    hook(arguments(sigma=0.9))
    assert "between start and end" in hook.run.text()
    assert "has not been sampled" in PostCFG("Cap(1.1)").run.text()


def test_outside_start_and_end_the_report_tells_what_the_sampler_used():
    """Steps keep their own numbers, and the uncapped rest is told: it is where the result may burn."""
    pytest.importorskip("PIL")
    levels = [1.0, 0.9, 0.7, 0.5, 0.3, 0.1, 0.0]
    hook = PostCFG("Cap(1.1)", start=0.5, end=0.9)  # SD3's shift: from sigma 0.75 down to 0.25
    for i, sigma in enumerate(levels[:-1]):
        hook(arguments(1, seed=i, sigma=sigma, levels=levels))
    found = hook.run
    s = found.stacked()
    assert found.at == [1, 2, 3, 4, 5, 6] and found.outside == [0, 1, 5]
    assert s["active"][:, 0].tolist() == [False, False, True, True, True, False]
    used = float(s["ratio"][[0, 1, 5]].max())
    assert used > 1.5
    assert "requested CFG 7.0; largest |m|/|m_c| 1.100" in found.text()
    assert (
        f"It acted on steps 3 to 5; outside, the workflow's own result was used: CFG 7.0, "
        f"largest |m|/|m_c| {used:.3f}." in found.text()
    )
    assert found.contents()["about"]["outside_start_and_end"] == [1, 2, 6]
    assert colours(draw_run(found))[0] > 100


def test_functions_that_act_after_the_cap_are_named():
    hook = PostCFG("Cap(1.1)")

    def cfg_zero_star(args):
        return args["denoised"]

    alone, followed = arguments(), arguments()
    alone["model_options"]["sampler_post_cfg_function"] = [cfg_zero_star, hook]
    hook(alone)
    assert "Acting after" not in hook.run.text()
    followed["model_options"]["sampler_post_cfg_function"] = [hook, cfg_zero_star]
    hook(followed)
    assert "Acting after this node: cfg_zero_star." in hook.run.text()
    assert hook.run.contents()["about"]["acting_after"] == ["cfg_zero_star"]


def test_a_run_is_known_by_the_latent_it_made():
    hook = PostCFG("Cap(1.1)")
    latents = [torch.randn(2, 4, 16, 16) for _ in range(3)]
    for latent in latents:
        hook.begin()
        hook(arguments())
        hook.run.made(latent)
    first, second, third = hook.runs
    assert [hook.run_of(v.clone()) for v in latents] == [first, second, third]
    assert hook.run_of(torch.randn(2, 4, 16, 16)) is third
    assert hook.run_of(latents[0].reshape(2, 4, 8, 32)) is third
    for _ in range(30):
        hook.begin()
        hook(arguments())
    assert len(hook.runs) == 8


def colours(picture):
    """How many pixels come near each of the first line colours."""
    pixels = (picture[0] * 255).reshape(-1, 3)
    wanted = torch.tensor([[0x0B, 0x6F, 0xB8], [0xD1, 0x49, 0x5B]]).float()
    return [int(((pixels - colour).abs().amax(1) < 30).sum()) for colour in wanted]


@pytest.mark.parametrize("sigmas", [LEVELS[:1], LEVELS[:-1], LEVELS[:-1] * 30])
def test_the_picture_shows_one_line_per_sample_and_more_where_it_was_capped(sigmas):
    pytest.importorskip("PIL")
    one, two = (draw_run(run(batch=n, sigmas=sigmas)) for n in (1, 2))
    assert one.shape == (1, 600, 768, 3) and one.dtype == torch.float32
    assert float(one.min()) >= 0 and float(one.max()) <= 1
    assert colours(one)[0] > 100 and colours(one)[1] == 0
    assert colours(two)[1] > 100
    free = draw_run(run("Cap(100)", sigmas=sigmas))
    assert colours(free)[0] < colours(one)[0]  # no dots


def test_a_run_without_guidance_has_a_picture_of_words():
    pytest.importorskip("PIL")
    picture = draw_run(run(scale=1.0))
    assert colours(picture) == [0, 0] and float(picture.min()) < 0.3
