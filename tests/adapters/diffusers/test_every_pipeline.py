"""What holds for every pipeline in the table, with random weights."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from spy import Spy
from tiny_pipelines import CASES, call, pipeline

from meancap import Cap
from meancap.adapters.diffusers import LAYOUTS, guided
from meancap.adapters.diffusers.schedulers import is_flow
from meancap.adapters.diffusers.table import READ, RUN

INF = float("inf")
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # numpy about diffusers
    FLOW = [name for name, case in CASES.items() if is_flow(case.scheduler())]


def rescaled(name: str) -> bool:
    """Whether a pipeline's result is no multiple of the gap."""
    return LAYOUTS[name].rows == "row" or "p" in LAYOUTS[name].order


def test_the_table_says_which_pipelines_are_run_here() -> None:
    assert set(CASES) | {"KolorsPipeline"} == RUN
    assert set(LAYOUTS) == RUN | READ


@pytest.mark.parametrize("dtype", ["float32", pytest.param("bfloat16", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", CASES)
def test_an_infinite_cap_gives_the_native_result_bit_for_bit(name: str, dtype: str) -> None:
    pipe = pipeline(name, DTYPES[dtype])
    native = call(name, pipe)
    with guided(pipe, Cap(INF)) as record:
        capped = call(name, pipe)
    assert torch.equal(native, capped)
    assert len(record) > 0 and float(record.stacked()["gap"].max()) > 0
    assert torch.equal(native, call(name, pipe)), "leaving the block should leave the pipeline as it was"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FLOW)
def test_the_bound_holds_on_what_the_scheduler_receives(name: str, dtype: str) -> None:
    pipe = pipeline(name, DTYPES[dtype])
    spy = Spy(name, pipe)
    native = call(name, pipe)
    largest = float(spy.ratios().max())
    assert largest > 1.0005, "the weights should make guidance lengthen the mean, or nothing is shown"
    gamma, spy.steps = largest**0.5, []
    with guided(pipe, Cap(gamma)) as record:
        capped = call(name, pipe)
    assert not torch.equal(native, capped)
    assert bool(record.stacked()["active"].any())
    allowed = 4 * 2.0**-24 if dtype == "float32" else 2e-3
    assert float(spy.ratios().max()) <= gamma * (1 + allowed)


@pytest.mark.parametrize("name", CASES)
def test_the_pipelines_scale_is_read_as_listed(name: str) -> None:
    pipe = pipeline(name)
    with guided(pipe, Cap(INF)) as record:
        call(name, pipe)
    asked = record.stacked()["asked"]
    if rescaled(name):
        assert bool((asked > 1).all())
    else:
        torch.testing.assert_close(
            asked, torch.full_like(asked, 7.0 + LAYOUTS[name].offset), rtol=2e-4, atol=0
        )


@pytest.mark.parametrize("name", [n for n in CASES if CASES[n].scale])
def test_guidance_off_says_that_there_is_nothing_to_guide(name: str) -> None:
    pipe = pipeline(name)
    off: dict[str, Any] = {CASES[name].scale: 1.0 - LAYOUTS[name].offset}
    off |= {k: v for k, v in {"pag_scale": 0.0, "audio_guidance_scale": 1.0}.items() if k in CASES[name].call}
    native = call(name, pipe, **off)
    with pytest.warns(UserWarning, match=f"nothing to guide: {name}"), guided(pipe, Cap(1.1)):
        assert torch.equal(call(name, pipe, **off), native)
    with pytest.raises(ValueError, match="needs two predictions"), guided(pipe, "CFG(7)"):
        call(name, pipe, **off)
