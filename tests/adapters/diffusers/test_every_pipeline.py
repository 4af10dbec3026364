"""What holds for every pipeline in the table, with random weights."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import pytest
import torch
from spy import Spy
from tiny_pipelines import CASES, EVERY, call, pipeline

from meancap import Cap
from meancap.adapters.diffusers import LAYOUTS, guided, guided_pipelines
from meancap.adapters.diffusers.layouts import same_state
from meancap.adapters.diffusers.schedulers import is_flow

INF = float("inf")
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
# They make all predictions at any scale.
ALWAYS = {"DreamLitePipeline", "OmniGenPipeline", "Ideogram4Pipeline"}


@dataclass
class Runs:
    """One tiny pipeline and what its calls gave, each made when a law first asks for it."""

    name: str
    dtype: str
    judged: list[bool | None] = field(default_factory=list)  # whether the stepped state was the shown one

    @cached_property
    def pipe(self):
        return pipeline(self.name, DTYPES[self.dtype])

    @cached_property
    def spy(self):
        return Spy(self.name, self.pipe)

    @cached_property
    def native(self):
        self.spy.steps = []
        return call(self.name, self.pipe)

    @cached_property
    def unlimited(self):
        def judge(shown, stepped):
            self.judged.append(same_state(shown, stepped))
            return self.judged[-1]

        with pytest.MonkeyPatch.context() as patch, guided(self.pipe, Cap(INF)) as record:
            patch.setattr(guided_pipelines, "same_state", judge)
            found = call(self.name, self.pipe)
        return found, record.stacked()


@pytest.fixture(scope="module")
def runs(request):
    """Shared by the laws of one pipeline, which pytest runs one after another."""
    return Runs(*request.param)


def each(dtype, names, **more):
    return [pytest.param((name, dtype), id=f"{name}-{dtype}", **more) for name in names]


FULL = each("float32", list(CASES))
BOTH = FULL + each("bfloat16", list(CASES), marks=pytest.mark.slow)
SWITCHED = each("float32", [n for n, case in CASES.items() if case.scale and n not in ALWAYS])


def rescaled(name):
    """Whether a pipeline's result is no multiple of the gap."""
    return LAYOUTS[name].rows == "row" or "p" in LAYOUTS[name].order


def test_every_pipeline_of_the_table_is_run_here():
    assert set(EVERY) == set(LAYOUTS)


@pytest.mark.parametrize("runs", BOTH, indirect=True)
def test_an_infinite_cap_gives_the_native_result_bit_for_bit(runs):
    native = runs.native
    found, record = runs.unlimited
    assert torch.equal(native, found)
    assert float(record["gap"].max()) > 0
    assert torch.equal(native, call(runs.name, runs.pipe)), "leaving the block should restore the pipeline"


@pytest.mark.parametrize("runs", BOTH, indirect=True)
def test_the_bound_holds_on_what_the_scheduler_receives(runs):
    spy = runs.spy
    native = runs.native
    largest = float(runs.unlimited[1]["ratio"].max())
    assert largest > 1.0005, "the weights should make guidance lengthen the mean, or nothing is shown"
    gamma, spy.steps = largest**0.5, []
    with guided(runs.pipe, Cap(gamma)) as record:
        capped = call(runs.name, runs.pipe)
    assert not torch.equal(native, capped)
    assert bool(record.stacked()["active"].any())
    allowed = torch.tensor(4 * 2.0**-24 if runs.dtype == "float32" else 2e-3, dtype=torch.float64)
    if not is_flow(runs.pipe.scheduler):  # a mean is a small difference of large terms near pure noise
        allowed = allowed * spy.cancelled()
    assert bool((spy.ratios() <= gamma * (1 + allowed)).all())


@pytest.mark.parametrize("runs", BOTH, indirect=True)
def test_the_state_that_is_stepped_is_judged_to_be_the_one_that_was_shown(runs):
    assert len(runs.unlimited[0]) > 0 and runs.judged == [True]


@pytest.mark.parametrize("runs", FULL, indirect=True)
def test_the_pipelines_scale_is_read_as_listed(runs):
    asked = runs.unlimited[1]["asked"]
    if rescaled(runs.name):
        assert bool((asked > 1).all())
    else:
        # A formula that is not described is its own unit: 2 is all of it.
        scale = 2.0 if LAYOUTS[runs.name].caps_only else 7.0 + LAYOUTS[runs.name].offset
        expected = torch.full_like(asked, scale)
        torch.testing.assert_close(asked, expected, rtol=2e-4, atol=0)


@pytest.mark.parametrize("runs", SWITCHED, indirect=True)
def test_guidance_off_says_that_there_is_nothing_to_guide(runs):
    name, pipe, case = runs.name, runs.pipe, CASES[runs.name]
    if "p" in LAYOUTS[name].order:  # some keep the perturbed attention after a call
        pipe = pipeline(name)
    off = {case.scale: 1.0 - LAYOUTS[name].offset}
    off |= {k: v for k, v in {"pag_scale": 0.0, "audio_guidance_scale": 1.0}.items() if k in case.call}
    native = call(name, pipe, **off)
    with pytest.warns(UserWarning, match=f"nothing to guide: {name}"), guided(pipe, Cap(1.1)):
        assert torch.equal(call(name, pipe, **off), native)
    told = "only a cap can act" if LAYOUTS[name].caps_only else "needs two predictions"
    with pytest.raises(ValueError, match=told), guided(pipe, "CFG(7)"):
        call(name, pipe, **off)
