"""DiffSynth-Studio and SGLang-diffusion: their one hook each, by its signature.

Neither is installed here. The classes below have the signatures of their hooks as read in August
2026; where the real files are at hand (SGLANG_PATH, an installed diffsynth), the tests run on those as well.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from absent import stand_ins
from meancap import CFG, Cap, Prediction, guide
from meancap.adapters import diffsynth, sglang

INF = float("inf")
SIGMAS = torch.tensor([1.0, 0.8, 0.5, 0.2, 0.0], dtype=torch.float64)


class FlowMatchScheduler:
    sigmas = SIGMAS[:-1]
    timesteps = 1000 * sigmas


class FlowMatchEulerDiscreteScheduler:
    sigmas = SIGMAS


def velocity(x, condition, sigma):
    """Of a model that leads to one of two points."""
    return (x - condition * torch.linspace(1, 2, x.shape[-1], dtype=x.dtype)) / max(sigma, 0.1)


def capped_by_hand(x, c, u, sigma, rule):
    p = Prediction.from_mean(x, 1 - sigma, x - sigma * c, x - sigma * u)
    m, _ = guide(rule, p)
    return (x - m) / sigma


class Pipeline:
    """A pipeline of DiffSynth's kind, with one or two states."""

    def __init__(self, streams, counts=True):
        self.scheduler, self.streams, self.counts = FlowMatchScheduler(), streams, counts
        self.names = ["latents"] if streams == 1 else ["video_latents", "audio_latents"]

    def cfg_guided_model_fn(self, model_fn, cfg_scale, inputs_shared, inputs_posi, inputs_nega, **others):
        c = model_fn(**inputs_posi, **inputs_shared, **others)
        if cfg_scale == 1.0:
            return c
        u = model_fn(**inputs_nega, **inputs_shared, **others)
        if isinstance(c, tuple):
            return tuple(n + cfg_scale * (p - n) for p, n in zip(c, u, strict=True))
        return u + cfg_scale * (c - u)

    def __call__(self, cfg_scale=5.0):
        drawn, self.calls = torch.Generator().manual_seed(0), 0
        shared = {name: torch.randn(2, 6, generator=drawn).double() for name in self.names}

        def model_fn(condition, timestep, progress_id=0, **states):
            self.calls += 1
            out = tuple(velocity(states[name], condition, float(timestep) / 1000) for name in self.names)
            return out if self.streams > 1 else out[0]

        for i, timestep in enumerate(self.scheduler.timesteps):
            v = self.cfg_guided_model_fn(
                model_fn,
                cfg_scale,
                shared,
                {"condition": 1.0},
                {"condition": 0.2},
                timestep=timestep,
                **({"progress_id": i} if self.counts else {}),
            )
            for name, one in zip(self.names, v if isinstance(v, tuple) else (v,), strict=True):
                shared[name] = shared[name] + (SIGMAS[i + 1] - SIGMAS[i]) * one
        return [shared[name] for name in self.names]


def euler_by_hand(rule, streams, scale=5.0):
    drawn = torch.Generator().manual_seed(0)
    found = []
    for x in [torch.randn(2, 6, generator=drawn).double() for _ in range(streams)]:
        for now, after in zip(SIGMAS.tolist(), SIGMAS.tolist()[1:], strict=False):
            c, u = velocity(x, 1.0, now), velocity(x, 0.2, now)
            x = x + (after - now) * capped_by_hand(x, c, u, now, CFG(scale) | rule)
        found.append(x)
    return found


@pytest.mark.parametrize("streams", [1, 2])
def test_diffsynths_method_is_guided_and_left_as_it_was(streams):
    pipe = Pipeline(streams)
    native = pipe()
    with diffsynth.guided(pipe, Cap(INF)) as record:
        assert all(torch.equal(a, b) for a, b in zip(pipe(), native, strict=True))
    assert len(record) == 4 and len(record.beside) == streams - 1
    with diffsynth.guided(pipe, Cap(1.02)) as record:
        pipe()
        found = pipe()
    assert len(record) == 4 and record.stacked()["active"].any(), "every call is a run of its own"
    for ours, theirs in zip(found, euler_by_hand(Cap(1.02), streams), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)
    assert "cfg_guided_model_fn" not in vars(pipe)
    with diffsynth.guided(pipe, Cap(1.02)) as record:
        pipe(cfg_scale=1.0)
    assert record.summary() == "nothing was guided: cfg_scale was 1.0, which makes one prediction per step"


@pytest.mark.parametrize("rule", ["apg(5)", "CFG(5) | Cap(1.02)"])
def test_a_diffsynth_pipeline_that_does_not_count_its_steps_is_guided_alike(rule):
    """Its timestep tells the place, so that memory and record go through the whole run."""
    found = []
    for counts in (True, False):
        pipe = Pipeline(1, counts)
        with diffsynth.guided(pipe, rule) as record:
            pipe()
            found.append(pipe()[0])
        assert len(record) == 4
    assert torch.equal(*found)


def test_diffsynth_makes_one_prediction_where_the_rule_needs_one():
    pipe = Pipeline(1)
    with diffsynth.guided(pipe, "CFG(5) | Interval(0.1, 0.6)") as record:  # the steps at t = 0, .2, .5, .8
        found, calls = pipe(), pipe.calls
    assert calls == 6 and len(record) == 4
    torch.testing.assert_close(record.stacked()["scale"][:, 0].tolist(), [1.0, 5.0, 5.0, 1.0])
    x = torch.randn(2, 6, generator=torch.Generator().manual_seed(0)).double()
    for now, after in zip(SIGMAS.tolist(), SIGMAS.tolist()[1:], strict=False):
        c, u = velocity(x, 1.0, now), velocity(x, 0.2, now)
        x = x + (after - now) * (u + 5 * (c - u) if now in (0.8, 0.5) else c)
    torch.testing.assert_close(found[0], x, rtol=1e-10, atol=1e-10)


def test_what_diffsynth_cannot_tell_is_refused():
    pipe = Pipeline(1)
    outer, inner = diffsynth.guided(pipe, Cap(1.1)), diffsynth.guided(pipe, "CFG(9)")
    with pytest.raises(ValueError, match="would replace its result"), outer, inner:
        pass
    with pytest.raises(TypeError, match="cfg_guided_model_fn"), diffsynth.guided(object(), Cap(1.1)):
        pass
    pipe = Pipeline(1)
    pipe.scheduler = SimpleNamespace(timesteps=SIGMAS[:-1], sigmas=SIGMAS)
    with pytest.raises(NotImplementedError, match="not follow the linear"), diffsynth.guided(pipe, Cap(1.1)):
        pipe()
    pipe = Pipeline(1)
    pipe.names = ["mel"]
    with pytest.raises(NotImplementedError, match="keeps no latents"), diffsynth.guided(pipe, Cap(1.1)):
        pipe()


@pytest.mark.skipif(
    importlib.util.find_spec("diffsynth") is None, reason="not run: DiffSynth is not installed"
)
@pytest.mark.filterwarnings("ignore")
def test_diffsynths_own_method_is_guided():
    with stand_ins("torchvision", "torchaudio", "modelscope", "ftfy", "imageio", "pandas"):
        from diffsynth.diffusion.base_pipeline import BasePipeline

    class Real(Pipeline):
        cfg_guided_model_fn = BasePipeline.cfg_guided_model_fn

    pipe = Real(1)
    with diffsynth.guided(pipe, Cap(1.02)):
        torch.testing.assert_close(pipe()[0], euler_by_hand(Cap(1.02), 1)[0], rtol=1e-10, atol=1e-10)


@dataclasses.dataclass
class CFGPolicy:
    """With the signatures of SGLang's class."""

    branches: list[str] = dataclasses.field(default_factory=list)
    parallel_uses_serial_arithmetic: bool = False

    def build(self, batch, image_kwargs, pos_cond_kwargs, neg_cond_kwargs):
        return dataclasses.replace(self, branches=["conditional", "unconditional"])

    def combine(self, predictions, batch, cfg_scale, pipeline_config, *, cfg_parallel=False):
        return predictions[1] + cfg_scale * (predictions[0] - predictions[1])


def real_policy():
    root = os.environ.get("SGLANG_PATH")
    if root is None:
        return None
    path = Path(root, "python", "sglang", "multimodal_gen", "runtime", "distributed", "cfg_policy.py")
    spec = importlib.util.spec_from_file_location("cfg_policy", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["cfg_policy"] = module
    spec.loader.exec_module(module)
    return module.CFGPolicy


@pytest.mark.parametrize("which", ["its signature", "its file"])
def test_sglangs_policy_follows_the_state_and_keeps_the_bound(which):
    base = CFGPolicy if which == "its signature" else real_policy()
    if base is None:
        pytest.skip("not run: set SGLANG_PATH to a checkout of SGLang")
    template = sglang.capped(base, Cap(1.02))
    x = torch.randn(2, 6, generator=torch.Generator().manual_seed(0)).double()
    batch = SimpleNamespace(
        latents=x, scheduler=FlowMatchEulerDiscreteScheduler(), do_classifier_free_guidance=True,
        cfg_normalization=0, guidance_rescale=0.0,
    )  # fmt: skip
    config = SimpleNamespace(postprocess_cfg_noise=lambda batch, pred, cond: pred)
    for _ in range(2):  # a policy is built anew for every generation
        policy, state = template.build(batch, {}, {}, {}), x
        for now, after in zip(SIGMAS.tolist(), SIGMAS.tolist()[1:], strict=False):
            pair = [velocity(state, 1.0, now), velocity(state, 0.2, now)]
            state = state + (after - now) * policy.combine(pair, batch, 5.0, config)
        torch.testing.assert_close(state, euler_by_hand(Cap(1.02), 1)[0], rtol=1e-10, atol=1e-10)
        assert len(policy.follower.record) == 4 and policy.follower.record.stacked()["active"].any()


def test_sglangs_cfg_parallelism_calls_combine_and_an_older_one_is_refused():
    """With two branches on two ranks it adds weighted predictions by itself unless the policy is serial."""
    built = sglang.capped(CFGPolicy, Cap(1.02)).build(None, {}, {}, {})
    assert CFGPolicy().parallel_uses_serial_arithmetic is False and built.parallel_uses_serial_arithmetic
    with pytest.raises(NotImplementedError, match="CFG parallelism never calls"):
        sglang.capped(type("CFGPolicy", (), {}), Cap(1.02))


def test_what_sglangs_policy_cannot_follow_is_refused():
    policy = sglang.capped(CFGPolicy, Cap(1.02)).build(None, {}, {}, {})
    batch = SimpleNamespace(latents=torch.zeros(1, 4), scheduler=SimpleNamespace(sigmas=SIGMAS))
    with pytest.raises(NotImplementedError, match="Euler steps"):
        policy.combine([torch.ones(1, 4), torch.zeros(1, 4)], batch, 5.0, None)
    batch.scheduler = FlowMatchEulerDiscreteScheduler()
    with pytest.raises(NotImplementedError, match="sharded or edited"):
        policy.combine([torch.ones(1, 2), torch.zeros(1, 2)], batch, 5.0, None)
