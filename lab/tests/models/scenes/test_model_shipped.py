"""The model that reads sentences: what its card says of it, and that it draws what it is asked for."""

from pathlib import Path

import pytest
import torch

from meancap import CFG, noise, sample
from meancap.files import sha256_of
from meancap.sampling import shifted
from meancap_lab.models.scenes import codes, detector, draw, measure_pictures, scenes
from meancap_lab.models.scenes.model import SHIPPED
from meancap_lab.runs.reproduce import PROMPTS, SHOWN_PROMPTS
from tools import demo_prompts

CARD = SHIPPED.with_suffix(".md")
WRONG = Path(__file__).parents[4] / "studies" / "axes" / "scenes_wrong.safetensors"
N = 24


@pytest.fixture(scope="module")
def model():
    return scenes()


def test_the_files_are_small_and_the_card_is_about_them():
    card = CARD.read_text(encoding="utf-8")
    for path in (SHIPPED, WRONG):
        assert path.stat().st_size <= 8_000_000
        assert sha256_of(path) in card
    assert f"{sum(p.numel() for p in scenes().network.parameters()):,} parameters" in card


def test_it_draws_what_a_sentence_asks_for(model):
    wanted = draw(N, torch.Generator().manual_seed(9)).codes()
    x = sample(model.predict(wanted), CFG(4.0), noise(range(N), model.shape), shifted(12))
    made = measure_pictures(detector(), model.decode(x), wanted)
    hits = {name: int(v.sum()) for name, v in made.right.items()}
    # Chance: colours 1 in 6, shapes 1 in 3, places 1 in 4.
    assert min(hits["colour 1"], hits["colour 2"], hits["place"]) >= N - 3
    assert min(hits["shape 1"], hits["shape 2"]) >= 0.7 * N


def test_a_negative_prompt_is_heeded(model):
    x, prompts = noise(range(N), model.shape), [""] * N
    shown = []
    for negative in (None, ["dark background"] * N):
        pictures = model.decode(sample(model.predict(prompts, negative), CFG(4.0), x, shifted(12)))
        background = measure_pictures(detector(), pictures, codes(prompts)).forms.background
        shown.append(int((background < 0.5).sum()))
    assert shown[1] <= shown[0] / 3


@pytest.mark.parametrize("seed", SHOWN_PROMPTS)
def test_the_demo_shows_prompts_that_the_model_misses_without_guidance_and_meets_with_it(seed):
    prompt = [PROMPTS[seed]]
    plain, guided = (
        measure_pictures(detector(), demo_prompts.pictures(prompt, rule, seed), codes(prompt))
        for rule in ("CFG(1)", "CFG(3)")
    )
    assert not plain.right["all"].item() and guided.right["all"].item() and guided.drawn.item()
