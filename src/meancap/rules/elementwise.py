"""Rules that treat elements, pixels or channels of the mean differently. Only `samg` has a paper.

c, u    conditional and unconditional mean, guided = u + scale (c - u)
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ..prediction import Prediction
from ..schedules import Scale, at
from ..tensors import per_sample
from .methods import form, method, recipe
from .rule import Map
from .scale import FromUnconditional
from .spaces import need_image, part, spread


@method(name="skimmed", scale=9.0, check=(1.675, -5.325, -0.544444, 4.525))
@part(form=("scaled", "linear"))
class Skim(Map):
    """Skimmed CFG. By Extraltodeus.

    flip      also asks that the guided value lies on the far side of x
    negative  takes the excess off the unconditional prediction altogether (scale 0)
    form      'scaled', or 'linear' for its linearly interpolating node

    formula: where a, a - b and b + w (a - b) agree in sign, and the last with its way from x, a -=
        (1 - skim/w)(a - b); for (a, b, w) = (m_u, m_c, scale), then (m_c, m_u, scale - 1); then CFG
    space: mean
    source: no paper; Extraltodeus
    evidence: Extraltodeus/Skimmed_CFG @ 2712803a
    use when: a large scale burns colours and you know a lower one that does not
    defaults:
        - any: skim 7; 2 to 3 against burning, 4 cruise, 5 to 7 colourful (its README)
        - SD3.5 Turbo: skim 2 to 2.5 (its README)
    notes:
        - scale 1 divides by zero there; here it is the conditional mean
        - linear: on the same mask m_u <- m_c + (skim - 1)/(scale - 1)(m_u - m_c), then CFG; its skim is 5
    """

    scale: Scale
    skim: float = 7.0
    flip: bool = True
    negative: bool = False
    form: str = "scaled"

    def __call__(self, g: Tensor, p: Prediction) -> Tensor:
        scale = at(self.scale, p.t)
        w = torch.as_tensor(per_sample(scale, g)).to(g)
        c, u = p.m_c, p.m_c - g
        if self.form == "linear":
            share = (self.skim - 1) / (w - 1)
            u = torch.where(self._outward(p.x, c, u, w), torch.lerp(c, u, share), u)
            u = torch.where(self._outward(p.x, u, c, w), torch.lerp(c, u, share), u)
        else:
            u = self._skimmed(p.x, u, c, w, 0.0 if self.negative else self.skim)
            c = self._skimmed(p.x, c, u, w - 1, self.skim)
        return torch.where(w == 1, 0.0, u + w * (c - u) - p.m_c)

    def _skimmed(self, x: Tensor, a: Tensor, b: Tensor, w: Tensor, skim: float) -> Tensor:
        """a without the excess of b + w (a - b) over b + skim (a - b), where that leads outward."""
        excess = torch.where(w == 0, 0.0, (w - skim) / w) * (a - b)
        return torch.where(self._outward(x, a, b, w), a - excess, a)

    def _outward(self, x: Tensor, a: Tensor, b: Tensor, w: Tensor) -> Tensor:
        guided = b + w * (a - b)
        outward = ((a - b).sign() == a.sign()) & (a.sign() == guided.sign())
        return outward & (guided.sign() == (guided - x).sign()) if self.flip else outward


@method(name="automatic", axes=4, check=(0.339476, -1.318428, 0.660524, 0.518428))
@part("0 < top <= 0.5")
class Automatic(Map):
    """Automatic CFG. Its mode 'hard'.

    R_k is half the sum of two averages, of the largest values and of the sizes of the smallest ones: of each
    row, as many as a share `top` of the height, or the whole row.

    formula: scale_k = reference scale / (10 R_k) for channel k, R_k its range in the mean guided at reference
    space: mean
    source: no paper; Extraltodeus, who left it for Skimmed CFG
    evidence: Extraltodeus/ComfyUI-AutomaticCFG @ 2e395317, mode 'hard'
    use when: you must match its node, which its author left for skimmed
    defaults:
        - any: reference 8, top 0.25 (its node)
    notes:
        - it remembers the last scale above 1; here the scale is always the one given
    """

    scale: Scale
    reference: float = 8.0
    top: float = 0.25

    def __call__(self, g: Tensor, p: Prediction) -> Tensor:
        need_image(self, g)
        scale = torch.as_tensor(per_sample(at(self.scale, p.t), g)).to(g)
        guided = p.m_c + (self.reference - 1) * g
        count = min(max(1, int(g.shape[-2] * self.top)), g.shape[-1])
        axes = tuple(range(2, g.dim()))
        high = guided.topk(count, dim=-1).values.mean(axes, keepdim=True)
        low = guided.topk(count, dim=-1, largest=False).values.abs().mean(axes, keepdim=True)
        span = (high + low) / 2
        fixed = torch.where(span == 0, scale, self.reference * scale / (10 * span))
        return torch.where(scale == 1, 0.0, (fixed - 1) * g)


@method(name="mahiro", check=(0.917746, -3.014398, 0.113226, 2.231475))
@part()
class Mahiro(Map):
    """Mahiro. Averaged within a sample.

    sim is the cosine over channels, averaged over the pixels of a sample, between the signed roots of
    scale * m_u and of the mean of guided and scale * m_c.

    formula: m = (q guided + (4 - q) scale m_c)/4, q = 2(1 + sim), sim a cosine of signed square roots
    space: mean
    source: no paper; ComfyUI
    evidence: ComfyUI comfy_extras/nodes_mahiro.py
    use when: you must match ComfyUI's node
    notes:
        - the node averages sim over the batch; ours over the pixels of a sample
    """

    scale: Scale

    def __call__(self, g: Tensor, p: Prediction) -> Tensor:
        scale = torch.as_tensor(per_sample(at(self.scale, p.t), g)).to(g)
        guided, leap = p.m_c + (scale - 1) * g, scale * p.m_c
        sim = F.cosine_similarity(_signed_root(scale * (p.m_c - g)), _signed_root((leap + guided) / 2), dim=1)
        q = per_sample(2 * (1 + sim.reshape(g.shape[0], -1).mean(1)), g)
        return (q * ((scale - 1) * g) + (4 - q) * (leap - p.m_c)) / 4


def _signed_root(v: Tensor) -> Tensor:
    return v.abs().sqrt() * v.sign()


@part("0 < multiplier")
class Tonemap(Map):
    """Reinhard tone map. A soft limit to the gap at each pixel, then guidance from the unconditional mean.

    formula: m = m_u + scale d, per pixel |d| <- |d| / (1 + |d|/top), top = multiplier (mean + spread std)
    space: mean
    source: no paper; ComfyUI latent operation
    evidence: ComfyUI comfy_extras/nodes_latent.py
    use when: single pixels of the gap stand out and should be softened
    defaults:
        - any: multiplier 1, spread 5 (ComfyUI)
    """

    multiplier: float = 1.0
    spread: float = 5.0

    def __call__(self, g: Tensor, p: Prediction) -> Tensor:
        length = torch.linalg.vector_norm(g, dim=1, keepdim=True)
        flat = length.flatten(1)
        usual = flat.mean(1) + self.spread * spread(flat)[:, 0]
        top = torch.as_tensor(per_sample(self.multiplier * usual, g))
        return g * torch.where(top == 0, 1.0, 1 / (1 + length / torch.where(top == 0, 1.0, top)))


tonemap = recipe("tonemap", Tonemap, then=FromUnconditional, unit=False, check=(0.5, -1.8, 0.5, 1.0))


@method(name="samg", call="samg(5, 12)", unit=False, axes=4, check=(2.5, -3.6, -1.5, 2.8))
@part()
class PixelScale(Map):
    """Spatially adaptive guidance (SAMG). The scale falls from `high` to `low` with a pixel's energy.

    formula: per pixel scale = high - e (high - low), e the channel mean of (m_c - m_u)^2, scaled to 0..1
    space: any
    source: Li et al. 2026, arXiv 2604.26503
    evidence: second-hand; comfy-cfg-megapack
    use when: some regions burn while others need more guidance
    defaults:
        - SD1.5, SDXL: 5 to 12 where CFG has 7.5 (comfy-cfg-megapack)
        - SD3.5 Medium: 3 to 7.5 (comfy-cfg-megapack)
    """

    low: float = 5.0
    high: float = 12.0
    sets_scale = True

    def __call__(self, g: Tensor, p: Prediction) -> Tensor:
        need_image(self, g)
        energy = g.square().mean(1, keepdim=True)
        axes = tuple(range(1, g.dim()))
        least, most = energy.amin(axes, keepdim=True), energy.amax(axes, keepdim=True)
        even = most == least
        share = torch.where(even, 0.0, (energy - least) / torch.where(even, 1.0, most - least))
        return (self.high - share * (self.high - self.low) - 1) * g


# Parts that are methods by themselves.
automatic, mahiro, samg, skimmed = Automatic, Mahiro, PixelScale, Skim
_LINEAR = "skimmed({scale}, skim=5, form='linear')"
form(skimmed, "skimmed_linear", _LINEAR, scale=9.0, check=(1.1, -3.6, -0.1, 2.8))
