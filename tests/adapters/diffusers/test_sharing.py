"""Pipelines that share a denoiser or a scheduler: nobody takes another's predictions, or loses a hook."""

import threading
import warnings

import diffusers
import pytest
import torch
from tiny_pipelines import call, pipeline

from meancap import Cap
from meancap.adapters.diffusers import guided

SD3, FLUX, TAP = "StableDiffusion3Pipeline", "FluxPipeline", "_meancap_tap"


def sibling(pipe, *, scheduler):
    """A second pipeline with the same models, and with the same scheduler or one of its own."""
    parts = dict(pipe.components)
    if not scheduler:
        parts["scheduler"] = type(pipe.scheduler).from_config(pipe.scheduler.config)
    made = type(pipe)(**parts)
    made.set_progress_bar_config(disable=True)
    return made


def together(*jobs):
    """Runs jobs in threads of their own; gives their results, or the exceptions they raised."""
    found = [None] * len(jobs)

    def work(i):
        try:
            found[i] = jobs[i]()
        except RuntimeError as error:
            found[i] = error

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(jobs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def in_turn(barrier):
    """A callback at which all threads wait for each other, so that their calls surely interleave."""

    def wait(pipe, i, t, values):
        barrier.wait(timeout=60)
        return values

    return wait


@pytest.mark.parametrize("name", [SD3, FLUX])
def test_threads_that_share_a_denoiser_get_what_they_get_alone(name):
    """One scheduler per request, one denoiser for all: how servers run diffusers."""
    first = pipeline(name)
    second = sibling(first, scheduler=False)
    rules = (Cap(1.03), Cap(1.2))

    def job(pipe, rule, seed, **more):
        with guided(pipe, rule):
            return call(name, pipe, seed=seed, **more)

    alone = [job(p, r, i) for i, (p, r) in enumerate(zip((first, second), rules, strict=True))]
    for _ in range(4):
        meet = in_turn(threading.Barrier(2))
        found = together(
            lambda meet=meet: job(first, rules[0], 0, callback_on_step_end=meet),
            lambda meet=meet: job(second, rules[1], 1, callback_on_step_end=meet),
        )
        assert all(torch.equal(a, b) for a, b in zip(found, alone, strict=True))


def test_a_native_thread_on_the_same_denoiser_is_neither_heard_nor_changed():
    first = pipeline(FLUX)
    second = sibling(first, scheduler=False)
    with guided(first, Cap(1.03)):
        capped = call(FLUX, first)
    native = call(FLUX, second, seed=1)
    meet = in_turn(threading.Barrier(2))
    with guided(first, Cap(1.03)) as record:
        found = together(
            lambda: call(FLUX, first, callback_on_step_end=meet),
            lambda: call(FLUX, second, seed=1, callback_on_step_end=meet),
        )
    assert torch.equal(found[0], capped) and torch.equal(found[1], native) and len(record) == 3


def test_one_pipeline_called_from_two_threads_is_refused():
    """Natively both would walk one scheduler's index and come out wrong."""
    pipe = pipeline(SD3)
    barrier = threading.Barrier(2)

    def job(seed):
        try:
            return call(SD3, pipe, seed=seed, callback_on_step_end=in_turn(barrier))
        finally:
            barrier.abort()  # the one that is refused never comes

    with guided(pipe, Cap(1.05)):
        found = together(lambda: job(0), lambda: job(1))
    refused = [one for one in found if isinstance(one, RuntimeError)]
    assert any("called from two threads" in str(one) for one in refused)


@pytest.mark.parametrize("name", [SD3, FLUX])
def test_calls_of_a_sibling_between_two_calls_leave_nothing_behind(name):
    first = pipeline(name)
    second = sibling(first, scheduler=False)
    native = call(name, second, seed=1)
    with guided(first, Cap(1.05)) as record:
        capped = call(name, first)
        for _ in range(3):
            assert torch.equal(call(name, second, seed=1), native)
        kept = getattr(first, TAP).heard.values()
        assert sum(len(heard.outputs) for heard in kept) <= getattr(first, TAP).layout.most
        assert len(record) == 3
        assert torch.equal(call(name, first), capped)


def test_a_sibling_called_in_the_middle_of_a_step_is_found_out():
    first = pipeline(FLUX)
    second = sibling(first, scheduler=False)

    def intrude(pipe, i, t, values):
        call(FLUX, second)
        return values

    with (
        pytest.raises(RuntimeError, match=r"predictions were made for one step of FluxPipeline"),
        guided(first, Cap(1.05)),
    ):
        call(FLUX, first, callback_on_step_end=intrude)


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled in place"])
def test_one_sibling_may_be_released_while_the_other_stays_guided(compiled):
    first = pipeline(SD3)
    if compiled:
        first.transformer.compile(backend="eager")
    second = sibling(first, scheduler=True)
    native = call(SD3, second)
    with guided(second, Cap(1.05)):
        capped = call(SD3, second)
    for staying, leaving in ((first, second), (second, first)):
        with guided(staying, Cap(1.05)):
            with guided(leaving, Cap(1.05)):
                call(SD3, leaving)
            assert torch.equal(call(SD3, staying), capped)
        assert torch.equal(call(SD3, staying), native)
        assert "step" not in vars(first.scheduler) and not first.transformer._forward_hooks
        assert not hasattr(first.transformer._compiled_call_impl, "hearers")


def test_a_scheduler_exchanged_and_put_back_is_guided_and_left_as_it_was():
    pipe = pipeline(SD3)
    own, other = pipe.scheduler, diffusers.FlowMatchEulerDiscreteScheduler(shift=1.0)
    native = call(SD3, pipe)
    with guided(pipe, Cap(1.05)) as record:
        capped = call(SD3, pipe)
        for scheduler in (other, own, other, own):
            pipe.scheduler = scheduler
            found = call(SD3, pipe)
            assert len(record) == 3 and record.stacked()["active"].any()
    assert torch.equal(found, capped)
    for scheduler in (own, other):
        assert not {"step", "set_timesteps"} & set(vars(scheduler))
    assert not pipe.transformer._forward_hooks and not hasattr(pipe, TAP)
    assert torch.equal(call(SD3, pipe), native)


def test_leaving_finishes_even_if_one_hook_cannot_be_taken_back():
    pipe = pipeline(SD3)

    def broken():
        raise OSError("no such hook")

    with pytest.raises(OSError, match="no such hook"), guided(pipe, Cap(1.05)):
        getattr(pipe, TAP)._undo.callback(broken)
    assert not pipe.transformer._forward_hooks and not hasattr(pipe, TAP)
    assert "step" not in vars(pipe.scheduler)


def test_guided_without_with_says_that_it_does_nothing():
    pipe = pipeline(SD3)
    with pytest.warns(UserWarning, match="write `with guided"):
        guided(pipe, Cap(1.05))
    with pytest.warns(UserWarning, match="write `with guided"):
        record = guided(pipe, Cap(1.05))
        with pytest.raises(AttributeError, match="before it is entered"):
            record.summary()
        del record
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with guided(pipe, Cap(1.05)):
            call(SD3, pipe)
