"""The block of the Hub: diffusers loads it from its folder, and the pipeline is then capped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import ModularPipelineBlocks
from tiny_modular import modular, run

from meancap.adapters.diffusers import PosteriorMeanCappedGuidance

FOLDER = Path(__file__).parents[3] / "integrations" / "huggingface" / "block"
SD3 = "StableDiffusion3AutoBlocks"


@pytest.fixture
def block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr("diffusers.utils.dynamic_modules_utils.HF_MODULES_CACHE", str(tmp_path))
    monkeypatch.setattr("sys.path", __import__("sys").path[:])
    return ModularPipelineBlocks.from_pretrained(str(FOLDER), trust_remote_code=True)


def test_a_pipeline_with_the_block_is_one_with_the_guider(block: Any) -> None:
    pipe = modular(SD3)
    expected = run(SD3, pipe, PosteriorMeanCappedGuidance(9.0, 1.02).bind(pipe))
    capped = modular(SD3, first=("cap", block))
    found = run(SD3, capped, None, cap_scale=9.0, cap_gamma=1.02)
    assert torch.equal(found, expected)
    assert capped.guider.record.stacked()["active"].any()
    assert {"cap_scale", "cap_gamma", "cap_form"} <= set(capped.blocks.input_names)
