"""The files for LTX-2, TRELLIS.2 and azula: on transcriptions of their hooks, and on the real ones."""

import importlib
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch

from integrations.hosts import capped_ltx2, capped_trellis2
from meancap import Cap, CapDisplacement

INF = float("inf")


def lengths(v):
    return v.double().flatten(1).norm(dim=1)


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


# LTX-2: a guider of four passes.


@dataclass(frozen=True)
class MultiModalGuider:
    """The formula of ltx-core 1.0.0."""

    params: SimpleNamespace

    def calculate(self, cond, uncond_text, uncond_perturbed, uncond_modality):
        p = self.params
        pred = cond + (p.cfg_scale - 1) * (cond - uncond_text) + p.stg_scale * (cond - uncond_perturbed)
        pred = pred + (p.modality_scale - 1) * (cond - uncond_modality)
        if p.rescale_scale != 0:
            pred = pred * (p.rescale_scale * cond.std() / pred.std() + 1 - p.rescale_scale)
        return pred


@pytest.fixture(params=["transcribed", "ltx_core"])
def guider(request):
    if request.param == "transcribed":
        return MultiModalGuider, SimpleNamespace
    module = pytest.importorskip("ltx_core.components.guiders", reason="not run: ltx-core is not installed")
    return module.MultiModalGuider, module.MultiModalGuiderParams


@pytest.mark.parametrize("rescale", [0.0, 0.7])
@pytest.mark.parametrize("rule", [Cap(1.1), CapDisplacement(1.1)], ids=str)
def test_ltx2s_conditions_share_one_cap(guider, rule, rescale):
    kind, params = guider
    one = kind(params(cfg_scale=4.0, stg_scale=1.0, modality_scale=3.0, rescale_scale=rescale))
    passes = [drawn(3, 6, 8, seed=i) for i in range(4)]
    sound = [drawn(3, 5, 4, seed=i) for i in range(4)]
    native = one.calculate(*passes)
    with capped_ltx2.capped(kind, Cap(INF)):
        assert torch.equal(one.calculate(*passes), native)
    with capped_ltx2.capped(kind, rule) as records:
        found = one.calculate(*passes)
        one.calculate(*sound)
    cond, moved = passes[0], found - passes[0]
    if rule.ball:
        assert bool((lengths(found) <= 1.1 * lengths(cond) * (1 + 1e-6)).all())
        assert bool((lengths(native) > 1.1 * lengths(cond)).any())
    else:
        assert bool((lengths(moved) <= 0.1 * lengths(cond) * (1 + 1e-6)).all())
    share = (lengths(moved) / lengths(native - cond)).float()[:, None, None]
    torch.testing.assert_close(moved, share * (native - cond), rtol=1e-4, atol=1e-5)
    assert (
        set(records) == {(3, 6, 8), (3, 5, 4)} and "of the host's own guidance" in records[3, 6, 8].summary()
    )
    assert torch.equal(one.calculate(*passes), native), "after the block the class is as it was"


@pytest.mark.parametrize(
    ("rule", "told"), [("CFG(3) | Cap(1.1)", "only a cap"), ("Cap(Linear(1.1, 1.3))", "has no time")]
)
def test_ltx2s_guider_takes_caps_that_need_no_time(rule, told):
    with pytest.raises(ValueError, match=told), capped_ltx2.capped(MultiModalGuider, rule):
        pass
    neutral = MultiModalGuider(
        SimpleNamespace(cfg_scale=1.0, stg_scale=0.0, modality_scale=1.0, rescale_scale=0.0)
    )
    with capped_ltx2.capped(MultiModalGuider, "Cap(1.1)") as records:
        neutral.calculate(drawn(2, 3, 4), 0.0, 0.0, 0.0)
        assert neutral.calculate(torch.tensor(0.0), 0.0, 0.0, 0.0) == 0, "a modality that is not made"
    assert records[2, 3, 4].summary() == "nothing was guided: every scale of the guider is neutral"


# TRELLIS.2: a sampler whose state is a tensor, or a list of voxels for each sample.


@dataclass(frozen=True)
class Voxels:
    """What is used of a SparseTensor."""

    feats: torch.Tensor
    layout: list[slice]

    def replace(self, feats):
        return Voxels(feats, self.layout)


def mix(a, x, b, y):
    return a * x + b * y if isinstance(x, torch.Tensor) else x.replace(a * x.feats + b * y.feats)


class Sampler:
    """The interval, the guidance and the Euler steps of TRELLIS.2, without its rescaling."""

    def __init__(self, sigma_min):
        self.sigma_min = sigma_min

    def _inference_model(self, model, x_t, t, cond, neg_cond, guidance_strength, guidance_interval):
        if not guidance_interval[0] <= t <= guidance_interval[1]:
            return model(x_t, t, cond)
        pos, neg = model(x_t, t, cond), model(x_t, t, neg_cond)
        return mix(guidance_strength, pos, 1 - guidance_strength, neg)

    def sample(self, model, noise, cond, neg_cond, steps, guidance_strength, guidance_interval, verbose):
        found = SimpleNamespace(samples=noise, pred_x_t=[], pred_x_0=[])
        for i in range(steps):
            t, x = 1 - i / steps, found.samples
            v = self._inference_model(
                model, x, t, cond, neg_cond=neg_cond, guidance_strength=guidance_strength,
                guidance_interval=guidance_interval,
            )  # fmt: skip
            noise_share = self.sigma_min + (1 - self.sigma_min) * t
            found.pred_x_0.append(mix(1 - self.sigma_min, x, -noise_share, v))
            found.samples = mix(1, x, -1 / steps, v)
            found.pred_x_t.append(found.samples)
        return found


def trellis(which):
    """A sampler and a maker of sparse tensors."""
    if which == "transcribed":
        return Sampler(1e-3), Voxels
    root = os.environ.get("TRELLIS2_PATH")
    if root is None:
        pytest.skip("not run: set TRELLIS2_PATH to a checkout of TRELLIS.2")
    for name in ("trellis2", "trellis2.pipelines", "trellis2.modules"):  # without the models that they import
        module = sys.modules[name] = ModuleType(name)
        module.__path__ = [str(Path(root, *name.split(".")))]
    sampler = importlib.import_module("trellis2.pipelines.samplers").FlowEulerGuidanceIntervalSampler(1e-3)
    sparse = importlib.import_module("trellis2.modules.sparse.basic").VarLenTensor
    return sampler, sparse


def velocity(x, t, cond):
    """Towards `cond` times one vector, with a mean that is a smooth function of the state."""
    return x * 0.9 - cond * 0.7 if isinstance(x, torch.Tensor) else x.replace(x.feats * 0.9 - cond * 0.7)


@pytest.mark.parametrize("which", ["transcribed", "its files"])
@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_trellis2s_samplers_keep_the_bound_for_each_sample(which, kind):
    sampler, sparse = trellis(which)
    layout = [slice(0, 3), slice(3, 10)]
    noise = drawn(2, 4, 3, 3) if kind == "dense" else sparse(drawn(10, 4), layout)
    call = {"cond": 1.0, "neg_cond": -0.5, "steps": 4, "guidance_strength": 5.0,
            "guidance_interval": (0.2, 0.8), "verbose": False}  # fmt: skip

    def run(state=noise):
        return sampler.sample(velocity, state, **call)

    def rows(v):
        if kind == "dense":
            return list(v)
        return [v.feats[one] for one in v.layout]

    native = run()
    with capped_trellis2.guided(sampler, Cap(INF)):
        assert all(torch.equal(a, b) for a, b in zip(rows(run().samples), rows(native.samples), strict=True))
    with capped_trellis2.guided(sampler, Cap(1.05)) as record:
        run()
        found = run()
    assert len(record) == 3 and record.unguided == 1 and len(record.beside) == (kind == "sparse")
    broken = []
    for result in (found, native):
        states = [noise, *result.pred_x_t[:-1]]
        for t, x, mean in zip((1, 0.75, 0.5, 0.25), states, result.pred_x_0, strict=True):
            s = 1e-3 + (1 - 1e-3) * t
            for one, m in zip(rows(x), rows(mean), strict=True):
                m_c = (1 - 1e-3) * one - s * velocity(one, t, 1.0)
                broken.append(float(m.double().norm() / m_c.double().norm()) > 1.05 * (1 + 1e-5))
    assert not any(broken[:8]) and any(broken[8:])
    if kind == "sparse":  # a sample does not depend on the others
        with capped_trellis2.guided(sampler, Cap(1.05)):
            alone = run(sparse(noise.feats[layout[1]], [slice(0, 7)]))
        assert torch.equal(rows(alone.samples)[0], rows(found.samples)[1])
    assert "_inference_model" not in vars(sampler)
    with pytest.raises(TypeError, match="a flow sampler"), capped_trellis2.guided(object(), Cap(1.1)):
        pass


# azula: a denoiser of posterior means.


class CFGDenoiser(torch.nn.Module):
    def __init__(self, denoiser):
        super().__init__()
        self.denoiser = denoiser

    schedule = property(lambda self: self.denoiser.schedule)


@pytest.mark.parametrize("which", ["transcribed", "azula"])
def test_azulas_denoiser_keeps_the_bound(which, monkeypatch):
    monkeypatch.delitem(sys.modules, "integrations.hosts.capped_azula", raising=False)
    if which == "transcribed":
        posterior = type("DiracPosterior", (SimpleNamespace,), {})
        parts = {
            "azula.denoise": {"DiracPosterior": posterior},
            "azula.guidance": {"CFGDenoiser": CFGDenoiser},
        }
        for name, contents in ({"azula": {}} | parts).items():
            module = ModuleType(name)
            vars(module).update(contents)
            monkeypatch.setitem(sys.modules, name, module)
    else:
        posterior = pytest.importorskip("azula.denoise", reason="not run: no azula").DiracPosterior
    capped_azula = importlib.import_module("integrations.hosts.capped_azula")

    class Means(torch.nn.Module):
        def schedule(self, t):
            return 1 - t, t

        def forward(self, x_t, t, label=0.0):
            return posterior(mean=0.5 * x_t + label)

    def run(denoiser, guidance=4.0):
        x, means = drawn(3, 5), []
        for t, s in ((1.0, 0.7), (0.7, 0.3), (0.3, 0.0)):
            mean = denoiser(x, torch.tensor(t), positive={"label": 0.4}, guidance=guidance).mean
            means.append((0.5 * x + 0.4, 0.5 * x, mean))
            x = mean + s / t * (x - mean)
        return means

    free = run(capped_azula.RuleDenoiser(Means(), Cap(INF)))
    assert all(torch.equal(m, c + 4.0 * (c - u)) for c, u, m in free)
    denoiser = capped_azula.RuleDenoiser(Means(), "Cap(1.05)")
    run(denoiser)
    found = run(denoiser)
    assert all(bool((lengths(m) <= 1.05 * lengths(c) * (1 + 1e-6)).all()) for c, u, m in found)
    assert any(bool((lengths(m) > 1.05 * lengths(c)).any()) for c, u, m in free)
    assert len(denoiser.session.record) == 3 and "requested scale 5.0" in denoiser.session.record.summary()
