"""Rules that turn the displacement: projections, momentum, rotations, other references.

    c    the conditional prediction, u = c - g the reference so far; both in the rule's own space

With another reference u', g becomes c - u'. All but Rotation come before the scale: `ZeroStar() | CFG(5)`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from ..cap import lengths
from ..prediction import Prediction
from ..schedules import Scale, Values, at
from ..tensors import Number, per_sample, scalar_dtype
from .adaptive import Balanced
from .methods import form, method, recipe
from .rule import Displacement, Map, Rule, State
from .scale import CFG, Clip, FromUnconditional, Gain
from .spaces import (
    SPACES,
    along,
    conditional_in,
    need_law,
    need_text,
    on_samples,
    part,
    time_left,
    time_passed,
    unconditional_in,
)
from .time import Decay, Phases, ZeroInit


@part(space=("mean", "velocity", "noise"), onto=("conditional", "unconditional"))
class Project(Map):
    """Keeps only the share `eta` of the part of g that is parallel to m_c (APG, Sadat et al. 2024).

    space  which conditional prediction: the mean, as its authors do, the velocity or the noise
    onto   'conditional', or 'unconditional' for the part parallel to the other prediction
    """

    eta: float = 0.0
    space: str = "mean"
    onto: str = "conditional"

    def __post_init__(self) -> None:
        object.__setattr__(self, "reads_m_u", self.onto == "unconditional")

    def __call__(self, g: Tensor, p: Prediction) -> Tensor:
        onto = (conditional_in if self.onto == "conditional" else unconditional_in)(p, self.space)
        return g - (1 - self.eta) * along(g, onto)


@part()
class Tangent(Map):
    """Tangential amplifying guidance (TAG). CFG, then a longer step across the state.

    formula: v <- P v + eta (v - P v) after CFG, P v = <v, x> / |x|^2 x
    space: velocity
    source: Cho et al., ICML 2026, arXiv 2510.04533
    evidence: second-hand; the code of ComfyUI pull request 10403, on m - x; of the authors' repository only
        the project page was seen
    use when: samples mix features of several modes, and the scale should not grow
    notes:
        - stated for the update of the sampler, x' - x; on a flow with Euler that is a multiple of v, and a
          rescaled state (DDIM) has the same result
        - no published eta was seen; a Forge port offers 1 to 1.5, and 1.15 here is a placeholder
        - the ComfyUI node also scales the part along the state, and both factors are 1 by default
    """

    eta: float = 1.15

    def __call__(self, g: Tensor, p: Prediction) -> Tensor:
        way = conditional_in(p, "velocity") + g
        return g + (self.eta - 1) * (way - along(way, p.x))


tag = recipe(
    "tag", Tangent, first=CFG, zero_gap=False, unit=False, check=(0.842294, -3.353647, 0.066824, 2.144588)
)


@part(space=("mean", "velocity"))
class Momentum(Rule):
    """Adds `beta` times the previous displacement: g <- g + beta * previous, and remembers the sum.

    APG uses beta < 0. The first step has nothing to add. In `space='velocity'` the sum is one of g / (1 - t).
    """

    beta: float
    space: str = "mean"

    has_state = True

    def update(self, given: Displacement, p: Prediction, state: State) -> tuple[Displacement, State]:
        unit = per_sample(time_left(p.t) if self.space == "velocity" else 1.0, p.x)
        g = given.vector if state is None else given.vector + self.beta * unit * state
        return given.turn(g), g / unit


Row = float | Sequence[float] | Values  # one ratio, or nested lists of them by channel or element


@part(applied=("velocity", "mean"))
class ZeroStar(Map):
    """The unconditional velocity times s* = <v_c, v_u> / |v_u|^2 (Fan et al. 2025).

    applied='mean' scales the unconditional mean by the same s* instead, as ComfyUI's node does: another rule.
    """

    applied: str = "velocity"

    def __call__(self, g: Tensor, p: Prediction) -> Tensor:
        c = conditional_in(p, "velocity")
        _, u, along = lengths(c, c - g)
        s = per_sample(torch.where(u == 0, 1.0, along / u), g)
        return (1 - s) * (c if self.applied == "velocity" else p.m_c) + s * g


@part(space=SPACES)
class Tangential(Map):
    """Tangential damping (TCFG). Keeps only the part of v_u along the shared direction.

    formula: v_u <- <v_u, e> e, e the first right singular vector of the rows v_c, v_u; then CFG
    space: velocity
    source: Kwon et al., CVPR 2025, arXiv 2503.18137
    evidence: second-hand; diffusers 0.42.1 and ComfyUI nodes_tcfg.py; no official repository found
    use when: the unconditional prediction wanders and no knob should be tuned
    defaults:
        - SD1.5, SDXL, SD3, PixArt: scale 7.5, 5, 7, 4.5 (second-hand)
    notes:
        - exact here by the 2 x 2 Gram matrix, in float64; diffusers takes a float32 SVD
        - diffusers' guider raises in use: its attribute _num_outputs_prepared does not exist (issue 14643)
    """

    space: str = "velocity"

    def __call__(self, g: Tensor, p: Prediction) -> Tensor:
        c = conditional_in(p, self.space)
        length_c, length_u, along = lengths(c, c - g)
        # (a, b) is the leading eigenvector of the Gram matrix; its angle is half that of (cc - uu, 2 cu).
        cross = 2 * along * length_u
        half = torch.atan2(cross, (length_c - length_u) * (length_c + length_u)) / 2
        a, b = half.cos(), half.sin()
        # With v1 = (a c + b u) / s, <u, v1> v1 = b (a c + b u), and c - u' follows with u = c - g.
        return per_sample(1 - b * (a + b), g) * c + per_sample(b * b, g) * g


tcfg = recipe("tcfg", Tangential, then=CFG, check=(0.679813, -2.523163, 0.932604, 1.23323))


@dataclass(frozen=True)
class Rectify(Map):
    """Rectified guidance (ReCFG). `recfg_table` computes the table of ratios for a model.

    `ratios` holds one entry per time, a number or nested lists by channel or element; between the times it is
    interpolated. r must be 1 at t = 0, where both noise predictions are x.

    formula: n = scale n_c - (scale - 1) r n_u, r = E[n_c n_u] / E[n_u^2] per element and time
    space: noise
    source: Xia et al., CVPR 2025, arXiv 2410.18737
    evidence: thuxmf/recfg
    use when: a table of ratios can be made offline, and the average noise should not shift with the scale
    state: none; a table made offline by recfg_table
    defaults:
        - EDM2: 100 labels x 500 images, 32 steps, per pixel (its code)
    notes:
        - the paper has r = E[n_c] / E[n_u], the code the least-squares ratio, which we compute
        - the code attributes a batch's average to each of its labels; ours makes one table per condition
    """

    times: tuple[float, ...]
    ratios: tuple[Row, ...]

    def __post_init__(self) -> None:
        times = tuple(float(t) for t in self.times)
        object.__setattr__(self, "times", times)
        rows = (float(row) if isinstance(row, (int, float)) else _values(row) for row in self.ratios)
        object.__setattr__(self, "ratios", tuple(rows))
        if not times or len(times) != len(self.ratios) or any(not b > a for a, b in pairwise(times)):
            raise ValueError(
                f"Rectify needs increasing times, a ratio for each; got {len(times)} and {len(self.ratios)}"
            )
        if not all(math.isfinite(v) for v in (*times, *self.ratios) if isinstance(v, float)):
            raise ValueError(f"Rectify needs finite times and ratios; got {list(times)}")

    def __call__(self, g: Tensor, p: Prediction) -> Tensor:
        # n = (x - t m) / (1 - t), and scaling n_u by r moves m_u by (1 - r) (x / t - m_u).
        lack = (1 - self.at(p.t, g)) / per_sample(time_passed(p.t), g)
        return g - lack * (p.x - per_sample(p.t, g) * (p.m_c - g))

    def at(self, t: Number, like: Tensor) -> Tensor:
        """The ratio at time t, shaped to multiply `like`; held beyond the ends."""
        shape = like.shape[1:]
        rows = torch.stack(
            [on_samples(_values(row), like, "a row of ratios").expand(shape) for row in self.ratios]
        )
        knots = torch.tensor(self.times, dtype=scalar_dtype(like.device), device=like.device)
        time = torch.as_tensor(t, dtype=knots.dtype, device=like.device).reshape(-1)
        right = torch.searchsorted(knots, time).clamp(max=len(knots) - 1)
        left = (right - 1).clamp(min=0)
        way = torch.where(left == right, 1.0, knots[right] - knots[left])
        share = ((time - knots[left]) / way).clamp(0, 1)
        return torch.lerp(rows[left], rows[right], torch.as_tensor(per_sample(share, like)))


recfg = recipe(
    "recfg",
    Rectify,
    then=CFG,
    call="recfg({scale}, [0, 0.5, 1], [1, 0.97, 0.9])",
    zero_gap=False,
    check=(0.7272, -2.9532, 0.1198, 1.8256),
)


def _values(row: Row) -> Values:
    return row if isinstance(row, Values) else Values(row)


@method(name="adg", check=(-0.113102, -2.126666, -0.614073, 0.374385))
@part("0 <= limit <= pi")
class Rotation(Map):
    """Angle-domain guidance (ADG). m_c is turned away from m_u.

    formula: m = cos(a) m_c + sin(a)/sin(theta) e, a = min((scale - 1) theta, limit), theta the angle between
        m_c and m_u, e = m_c - proj_{m_u} m_c
    space: mean
    source: Jin et al., ICML 2025, arXiv 2506.11039
    evidence: jinc7461/ADG @ b5fad684 method/ADG_SD3.py
    use when: guided means grow too long: they are turned instead, by 60 degrees at most
    defaults:
        - SD3.5 Large: scale 7 (2 to 15 tested) (its code)
    notes:
        - the code adds 1e-3 to scale - 1, takes 3.14 for pi and switches formula at sin(theta) = 1e-3
        - bounded by |m| <= sqrt(2) |m_c|, not norm-preserving; its renormalised variant does so along axis 1
    """

    scale: Scale
    limit: float = math.pi / 3

    def __call__(self, g: Tensor, p: Prediction) -> Tensor:
        u = p.m_c - g
        across = g - along(g, u)
        angle = torch.atan2(lengths(across, u).base, lengths(p.m_c, u).along)
        gain = torch.as_tensor(at(self.scale, p.t)).to(angle) - 1
        turn = (gain.clamp(min=0) * angle).clamp(max=self.limit)
        sine = angle.sin()
        rise = torch.where(sine == 0, gain.clamp(min=0), turn.sin() / torch.where(sine == 0, 1.0, sine))
        return per_sample(turn.cos() - 1, g) * p.m_c + per_sample(rise, g) * across


# Where the displacement of a form of APG is counted from, and the space it acts in.
_APG_FORMS: dict[str, tuple[Callable[[Scale], Rule], str]] = {
    "published": (CFG, "mean"),
    "diffusers": (FromUnconditional, "velocity"),
    "comfy": (Gain, "mean"),
}


@method(check=(-0.023666, -2.045023, -0.424455, 0.446599))
def apg(
    scale: Scale,
    *,
    eta: float = 0.0,
    radius: float | None = 15.0,
    momentum: float | None = -0.5,
    space: str | None = None,
    form: str = "published",
    steps: int = 0,
    early: Scale = 3.5,
) -> Rule:
    """Adaptive projected guidance (APG). The defaults are the paper's for SDXL; `None` switches a part off.

    `form` sets the base point and the space: 'published', 'diffusers' or 'comfy'. With `steps`, the first
    steps are CFG(early) while the momentum fills.

    formula: d = m_c - m_u; d += momentum d'; d *= min(1, radius / |d|); d -= (1 - eta) proj_{m_c} d;
        m = m_c + (scale - 1) d as published, m_c + scale d in ComfyUI, v_u + scale d on outputs in diffusers
    space: mean
    source: Sadat, Hilliges & Weber, ICLR 2025, arXiv 2410.02416
    evidence: code printed in the appendix; transcriptions in NVIDIA cosmos, ACE-Step and diffusers agree
    use when: a large scale oversaturates: the part of the gap along the mean is taken away
    state: the running sum d', stored before clip and projection, advanced once per step
    defaults:
        - EDM2-S: scale 4, eta 0, radius 2.5, momentum -0.75 (two secondary sources)
        - DiT-XL/2: scale 4, eta 0, radius 5, momentum -0.5 (two secondary sources)
        - SD2.1: scale 10, eta 0, radius 7.5, momentum -0.75 (two secondary sources)
        - SDXL: scale 15, eta 0, radius 15, momentum -0.5 (two secondary sources)
        - any, form 'diffusers': scale 7.5, eta 1, radius 15, no momentum (diffusers 0.42.1)
        - any, form 'comfy': eta 1, radius 5, no momentum (ComfyUI comfy_extras/nodes_apg.py)
        - HunyuanImage 2.1, form 'diffusers': scale 10, radius 10, steps 6 (diffusers 0.42.1)
    notes:
        - its authors act on denoised means; space='velocity' acts on the network's output, another method
        - ACE-Step takes lengths over the time axis alone (radius 2.5, momentum -0.75, velocities)
        - the radius is absolute, so its effect depends on resolution and channels
        - diffusers counts from the unconditional prediction, so scale 1 is not conditional; its
          use_original_formulation=True with guidance_scale = scale - 1 is the published form
        - ComfyUI's node has one unit more guidance at equal scale, takes norms over the last three axes and
          allows no negative momentum, the only kind the paper uses
    """
    need_text("apg", _APG_FORMS, form=form)
    base, usual = _APG_FORMS[form]
    space = space or usual
    rule: Rule = Project(eta, space)
    if radius is not None and not math.isinf(radius):
        rule = Clip(radius, space) | rule
    if momentum:
        rule = Momentum(momentum, space) | rule
    rule = rule | base(scale)
    return Phases(steps, CFG(early), rule) if steps else rule


_PORT = "apg({scale}, form='diffusers', eta=1, momentum=None)"
form(apg, "apg_diffusers", _PORT, unit=False, state="none", check=(0.9, -3.0, 0.1, 2.2))
_NODE = "apg({scale}, form='comfy', eta=1, radius=5, momentum=None)"
form(apg, "apg_comfy", _NODE, unit=False, state="none", check=(1.1, -3.6, -0.1, 2.8))
_MIX = "apg({scale}, form='diffusers', radius=10, steps=6)"
form(apg, "apg_mix", _MIX, scale=10.0, unit=False, check=(0.8, -2.7, 0.2, 1.9))


@method(unit=False, check=(0.052958, -1.194385, 0.708422, -0.116542))
def adamag(scale: float, *, share: float = 0.1, power: float = 4.0, least: float = 1.0) -> Rule:
    """AdaMaG. A gap damped along the noise, a scale falling as (1 - t)^power.

    formula: v = v_u + w (d - (1 - share) proj_{n_c} d), d = v_c - v_u, w = max(least, scale (1 - t)^power)
    space: noise
    source: Esmati et al. 2026, arXiv 2605.20079
    evidence: second-hand; two transcriptions agree, one with its equations 10, 11 and 13
    use when: strong guidance is wanted early and next to none late
    defaults:
        - SD3, SD3.5, FLUX: share 0.1, power 4, least 1 (a transcription of its Section 5)
    """
    return Project(share, "noise") | FromUnconditional(Decay(scale, power, least))


@method(unit=False, check=(0.280984, -1.205902, 0.928852, 0.238033))
def mog(scale: Scale, *, along: float = 1.0, across: float = 5.0) -> Rule:
    """Manifold-optimal guidance (MOG). The gap made shorter across v_u, then a fixed scale.

    formula: v = v_u + scale w, w = d/across + (1/along - 1/across) proj_{v_u} d, d = v_c - v_u
    space: velocity
    source: Jia et al. 2026, arXiv 2603.11509
    evidence: derived; Auto-MOG's code with a given scale for the balanced one; its README names this variant
    use when: you want the direction of Auto-MOG at a scale of your own
    defaults:
        - SDXL, SD3.5, FLUX: along 1, across 5 (its README)
    """
    return _preconditioned(along, across) | FromUnconditional(scale)


@method(unit=False, check=(0.359685, -1.46938, 0.941399, 0.428513))
def auto_mog(
    *, along: float = 1.0, across: float = 5.0, gamma: float = 1.0, least: float = 1.0, most: float = 20.0
) -> Rule:
    """Manifold-optimal guidance with a balanced scale (Auto-MOG). The step is as long as v_u itself.

    formula: v = v_u + s w, w as in mog, s = gamma |v_u|/|w| between least and most
    space: velocity
    source: Jia et al. 2026, arXiv 2603.11509
    evidence: its authors' mog/processor.py and README
    use when: no scale at all should be tuned
    defaults:
        - SDXL, FLUX: along 1, across 5, gamma 1, least 1, most 20 (its README)
        - SD3, SD3.5: most 15 (its README)
    """
    return _preconditioned(along, across) | Balanced(gamma, least, most)


def _preconditioned(along: float, across: float) -> Rule:
    for law in ("0 < along", "0 < across"):
        need_law("mog", law, along=along, across=across)
    return Project(across / along, "velocity", "unconditional") | Gain(1 / across)


@method(zero_gap=False, unit=False, check=(0.0, 0.0, 0.0, 0.0))
def cfg_zero_star(scale: Scale, *, zero_steps: int = 1, form: str = "published") -> Rule:
    """CFG-Zero*. The unconditional velocity is scaled optimally; the first steps stand still.

    form='comfy' applies the factor of the velocities to the means, as ComfyUI's node does, which has no zero
    steps.

    formula: v = a v_u + scale (v_c - a v_u), a = <v_c, v_u> / |v_u|^2; v = 0 in the first steps
    space: velocity
    source: Fan et al. 2025, arXiv 2503.18886
    evidence: WeichenFan/CFG-Zero-star @ 3162be1f
    use when: a flow model is undertrained, so that its first velocities mislead
    state: the step index
    defaults:
        - SD3.5 Large: scale 3.5, one zero step of 28 (its example)
        - Wan, CogView, HiDream: two zero steps (its code)
    notes:
        - its zero_steps=0 still zeroes one step; ours counts the steps that stand still, as diffusers does
        - ComfyUI's node has m = a m_u + scale (m_c - a m_u), without the term (1 - scale)(1 - a) x
    """
    need_text("cfg_zero_star", ("published", "comfy"), form=form)
    rule = ZeroStar("mean" if form == "comfy" else "velocity") | CFG(scale)
    return rule | ZeroInit(zero_steps) if zero_steps else rule


_STAR = "cfg_zero_star({scale}, form='comfy', zero_steps=0)"
form(
    cfg_zero_star,
    "cfg_zero_star_comfy",
    _STAR,
    state="none",
    check=(0.552459, -2.718033, -0.159016, 1.583607),
)


adg = Rotation  # a part that is a method by itself
