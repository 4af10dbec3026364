"""Runs of the scenes: sentences, and negative ones where asked for, into a run folder.

Prompts take turns, so that every stretch of a run holds them in equal numbers. The grid is SD3's: shift 3
puts most evaluations where the state is mostly noise, which is where shapes and places are decided.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor

from ..diagnostics import Record
from ..drawing import draw, parse_prompt, prompt_of
from ..models.scenes import SceneModel
from ..rules import Rule, parse
from ..sampling import noise, sample, shifted
from .config import Item, RunConfig, sample_seed
from .generate import SOLVERS, Counted, MadeBlock, MakeBlock, meter_of, to_nhwc

SHIFT = 3.0


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
    model: SceneModel,
    rule: Rule | str,
    prompts: Sequence[str],
    negatives: Sequence[str],
    *,
    each: int = 1,
    steps: int = 16,
    solver: str = "euler",
    seed: int = 0,
    batch: int = 32,
    images: str = "png",
    diagnostics: bool = False,
    threads: int = 1,
) -> RunConfig:
    """The configuration of `each` samples of every prompt; a negative prompt may be empty."""
    if not prompts or len(prompts) != len(negatives):
        raise ValueError(
            f"a run needs prompts, and a negative one for each; got {len(prompts)} and {len(negatives)}"
        )
    for text in (*prompts, *negatives):
        parse_prompt(text)
    if solver not in SOLVERS:
        raise ValueError(f"known solvers are {', '.join(SOLVERS)}; got {solver!r}")
    weight = model.network.stem.weight
    lines = "\n".join(f"{p}\t{n}" for p, n in zip(prompts, negatives, strict=True))
    return RunConfig(
        model=model.name,
        model_sha256=model.sha256,
        rule=str(parse(rule) if isinstance(rule, str) else rule),
        times=shifted(steps, SHIFT),
        count=each * len(prompts),
        solver=solver,
        seed=seed,
        batch=batch,
        dtype=str(weight.dtype).removeprefix("torch."),
        images=images,
        diagnostics=diagnostics,
        device=weight.device.type,
        threads=threads,
        prompts_sha256=hashlib.sha256(lines.encode()).hexdigest(),
    )


def scene_blocks(
    model: SceneModel, config: RunConfig, prompts: Sequence[str], negatives: Sequence[str]
) -> MakeBlock:
    """The maker of a run's blocks, each filled up to a whole batch: no sample's bits depend on the count."""
    rule, solver = parse(config.rule), SOLVERS[config.solver]

    def make(block: int) -> MadeBlock:
        rows = range(block * config.batch, (block + 1) * config.batch)
        items = [Item(i, sample_seed(config.seed, i), prompt=prompts[i % len(prompts)]) for i in rows]
        against = [negatives[i % len(prompts)] for i in rows]
        predict = Counted(model.predict([item.prompt or "" for item in items], against))
        x = noise([item.seed for item in items], model.shape, device=model.device)
        record = Record() if config.diagnostics else None
        pictures = model.decode(sample(predict, rule, x, config.times, solver, record=record))
        kept = len(config.indices(block))
        records = [
            {"index": item.index, "seed": item.seed, "prompt": item.prompt, "evaluations": predict.count}
            | ({"negative": n} if n else {})
            for item, n in zip(items[:kept], against, strict=False)
        ]
        return MadeBlock(to_nhwc(pictures[:kept]), records, meter_of(record, kept))

    return make
