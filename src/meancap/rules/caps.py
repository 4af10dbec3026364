"""Caps: the largest share of g that keeps the guided mean inside a convex set.

    y    m_c - r, the conditional mean seen from the anchor r (0 unless given)
    |.|  the Euclidean norm of a sample, of each channel, or of W y with whitening
    Cap              |y + s g| <= max(gamma |y|, R(t))               the ball of Peng & Ma, Section 4
    CapDisplacement      |s g| <= max((gamma - 1) |y|, R(t))         the rule of their SD3.5 experiments

All of them are one root of one quadratic, derived in `meancap.cap`. The displacement form is stricter: the
two agree only if g points along y, so one gamma does not mean the same in both. Caps in a chain intersect,
because the largest share in both sets is the smaller of the two.
"""

from __future__ import annotations

from dataclasses import KW_ONLY
from numbers import Real
from typing import ClassVar

import torch
from torch import Tensor

from ..cap import MARGINS, Lengths, cap_share, lengths, smooth_share
from ..prediction import Prediction, need_same_shapes
from ..schedules import Scale, Schedule, Values, at, finite, finite_scale
from ..tensors import Number, compiling, on_host, vector
from .methods import method
from .rule import Chain, Displacement, Factor, State
from .scale import CFG
from .spaces import on_samples, part

Gamma = Scale  # infinite where nothing is capped
Anchor = float | str | Values | Tensor | list[float] | tuple[float, ...] | None


def cap_fraction(m: Tensor, g: Tensor, gamma: float) -> Tensor:
    """Largest s in [0, 1] with |m + s g| <= gamma |m|, for each sample."""
    need_same_shapes(m=m, g=g)
    limit: float = Cap(gamma).gamma  # type: ignore[assignment]
    s = cap_share(lengths(m, g), 1.0, limit, margin=MARGINS.get(m.dtype, MARGINS[torch.float32]))
    return s.to(torch.promote_types(m.dtype, torch.float32)).reshape(-1, *[1] * (m.dim() - 1))


@part("0 <= smooth <= 1 (0 is a hard cap)", per=("sample", "channel"))
class Cap(Factor):
    """Shrinks g until the guided mean is at most gamma times as long as m_c.

    anchor  the point r that lengths are measured from: a number, one value per channel, a whole sample, or
            'first' for the unconditional mean of the first step
    whiten  W: one factor per channel or element, or a square matrix on the flattened sample
    per     'sample', or 'channel' to bound each channel and keep the least share
    floor   R(t), a radius that is always allowed
    smooth  width in (0, 1] of a C1 transition to the nominal scale, inside the bound; 0 is the hard cap
    """

    gamma: Gamma
    _: KW_ONLY
    anchor: Anchor = None
    whiten: Values | Tensor | list[float] | tuple[float, ...] | None = None
    per: str = "sample"
    floor: Scale | None = None
    smooth: float = 0.0

    caps = True
    ball: ClassVar[bool] = True  # whether the guided mean is bounded, or the displacement alone
    _own_norm: ClassVar[bool] = False  # whether lengths are taken from an anchor, whitened, or by channel

    def __post_init__(self) -> None:
        name = type(self).__name__
        gamma = self.gamma
        if isinstance(gamma, (Tensor, list, tuple)):
            object.__setattr__(self, "gamma", Values(gamma, endless=True))
            finite_scale(self, "gamma")
            if _below(at(self.gamma, 0.0), 1.0):
                raise ValueError(f"{name} needs gamma >= 1; got {self.gamma}")
        elif not isinstance(gamma, Schedule):
            if isinstance(gamma, bool) or not isinstance(gamma, Real) or not gamma >= 1:
                raise ValueError(f"{name} needs gamma >= 1 (1 forbids any growth of the mean); got {gamma}")
            object.__setattr__(self, "gamma", float(gamma))
        for field in ("anchor", "whiten"):
            if isinstance(value := getattr(self, field), (Tensor, list, tuple)):
                object.__setattr__(self, field, Values(value))
        if isinstance(self.anchor, Real):
            finite(self, "anchor")
        elif not (self.anchor is None or self.anchor == "first" or isinstance(self.anchor, Values)):
            raise ValueError(
                f"{name} needs the anchor 'first', a number, values or a tensor; got {self.anchor!r}"
            )
        if not (self.whiten is None or isinstance(self.whiten, Values)):
            raise ValueError(f"{name} whitens by values, a list or a tensor; got {self.whiten!r}")
        own_norm = self.anchor is not None or self.whiten is not None or self.per == "channel"
        object.__setattr__(self, "_own_norm", own_norm)
        object.__setattr__(self, "has_state", self.anchor == "first")
        object.__setattr__(self, "reads_m_u", self.anchor == "first")

    def update(self, g: Displacement, p: Prediction, state: State) -> tuple[Displacement, State]:
        if self.anchor == "first" and state is None:
            state = p.m_u
        c, floor = g.share * g.nominal, 0.0 if self.floor is None else at(self.floor, p.t)
        gamma = self.gamma if isinstance(self.gamma, float) else self._gamma_at(p.t)
        margin = MARGINS[p.dtype]
        seen = self._own_lengths(g, state) if self._own_norm else g.lengths
        if self.per == "channel":
            channels = p.state.shape[1]
            c, gamma, floor = (vector(v, p.state).repeat_interleave(channels) for v in (c, gamma, floor))
        if self.smooth:
            share = smooth_share(seen, c, gamma, floor, self.smooth, ball=self.ball, margin=margin)
        else:
            share = cap_share(seen, c, gamma, floor, ball=self.ball, margin=margin)
        if self.per == "channel":
            share = share.reshape(p.state.shape[:2]).amin(1)  # no -1: a batch may be empty
        if isinstance(g.share, Tensor):  # an earlier cap's
            share = share * g.share
        return Displacement(g.p, g.nominal, g.direction, share, g.measured), state

    def bound(self, m: Tensor, t: Number) -> Tensor | None:
        """The longest mean that the cap permits from lengths m of m_c; None if it bounds no such length."""
        if self._own_norm:
            return None
        gamma = self._gamma_at(t)
        radius = gamma * m if self.ball else (gamma - 1) * m
        if self.floor is not None:
            radius = torch.maximum(radius, vector(at(self.floor, t), m))
        return radius if self.ball else m + radius

    def within_step(self, before: State, after: State) -> State:
        return after  # the first evaluation fixes the anchor for the whole run

    def _gamma_at(self, t: Number) -> Number:
        gamma = at(self.gamma, t)
        if _below(gamma, 1.0):
            raise ValueError(f"{self} needs gamma >= 1 at every time; at t = {t} it is {gamma}")
        # If its values cannot be read, it is 1 at least.
        return gamma.clamp(min=1.0) if isinstance(gamma, Tensor) else gamma

    def _own_lengths(self, g: Displacement, first: Tensor | None) -> Lengths:
        """The lengths in the cap's own norm: from its anchor, whitened, or of each channel."""
        m, d = g.p.m_c, g.toward
        if isinstance(self.anchor, Values):
            m = m - on_samples(self.anchor, m, "anchor")
        elif isinstance(self.anchor, float):
            m = m - self.anchor
        elif first is not None:
            m = m - first
        if isinstance(self.whiten, Values):
            m, d = _whitened(self.whiten, m), _whitened(self.whiten, d)
        if self.per == "channel":
            m, d = (v.reshape(len(v) * v.shape[1], v.shape[2:].numel()) for v in (m, d))
        return lengths(m, d)


@part()
class CapDisplacement(Cap):
    """Shrinks g until it is at most gamma - 1 times as long as m_c; options as in `Cap`."""

    ball: ClassVar[bool] = False


def _whitened(by: Values, y: Tensor) -> Tensor:
    """W y: element by element, or a square matrix on the flattened sample."""
    size = y.shape[1:].numel()
    if by.shape == (size, size) and by.shape != tuple(y.shape[1:]):
        return (y.flatten(1) @ by.tensor(y).T).reshape(y.shape)
    return on_samples(by, y, "whiten") * y


def _below(a: Number, b: float) -> bool:
    """Whether any is less than b, as far as one can tell without waiting for a device."""
    if isinstance(a, Tensor):
        return on_host(a) and bool((a < b).any())
    return not compiling() and a < b


@method(call="pmc({scale}, 1.1)", check=(0.425466, -1.576399, 0.574534, 0.776399))
def pmc(scale: Scale, gamma: Scale = 1.1) -> Chain:
    """Posterior-mean capped guidance, the norm ball. PMC-CFG, Section 4 of the paper.

    formula: the largest beta <= scale - 1 with |m_c + beta (m_c - m_u)| <= gamma |m_c|
    space: mean
    source: Peng & Ma 2026, arXiv 2609.24287, Section 4
    evidence: ppposition/pmc @ b27a9640 (SiT)
    use when: a scale is too large for some samples, and every guided mean should have a bound on its length
    defaults:
        - SiT-XL/2 256: gamma 1.05 to 1.10 (paper)
    notes:
        - the authors' SiT code guides 4 channels while its CFG baseline guides 3
        - it takes scale 1 where the gap vanishes, we keep the nominal scale: the former jumps at t = 1
        - its plain root in float32 passes the bound by 2e-7 at most (conformance/REPORT.md): harmless
        - comfy-cfg-megapack lists the SD3.5 gamma 1.15 for this form
    """
    return CFG(scale) | Cap(gamma)


@method(call="pmc_displacement({scale}, 1.15)", check=(0.461509, -1.684528, 0.538491, 0.884528))
def pmc_displacement(scale: Scale, gamma: Scale = 1.15) -> Chain:
    """Posterior-mean capped guidance, the displacement form. PMC-CFG as in the paper's SD3.5 experiments.

    formula: beta = min(scale - 1, (gamma - 1) |m_c| / |m_c - m_u|)
    space: mean
    source: Peng & Ma 2026, arXiv 2609.24287, SD3.5 appendix
    evidence: ppposition/pmc @ b27a9640 (SD3.5)
    use when: you keep to the paper's SD3.5 setting, or want to bound how far the mean may move
    defaults:
        - SD3.5 Medium: gamma 1.15, scale 3 to 9, 10 steps (paper, SD3.5 appendix)
    notes:
        - stricter than the ball at the same gamma, equal only where the gap points along m_c
        - the authors' code casts the scale to bfloat16 (spacing 2^-7 near 1), which breaks the bound
    """
    return CFG(scale) | CapDisplacement(gamma)
