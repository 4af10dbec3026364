"""Rules that rescale the whole guided prediction, not only the displacement.

    c    the conditional prediction, in the rule's space
    y    the guided one so far, c + g

They change the direction of y - c, never come back to plain CFG while they act, and on velocities they also
shrink the part that belongs to x.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..prediction import Prediction
from ..schedules import Scale, at
from ..tensors import per_sample, scalar_dtype
from .methods import form, method, recipe
from .rule import Map, Rule
from .scale import CFG
from .spaces import conditional_in, need_law, need_text, part, spread, time_passed
from .time import Temper

# The axes that a group spans, of those behind the batch.
_GROUPS = {"sample": slice(None), "channel": slice(1, None), "token": slice(-1, None), "pixel": slice(1)}


def _group_lengths(v: Tensor, per: str) -> Tensor:
    """The Euclidean length of every group, in float64, shaped to multiply v."""
    every = tuple(range(1, v.dim()))
    axes = every[_GROUPS[per]] or every  # a sample without such axes is one group
    lengths: Tensor = torch.linalg.vector_norm(v, dim=axes, keepdim=True, dtype=scalar_dtype(v.device))
    return lengths


def _times(ratio: Tensor, c: Tensor, g: Tensor) -> Tensor:
    """ratio (c + g) - c, without a difference of nearly equal tensors where the ratio is near 1."""
    return (ratio - 1).to(g.dtype) * c + ratio.to(g.dtype) * g


@part("0 <= rho", "0 <= least <= 1", per=_GROUPS, space=("velocity", "mean"))
class Renorm(Map):
    """Shrinks the guided prediction to at most rho times the length of the conditional one.

    per       'sample', 'token' (over the last axis), 'pixel' (over axis 1) or 'channel' (over all but axis 1)
    match     the length becomes rho |c| exactly, so that short predictions grow as well
    least     the smallest factor allowed
    strength  a factor on the result
    """

    rho: float = 1.0
    per: str = "sample"
    space: str = "velocity"
    match: bool = False
    least: float = 0.0
    strength: float = 1.0

    def __call__(self, g: Tensor, p: Prediction) -> Tensor:
        c = conditional_in(p, self.space)
        wanted, actual = self.rho * _group_lengths(c, self.per), _group_lengths(c + g, self.per)
        ratio = torch.where(actual == 0, 1.0, wanted / actual)
        if not self.match:
            ratio = ratio.clamp(self.least, 1.0)
        return _times(self.strength * ratio, c, g)


@part("0 <= low < high <= 1", space=("velocity", "mean"))
class EnergyMatch(Map):
    """Energy-preserving guidance (EP-CFG). low=.45, high=.55 is the robust form.

    formula: m <- m sqrt(E(m_c) / E(m)) after CFG; E of the squares between their quantiles low and high
    space: mean
    source: Zhang et al. 2024, arXiv 2412.09966
    evidence: second-hand; the abstract and summaries; which prediction it is stated for was not verified:
        space=
    use when: the energy of the conditional prediction should stay whatever the scale
    defaults:
        - any: low 0, high 1; robust low 0.45, high 0.55 (second-hand)
    """

    low: float = 0.0
    high: float = 1.0
    space: str = "mean"

    def __call__(self, g: Tensor, p: Prediction) -> Tensor:
        c = conditional_in(p, self.space)
        wanted, actual = self._energy(c), self._energy(c + g)
        ratio = torch.where(actual == 0, 1.0, wanted / actual).sqrt()
        return _times(ratio.reshape(-1, *[1] * (g.dim() - 1)), c, g)

    def _energy(self, v: Tensor) -> Tensor:
        squares = v.flatten(1).to(scalar_dtype(v.device)).square()
        if self.low == 0 and self.high == 1:
            return squares.sum(1)
        low, high = (_quantile(squares, q) for q in (self.low, self.high))
        inside = (squares >= low) & (squares <= high)
        return torch.where(inside, squares, 0.0).sum(1)


ep_cfg = recipe("ep_cfg", EnergyMatch, first=CFG, check=(0.044505, -1.722312, -0.07221, 0.355686))


@part(space=("noise", "velocity"))
class Multiply(Map):
    """Multiplies the whole guided prediction by `factor`, the state and the time held; put it after CFG.

    noise     m <- x / t + factor (m - x / t); the factor must go to 1 at t = 0, where the noise is x itself
    velocity  m <- x + factor (m - x)
    """

    factor: Scale
    space: str = "noise"

    def __call__(self, g: Tensor, p: Prediction) -> Tensor:
        more = at(self.factor, p.t) - 1
        if self.space == "velocity":
            return g + per_sample(more, g) * (conditional_in(p, "velocity") + g)
        # m - x / t is (t m - x) / t; divided first, a factor that goes to 1 fast enough stays regular at 0.
        seen = conditional_in(p, "score") + per_sample(p.t, g) * g
        return g + per_sample(more / time_passed(p.t), g) * seen


def _quantile(v: Tensor, q: float) -> Tensor:
    """The linear quantile along the last axis, kept; torch.quantile accepts at most 16 million elements."""
    if q == 1:
        return v.amax(-1, keepdim=True)
    ordered = v.sort(dim=-1).values
    place = q * (v.shape[-1] - 1)
    below = int(place)
    lower, upper = ordered[..., below, None], ordered[..., min(below + 1, v.shape[-1] - 1), None]
    return lower + (place - below) * (upper - lower)


@part("0 < quantile <= 1", "1 <= most (1 is a static clip)")
class Threshold(Map):
    """Dynamic thresholding (Imagen).

    formula: m <- clip(m, -s, s)/s with s the quantile of |m|, between 1 and most; after CFG
    space: mean
    source: Saharia et al. 2022, arXiv 2205.11487
    evidence: paper; implemented widely
    use when: the data are pixels between -1 and 1; latents are not
    defaults:
        - pixel models: quantile 0.995 (paper)
    notes:
        - diffusers' default sample_max_value 1 turns it into a static clip (most=1)
    """

    quantile: float = 0.995
    most: float | None = None

    def __call__(self, g: Tensor, p: Prediction) -> Tensor:
        m = p.m_c + g
        s = _quantile(m.flatten(1).abs(), self.quantile).clamp(1.0, self.most)
        s = s.reshape(-1, *[1] * (m.dim() - 1))
        return torch.minimum(torch.maximum(m, -s), s) / s - p.m_c


dynamic_threshold = recipe(
    "dynamic_threshold",
    Threshold,
    first=CFG,
    zero_gap=False,
    unit=False,
    check=(-0.889995, -0.326631, -0.260324, -1.666667),
)


@part("0 < quantile <= 1", "0 <= phi <= 1", measure=("AD", "STD"), start=("MEAN", "ZERO"))
class Mimic(Map):
    """Dynamic thresholding by a mimicked scale.

    quantile  of the guided values that counts as their spread; more extreme ones are clipped
    measure   'AD', the largest deviation from the channel's mean, or 'STD', the standard deviation
    start     'MEAN': deviations are scaled; 'ZERO': the values themselves
    phi       share of the result in a blend with the guided prediction
    separate  one spread per channel; otherwise one per sample

    A sample with one axis only is one channel.

    formula: per channel: deviations of m - x from their mean, clipped at R and scaled by r/R, r the largest
        deviation at the scale mimic, R the larger of r and the quantile of the guided ones
    space: velocity
    source: mcmonkey, sd-dynamic-thresholding
    evidence: mcmonkeyprojects/sd-dynamic-thresholding @ 73e4e045
    use when: a large scale should keep the range of values of a lower one
    defaults:
        - any: mimic 7, quantile 1, per channel, AD, MEAN, phi 1 (its node)
    notes:
        - the simple node takes one spread for the whole batch; ours (separate=False) takes one per sample
    """

    mimic: Scale = 7.0
    quantile: float = 1.0
    measure: str = "AD"
    start: str = "MEAN"
    phi: float = 1.0
    separate: bool = True

    def __call__(self, g: Tensor, p: Prediction) -> Tensor:
        base = conditional_in(p, "velocity")
        shape = (*g.shape[:2], -1) if g.dim() > 2 else (g.shape[0], 1, -1)
        guided = (base + g).reshape(shape)
        gap = p.delta
        mimicked = (base + per_sample(at(self.mimic, p.t) - 1, gap) * gap).reshape(shape)
        out = self._mimicked(guided, mimicked).reshape(g.shape)
        return self.phi * (out - base) + (1 - self.phi) * g

    def _mimicked(self, guided: Tensor, mimicked: Tensor) -> Tensor:
        mean = guided.mean(2, keepdim=True)
        centred = guided - mean
        wanted, actual = self._spread(mimicked - mimicked.mean(2, keepdim=True), 1.0), self._spread(centred)
        if self.start == "ZERO":
            return guided * _ratio(wanted, actual)
        if self.measure == "STD":
            return centred * _ratio(wanted, actual) + mean
        limit = torch.maximum(wanted, actual)
        return torch.minimum(torch.maximum(centred, -limit), limit) * _ratio(wanted, limit) + mean

    def _spread(self, centred: Tensor, q: float | None = None) -> Tensor:
        groups = centred if self.separate else centred.flatten(1)[:, None]
        if self.measure == "STD":
            return spread(groups)
        return _quantile(groups.abs(), self.quantile if q is None else q)


mimic = recipe("mimic", Mimic, first=CFG, scale=9.0, check=(1.533058, -4.8, -0.71157, 4.178512))


def _ratio(a: Tensor, b: Tensor) -> Tensor:
    """a / b, and 1 for the constant channel in which there is nothing to scale."""
    return torch.where(b == 0, 1.0, a / b)


@part("0 <= phi <= 1 (0 is off)", space=("velocity", "mean"))
class Rescale(Map):
    """Guidance rescale.

    formula: v <- phi v std(v_c)/std(v) + (1 - phi) v after CFG, std over a sample, unbiased
    space: velocity
    source: Lin et al., WACV 2024, arXiv 2305.08891
    evidence: diffusers rescale_noise_cfg
    use when: contrast and brightness rise with the scale
    defaults:
        - any: phi 0.7; the paper 0.5 to 0.75 (ComfyUI; paper)
    notes:
        - the paper's network predicts v; diffusers rescales any output; on means (space='mean') it differs
        - ComfyUI converts to a v-prediction by formulas that do not hold for flows
    """

    phi: float = 0.7
    space: str = "velocity"

    def __call__(self, g: Tensor, p: Prediction) -> Tensor:
        # (1 - t) v = m - x, and the factor 1 - t drops out of the ratio.
        base = conditional_in(p, self.space)
        if base.shape[1:].numel() == 1:
            return g  # one value has no spread to match
        guided = base + g
        before, after = (v.flatten(1).to(scalar_dtype(v.device)).std(1) for v in (base, guided))
        ratio = torch.where(after == 0, torch.ones_like(after), before / after)
        return per_sample(self.phi * ratio + (1 - self.phi), g) * guided - base


rescaled = recipe("rescaled", Rescale, first=CFG, check=(0.512466, -1.708221, 0.056941, 1.252696))


@method(zero_gap=False, unit=False, check=(0.925498, -2.972112, 0.108367, 2.244622))
def tsr(scale: Scale, *, k: float = 0.95, sigma: float = 1.0) -> Rule:
    """Temporal score rescaling (TSR). CFG at another temperature; k above 1 is sharper, below 1 broader.

    formula: n <- r n after CFG, r = (q sigma^2 + 1)/(q sigma^2/k + 1), q = t^2/(1 - t)^2
    space: noise
    source: Xu et al., ICML 2026, arXiv 2510.01184
    evidence: its authors' scheduler classes for diffusers; ComfyUI comfy_extras/nodes_eps.py
    use when: samples should be sharper or broader than the model's own, at any scale
    defaults:
        - any: k 0.95, sigma 1 (ComfyUI)
        - SD3, FLUX: k 0.93, sigma 3 (paper, second-hand)
    """
    return CFG(scale) | Multiply(Temper(k, sigma))


@method(zero_gap=False, unit=False, check=(0.895522, -2.985075, 0.099502, 2.189055))
def epsilon_scaling(scale: Scale, *, factor: float = 1.005, space: str = "velocity") -> Rule:
    """Epsilon scaling. A slightly shorter prediction counters exposure bias.

    formula: v <- v/factor after CFG; space='noise': n <- n/factor
    space: velocity
    source: Ning et al., ICLR 2024, arXiv 2308.15321
    evidence: ComfyUI comfy_extras/nodes_eps.py, the paper's uniform schedule
    use when: errors of many steps add up in one direction, which a slightly shorter prediction undoes
    defaults:
        - any: factor 1.005 (ComfyUI)
    notes:
        - the paper divides noise predictions; ComfyUI divides x - m, the velocity of a flow model
        - on a flow n/factor is singular at t = 0: start later with space='noise'
    """
    need_law("epsilon_scaling", "0 < factor", factor=factor)
    return CFG(scale) | Multiply(1 / factor, space)


# What production models and servers ship, as options of `Renorm`.
_RENORM_FORMS: dict[str, dict[str, Any]] = {
    "z_image": {},
    "lumina2": {"per": "token", "match": True},
    "longcat": {"per": "token"},
    "comfy": {"per": "pixel", "space": "mean"},
}


@method(check=(0.347059, -1.156865, 0.038562, 0.848367))
def renorm(
    scale: Scale,
    *,
    form: str = "z_image",
    rho: float = 1.0,
    least: float = 0.0,
    strength: float = 1.0,
    per: str | None = None,
) -> Rule:
    """Renormalisation of production models. CFG, then a length like that of the conditional prediction.

    `form` sets what has a length of its own: 'z_image' the sample, 'lumina2' and 'longcat' each row along the
    last axis (a packed token), 'comfy' each pixel of the mean; `per` overrides it.

    formula: v <- v clamp(rho |v_c| / |v|, least, 1) after CFG; lumina2: v <- v |v_c| / |v|;
        comfy: m <- m min(1, |m_c| / |m|) strength, over channels
    space: velocity
    source: no paper; pipelines of diffusers, servers, ComfyUI; Qin et al. 2025, arXiv 2503.21758 for lumina2
    evidence: diffusers 0.42.1 (the pipelines), ComfyUI comfy_extras/nodes_cfg.py, SGLang cfg_policy.py,
        vLLM-Omni cfg_parallel.py; BAGEL second-hand
    use when: you run one of these models, or want the simplest bound on the length of the whole velocity
    defaults:
        - Z-Image: off; cfg_normalization=True is form 'z_image' with rho 1 (diffusers)
        - Lumina-Image 2.0, Qwen-Image: always on, form 'lumina2', Qwen-Image at scale 4 (diffusers)
        - LongCat-Image: form 'longcat', least 0 (diffusers)
        - BAGEL: form 'z_image' ('global') or 'longcat' ('channel'), Interval(0.4, 1) (second-hand)
        - SGLang's cfg_normalization: form 'z_image', rho 1, scale 5 for Z-Image; off elsewhere (SGLang)
        - vLLM-Omni's cfg_normalize: form 'lumina2' for Qwen-Image; 'z_image', off, for Z-Image (vLLM-Omni)
        - CFGNorm: form 'comfy', strength 1 (ComfyUI)
    notes:
        - Z-Image's scale is ours minus one
        - Lumina matches the length of rows of the image; its paper describes a cap, which is z_image
        - SGLang takes both lengths over the whole batch; ours are per sample
        - BAGEL's text_channel kind needs a third prediction and is not here
        - CFGNorm is PMC's constraint at gamma 1, per pixel, by shrinking the whole mean
    """
    need_text("renorm", _RENORM_FORMS, form=form)
    options = _RENORM_FORMS[form] | ({} if per is None else {"per": per})
    return CFG(scale) | Renorm(rho, least=least, strength=strength, **options)


for _name in ("z_image", "lumina2", "longcat"):
    _call = f"renorm({{scale}}, form={_name!r})"
    form(renorm, _name, _call, check=(0.347059, -1.156865, 0.038562, 0.848367))
_NORM = "renorm({scale}, form='comfy')"
form(renorm, "cfg_norm", _NORM, check=(0.044505, -1.722312, -0.07221, 0.355686))
