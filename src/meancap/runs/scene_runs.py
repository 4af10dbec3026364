"""Prompts and configurations of the scenes' study."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..rules import Rule
from ..scenes import draw, prompt_of
from ..scenes.model import SceneModel
from .config import RunConfig, sample_seed
from .prepare import SceneSource


def complete_and_partial(count: int, seed: int) -> list[str]:
    """Prompts of the law: the first half complete, each word of the others open with probability 1/2."""
    g = torch.Generator().manual_seed(sample_seed(seed, 0))
    codes = draw(count, g).codes()
    unsaid = torch.rand(codes.shape, generator=g) < 0.5
    unsaid[: count // 2] = False
    return _sentences(torch.where(unsaid, -1, codes))


def with_negatives(count: int, seed: int) -> tuple[list[str], list[str]]:
    """Prompts that leave both colours open, and a colour that must not be there."""
    g = torch.Generator().manual_seed(sample_seed(seed, 1))
    codes = draw(count, g).codes()
    colours = codes[:, 1].clone()
    codes[:, 1] = codes[:, 3] = -1
    nothing = torch.full_like(codes, -1)
    nothing[:, 1] = colours
    return _sentences(codes), _sentences(nothing)


def _sentences(codes: Tensor) -> list[str]:
    return [str(prompt_of(row)) for row in codes.tolist()]


def scene_run(
    model: SceneModel, rule: Rule | str, prompts: Sequence[str], negatives: Sequence[str], **options: Any
) -> RunConfig:
    """The configuration of a run of these sentences."""
    config = RunConfig(
        model.name,
        rule=str(rule),
        **{"per_class": options.pop("each", 1), "steps": 16, "batch": 32, **options},
    )
    return SceneSource(model).prepare_lines(config, prompts, negatives).config
