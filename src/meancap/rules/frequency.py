"""Rules that weigh coarse and fine parts of an image differently, over the last two axes.

They need images: (batch, channels, height, width), or frames before height. Packed tokens have no such axes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from ..prediction import Prediction
from ..schedules import Scale, at
from ..tensors import per_sample, scalar_dtype, vector
from .methods import method, recipe
from .rule import Displacement, Map, Rule, State
from .scale import CFG, FromUnconditional
from .spaces import along, conditional_in, need_image, part, spread, time_left, unconditional_in


@part(space=("velocity", "mean", "noise"))
class Frequencies(Map):
    """CFG level by level: g = sum over the levels of (scales[l] - 1) times level l of g, finest first.

    `parallel` keeps of each level only that share of its part along the same level of the conditional
    prediction (in `space`), as Project does for the whole.
    """

    scales: tuple[float, ...] = (10.0, 5.0)
    parallel: tuple[float, ...] | None = None
    space: str = "velocity"

    sets_scale = True

    def __post_init__(self) -> None:
        if self.parallel is not None and len(self.parallel) != len(self.scales):
            raise ValueError(
                f"Frequencies needs one share per scale; got {len(self.parallel)} and {len(self.scales)}"
            )

    def __call__(self, g: Tensor, p: Prediction) -> Tensor:
        need_image(self, g)
        levels = pyramid(g, len(self.scales))
        if self.parallel is not None:
            onto = pyramid(conditional_in(p, self.space), len(self.scales))
            levels = [
                _project(level, other, share, g.shape[0])
                for level, other, share in zip(levels, onto, self.parallel, strict=True)
            ]
        weighed = [(scale - 1) * level for scale, level in zip(self.scales, levels, strict=True)]
        return collapse(weighed, g.shape)


def _project(level: Tensor, onto: Tensor, share: float, batch: int) -> Tensor:
    flat = level.reshape(batch, -1)
    return (flat - (1 - share) * along(flat, onto.reshape(batch, -1))).reshape(level.shape)


def pyramid(v: Tensor, levels: int) -> list[Tensor]:
    """Differences between successive blurs, and what is left: images, each half as wide as the last."""
    image = v.reshape(-1, 1, *v.shape[-2:])
    step = 2 ** (levels - 1)
    below, right = (-image.shape[2]) % step, (-image.shape[3]) % step
    if levels > 1 and 2 * min(image.shape[2] + below, image.shape[3] + right) < 3 * step:
        raise ValueError(f"an image of {v.shape[-2]} x {v.shape[-1]} is too small for {levels} levels")
    image = F.pad(image, (0, right, 0, below), mode="reflect") if below or right else image
    bands = []
    for _ in range(levels - 1):
        # Bilinear halving of an even side is the mean of two neighbours.
        coarse = F.avg_pool2d(_blurred(image), 2)
        bands.append(image - _doubled(coarse))
        image = coarse
    return [*bands, image]


def collapse(levels: Sequence[Tensor], shape: torch.Size) -> Tensor:
    """The image whose pyramid this is."""
    image = levels[-1]
    for level in reversed(levels[:-1]):
        image = _doubled(image) + level
    return image[:, 0, : shape[-2], : shape[-1]].reshape(shape)


def _doubled(v: Tensor) -> Tensor:
    return _blurred(F.interpolate(v, scale_factor=2, mode="bilinear", align_corners=False))


def _blurred(v: Tensor) -> Tensor:
    """The binomial filter 1 4 6 4 1 along both axes, edges reflected."""
    line = v.new_tensor([1.0, 4.0, 6.0, 4.0, 1.0]) / 16
    padded = F.pad(v, (2, 2, 2, 2), mode="reflect")
    return F.conv2d(F.conv2d(padded, line.reshape(1, 1, 1, 5)), line.reshape(1, 1, 5, 1))


@part()
class FreSca(Map):
    """FreSca. Low and high frequencies of the gap scaled apart.

    Low frequencies are those within `cutoff` of zero along both axes.

    formula: low and high frequencies of m_c - m_u times two factors, d; m = m_u + scale d
    space: any
    source: Huang et al. 2025, arXiv 2504.02154; WikiChao/FreSca
    evidence: second-hand; ComfyUI comfy_extras/nodes_fresca.py
    use when: you want to weigh the coarse and the fine part of the gap by hand
    defaults:
        - any: low 1, high 1.25, cutoff 20 (ComfyUI)
    notes:
        - a cutoff above half a side wraps round in ComfyUI and marks a corner as low
    """

    low: float = 1.0
    high: float = 1.25
    cutoff: int = 20

    def __call__(self, g: Tensor, p: Prediction) -> Tensor:
        need_image(self, g)
        inside = [(f >= -self.cutoff) & (f < self.cutoff) for f in (_frequencies(n, g) for n in g.shape[-2:])]
        mask = torch.where(inside[0][:, None] & inside[1][None, :], self.low, self.high).to(g.dtype)
        filtered: Tensor = torch.fft.ifft2(torch.fft.fft2(g) * mask).real
        return filtered


fresca = recipe("fresca", FreSca, then=FromUnconditional, unit=False, axes=4, check=(0.9, -3.0, 0.1, 2.2))


def _frequencies(n: int, like: Tensor) -> Tensor:
    """Whole frequencies in the order of the transform: 0, 1, ..., -2, -1."""
    k = torch.arange(n, device=like.device)
    return torch.where(k < n - n // 2, k, k - n)


# The low-pass filter of the wavelet sym4 of Daubechies, orthonormal to its shifts by two.
SYM4 = (
    -0.07576571478927333, -0.02963552764599851, 0.49761866763201545, 0.8037387518059161,
    0.29785779560527736, -0.09921954357684722, -0.012603967262037833, 0.0322231006040427,
)  # fmt: skip


@part()
class Wavelet(Map):
    """Wavelet detail guidance (HiWave). CFG on wavelet details, none on the coarse band.

    The part is g <- low * (its coarse band) + high * (the rest).

    formula: CFG on the detail bands of one level of the wavelet sym4; the coarse band stays conditional
    space: any
    source: Vontobel et al., SIGGRAPH Asia 2025, arXiv 2506.20452
    evidence: second-hand; laihongphuc/minHiWave (unofficial) and comfy-cfg-megapack agree; no official
        repository found
    use when: the layout is right and only detail should be guided, as in upscaling
    defaults:
        - SDXL: scale 7.5, 50 DDIM steps (minHiWave)
    notes:
        - the method also upscales, inverts patches and mixes their states in; this is its guidance alone
        - images go round at their borders here, and need even sides; minHiWave mirrors them
    """

    low: float = 0.0
    high: float = 1.0

    def __call__(self, g: Tensor, p: Prediction) -> Tensor:
        need_image(self, g)
        down, across = (_coarse(n, g) for n in g.shape[-2:])
        return self.high * g + (self.low - self.high) * (down @ g @ across)


hiwave = recipe("hiwave", Wavelet, then=CFG, axes=4, check=(0.9, -3.0, 0.1, 2.2))


def _coarse(n: int, like: Tensor) -> Tensor:
    """The projection of n numbers in a ring onto the coarse band: L^T L, the rows of L shifts by two."""
    if n % 2:
        raise ValueError(f"Wavelet needs an even height and width; got {n}")
    taps = like.new_tensor(SYM4)
    places = 2 * torch.arange(n // 2, device=like.device)[:, None]
    places = (places + torch.arange(len(SYM4), device=like.device)) % n
    rows = torch.zeros(n // 2, n, dtype=like.dtype, device=like.device)
    rows = rows.scatter_add(1, places, taps.expand(n // 2, -1))
    return rows.T @ rows


@method(name="lf_cfg", unit=False, axes=4, check=(0.9, -3.0, 0.1, 2.2))
@part("1 <= size")
class SlowBand(Rule):
    """Low-frequency improved CFG (LF-CFG). Less of the low frequencies that hardly change between steps.

    L averages over squares of `size` pixels and interpolates back; a change is a length over channels.

    formula: v = v_u + scale (v_c - v_u) - scale (1 - share) (M_c L v_c - M_u L v_u), L a low-pass, M 1 where
        L v has changed since the last step by less than the mean plus the standard deviation of its changes
    space: velocity
    source: Song & Lai 2025, arXiv 2506.21452
    evidence: second-hand; comfy-cfg-megapack
    use when: large even areas oversaturate over many steps
    state: the low-passed velocities of the last step
    defaults:
        - any: share 0.5, squares of 8 pixels (comfy-cfg-megapack)
    notes:
        - the low-pass is that of the third party, which says that the paper states none
    """

    scale: Scale
    share: float = 0.5
    size: int = 8

    has_state = True

    def update(self, given: Displacement, p: Prediction, state: State) -> tuple[Displacement, State]:
        g = given.vector
        need_image(self, g)
        if not len(g):
            return given, state
        unit, scale = per_sample(time_left(p.t), g), per_sample(at(self.scale, p.t), g)
        low = [self._low(side(p, "velocity") / unit) for side in (conditional_in, unconditional_in)]
        guided = (scale - 1) * g
        if state is not None:
            c, u = (now * _slow(now - last) for now, last in zip(low, state, strict=True))
            guided = guided - unit * scale * (1 - self.share) * (c - u)
        return given.turn(guided), tuple(low)

    def _low(self, v: Tensor) -> Tensor:
        image = v.reshape(-1, 1, *v.shape[-2:])
        coarse = F.interpolate(image, [max(1, n // self.size) for n in v.shape[-2:]], mode="area")
        back = F.interpolate(coarse, list(v.shape[-2:]), mode="bilinear", align_corners=False)
        return back.reshape(v.shape)


def _slow(change: Tensor) -> Tensor:
    """1 where a pixel has changed less than usual, else 0."""
    length: Tensor = torch.linalg.vector_norm(change, dim=1, keepdim=True)
    flat = length.flatten(1)
    # Where all pixels change alike none is slow; the margin keeps rounding from deciding otherwise.
    usual = (1 - 1e-5) * (flat.mean(1) + spread(flat)[:, 0])
    slow: Tensor = length < per_sample(usual, length)
    return slow.to(change.dtype)


@method(name="zeresfdg", scale=4.5, unit=False, axes=4, check=(0.616264, -2.140014, -0.101711, 1.728371))
@part("down <= up")
class ZeResFDG(Rule):
    """ZeResFDG (CADE 2.5). Reweighted frequencies, projected or rescaled by the share of detail.

    G is a 3 x 3 Gaussian of standard deviation 1. The share of the gap's energy in gap - G gap is averaged
    over the steps, the past by the weight `keep`; a sample changes to the second form once it reaches `up`,
    and back once it falls to `down`.

    formula: FD(v) = low G v + high (v - G v); a v_u + scale FD(v_c - a v_u) with a = <v_c, v_u>/|v_u|^2, or,
        while the gap has much detail, y = v_u + scale FD(v_c - v_u) with a share mix of it at the spread of
        v_u + FD(v_c - v_u)
    space: velocity
    source: Rychkovskiy 2025, arXiv 2510.12954
    evidence: 1dZb1/MagicNodes, its author's node, modes CFGZeroFD and RescaleFDG with the adaptive switch
    use when: you must match CADE's node, or want detail weighed and the spread matched by one rule
    state: the running share of detail, and which of the two forms
    defaults:
        - SDXL: low 0.6, high 1.3, mix 0.7, thresholds 0.45 and 0.6, keep 0.8 (its node)
    notes:
        - the node averages the share of detail over the batch; here each sample switches by itself
        - the node also caps the rescaled form at 1.25 of its reference and clamps quantiles; not here
        - comfy-cfg-megapack takes the spread of v_c as its reference; the node that of v_u + FD(v_c - v_u)
    """

    scale: Scale
    low: float = 0.6
    high: float = 1.3
    mix: float = 0.7
    down: float = 0.45
    up: float = 0.6
    keep: float = 0.8

    has_state = True

    def update(self, given: Displacement, p: Prediction, state: State) -> tuple[Displacement, State]:
        g = given.vector
        need_image(self, g)
        if min(g.shape[-2:]) < 2:
            raise ValueError(f"ZeResFDG needs a height and width of 2 or more; got shape {tuple(g.shape)}")
        if not len(g):
            return given, state
        share = _detail_share(g)
        if state is None:
            rescaling = share >= self.up
        else:
            share = self.keep * state[0] + (1 - self.keep) * share
            rescaling = torch.where(state[1], share > self.down, share >= self.up)
        c = conditional_in(p, "velocity")
        scale = per_sample(vector(at(self.scale, p.t), g), g)
        chosen = rescaling.reshape(-1, *[1] * (g.dim() - 1))
        y = torch.where(chosen, self._rescaled(c - g, g, scale), self._zero(c, c - g, scale))
        return given.turn(y - c), (share, rescaling)

    def _zero(self, c: Tensor, u: Tensor, scale: Tensor | float) -> Tensor:
        shared = along(c, u)
        return shared + scale * self._weighed(c - shared)

    def _rescaled(self, u: Tensor, g: Tensor, scale: Tensor | float) -> Tensor:
        d = self._weighed(g)
        y = u + scale * d
        before, after = (v.flatten(1).to(scalar_dtype(v.device)).std(1) for v in (u + d, y))
        ratio = torch.where(after == 0, 1.0, before / after)
        return per_sample(self.mix * ratio + (1 - self.mix), y) * y

    def _weighed(self, v: Tensor) -> Tensor:
        coarse = _smoothed(v)
        return self.low * coarse + self.high * (v - coarse)


def _detail_share(g: Tensor) -> Tensor:
    coarse = _smoothed(g)
    low, high = (v.flatten(1).to(scalar_dtype(v.device)).square().sum(1) for v in (coarse, g - coarse))
    return torch.where(low + high == 0, 0.0, high / (low + high))


def _smoothed(v: Tensor) -> Tensor:
    """A 3 x 3 Gaussian of standard deviation 1, edges reflected."""
    side = math.exp(-0.5)
    line = v.new_tensor([side, 1.0, side]) / (1 + 2 * side)
    image = F.pad(v.reshape(-1, 1, *v.shape[-2:]), (1, 1, 1, 1), mode="reflect")
    return F.conv2d(F.conv2d(image, line.reshape(1, 1, 1, 3)), line.reshape(1, 1, 3, 1)).reshape(v.shape)


@method(call="fdg(10, 5)", unit=False, axes=4)
def fdg(high: float = 10.0, low: float = 5.0, *, parallel: Sequence[float] | None = None) -> Rule:
    """Frequency-decoupled guidance. Two levels: details and the rest.

    formula: CFG on each level of a Laplacian pyramid with its own scale, fine to coarse
    space: any
    source: Sadat et al. 2025, arXiv 2506.19713
    evidence: diffusers 0.42.1, which cites the paper's Algorithm 2
    use when: images oversaturate: coarse structure gets a lower scale than detail
    defaults:
        - SDXL: high 10, low 5 (paper Table 8, second-hand)
    notes:
        - linear without parallel, so the same in every space; with it, taken on velocities
        - diffusers' parallel weights act from the unconditional level unless use_original_formulation is set
        - diffusers keeps kornia's padding: where neither side is a power of two the output has another shape
    """
    return Frequencies((high, low), None if parallel is None else tuple(parallel))


# Parts that are methods by themselves.
lf_cfg, zeresfdg = SlowBand, ZeResFDG
