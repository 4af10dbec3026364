"""A guidance rule in the post-CFG hook of ComfyUI and of Forge, and the report of its runs; imports neither.

denoised         the nominal mean that the workflow made: sampler, guider and the nodes before this one;
                 the hook's result replaces it
cond_denoised    m_c
uncond_denoised  m_u; zeros if the host evaluated no negative
empty_cond_denoised  the mean under an empty prompt, from PerpNegGuider, whose uncond is then to be avoided
sigma            the noise level; x = alpha data + sigma noise, alpha = 1 - sigma in flow models, else 1

A rule that only caps shortens the displacement that the workflow made. Any other chain replaces the
workflow's guidance. The picture of a run is drawn with Pillow, since ComfyUI brings no plotting library.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from textwrap import shorten, wrap
from typing import Any

import torch
from torch import Tensor

from ...extras import need
from ...path import Affine
from ...prediction import Prediction
from ...record import Measure, measure, span
from ...rules import Cap, Rule
from ...tensors import Number, promoted, scalar_dtype
from ..session import RunRecord, Session

_Args = Mapping[str, Any]

_KEPT = 8  # runs remembered: a workflow may sample several times before its reports are made
_MARKS = 256  # values of the result by which a run is recognised


class PostCFG(Session):
    """A rule applied in one patched model: call it with the host's arguments, `begin` before each run.

    start and end are shares of the run, counted as the host counts them; outside, the host's result is kept.
    """

    def __init__(self, rule: Rule | str, start: float = 0.0, end: float = 1.0) -> None:
        if not 0 <= start <= end <= 1:
            raise ValueError(
                f"start and end are shares of the run, 0 <= start <= end <= 1; got {start} and {end}"
            )
        self.start, self.end = start, end
        self.runs: list[HookRun] = []
        super().__init__(rule)

    def begin(self) -> None:
        """Starts a new run: the rule's state is cleared, and a new record begins."""
        self._reached = -math.inf
        self.runs = [*(run for run in self.runs if run.calls), HookRun(self.rule)][-_KEPT:]
        self.record = self.run
        super().begin()

    def __deepcopy__(self, memo: object) -> PostCFG:
        """Itself: a host copies a model's options at every later node and must still call this hook."""
        return self

    @property
    def run(self) -> HookRun:
        """The latest run."""
        return self.runs[-1]

    def run_of(self, latent: Tensor) -> HookRun:
        """The run that made this latent; the latest run if the latent has changed since."""
        return next((run for run in reversed(self.runs) if run.is_of(latent)), self.run)

    def __call__(self, args: _Args) -> Tensor:
        """The tensor to use instead of `denoised`; the same tensor if there is nothing to change."""
        nominal: Tensor = args["denoised"]
        levels = _grid(args)
        self.run.calls += 1
        self.run.steps = None if levels is None else len(levels) - 1
        if _without_negative(args):
            self.run.unguided += 1
            return nominal
        self.run.later = _later(args, self)
        inside, how = self._inside(args), _place(args)
        x, c, u, others = args["input"], args["cond_denoised"], *self._references(args)
        if inside is False:
            p = Prediction.from_affine(x, c, u, how)
            self.run.left_alone(measure(p, promoted(nominal)))
            return nominal
        self.run.at.append(self.run.calls)
        if not self.rule.caps:
            how = how._replace(t_next=_step_end(args))
        first = not self.rule.has_state or self._begins_step(args)
        guided = self.guide(how, x, c, u, nominal, first=first, others=others)
        if inside is True:
            return guided
        return torch.where(inside.reshape(-1, *[1] * (nominal.dim() - 1)), guided, nominal)

    def _references(self, args: _Args) -> tuple[Tensor, dict[str, Tensor]]:
        """The mean without the condition, and further means by name."""
        u, c = _negative(args)[1], args["cond_denoised"]
        # Outside its range the negative is all zeros, which is not a prediction: nothing is added for it.
        present = self.rule.caps or _negative_in_range(args)
        if not self.rule.needs:
            return u if present else c, {}
        if args.get("empty_cond") is None or args.get("uncond") is None:
            raise ValueError(
                f"{self.rule} needs a third prediction, which this sampler does not make; use "
                "PerpNegGuider with a negative, an empty prompt and a neg_scale above 0"
            )
        empty: Tensor = args["empty_cond_denoised"]
        return empty, {"negative": args["uncond_denoised"] if present else empty}

    def needs_negative(self, args: _Args, conds: Sequence[Any]) -> bool:
        """Whether the host must evaluate the negative of `conds` (positive, negative) at this call.

        It need not if the rule returns m_c and nothing acts on the result after this hook; m_c is then to be
        passed in the place of m_u.
        """
        if self.rule.caps or len(conds) != 2 or conds[1] is None or self._inside(args) is not True:
            return True
        functions = (args["model_options"] or {}).get("sampler_post_cfg_function") or [None]
        sigma, first = _sigmas(args), self._progress(args) > self._reached
        if functions[-1] is not self or bool((sigma != sigma[0]).any()):
            return True
        return not self.is_idle(float(noise_levels(args).time(sigma)[0]), first=first)

    def _begins_step(self, args: _Args) -> bool:
        """Whether this evaluation is the first at a noise level of the sampler's grid."""
        place = self._progress(args)
        first, self._reached = place > self._reached, max(place, self._reached)
        return first

    def _progress(self, args: _Args) -> float:
        """How far on the sampler's grid this evaluation is; on the model's own grid if the host passes none.

        Samplers of higher order evaluate between two levels, or twice at one; a rule advances once for each.
        """
        levels, sigma = _grid(args), float(_sigmas(args)[0])
        return -sigma if levels is None else float((levels >= sigma).sum())

    def _inside(self, args: _Args) -> bool | Tensor:
        """Whether each sample is between start and end; one bool if it is the same for all."""
        if self.start <= 0 and self.end >= 1:
            return True
        sigma, level = _sigmas(args), noise_levels(args).level
        inside: Tensor = (sigma <= level(self.start)) & (sigma >= level(self.end))
        return bool(inside[0]) if bool((inside == inside[0]).all()) else inside


class PilotHook(PostCFG):
    """The unguided runs of a pilot; both predictions are needed at every step."""

    def __call__(self, args: _Args) -> Tensor:
        if _without_negative(args) or not _negative_in_range(args):
            raise ValueError(
                "a calibration needs the negative at every step; connect one without a range of steps"
            )
        return super().__call__(args)


@dataclass(frozen=True)
class _NoiseLevels:
    """The host's noise levels as times. Data is at t = 1, so the direction of time is reversed here, once."""

    flow: bool  # alpha = 1 - sigma; otherwise alpha = 1
    level: Callable[[float], float]  # share of the run -> sigma

    def time(self, sigma: Tensor) -> Tensor:
        t = 1 - sigma if self.flow else 1 / (1 + sigma)
        return t.clamp(0, 1)  # a sampler that adds noise may step above the first level

    def place(self, sigma: Tensor) -> Affine:
        """The position of the host's x on the linear path; its models predict means."""
        unit = 1.0 if self.flow else 1 / (1 + sigma.to(scalar_dtype(sigma.device)))
        return Affine(0.0, 1.0, self.time(sigma), unit)


def noise_levels(args: _Args) -> _NoiseLevels:
    """The noise levels of the model's schedule: `model_sampling` (ComfyUI) or `predictor` (Forge).

    `noise_scaling` at sigma = 1/2 shows whether data are scaled by 1 - sigma, as in flow models, or by 1.
    Forge classic does not have it; there the largest noise level decides, which is 1 in flow models only. A
    model without a schedule is taken as a flow model.
    """
    model = args.get("model")
    host = getattr(model, "model_sampling", None) or getattr(model, "predictor", None)
    if host is None:
        return _NoiseLevels(True, lambda share: 1 - share)
    if hasattr(host, "noise_scaling"):
        flow = float(host.noise_scaling(torch.full((1,), 0.5), torch.zeros(1), torch.ones(1))) < 0.75
    else:
        flow = float(host.sigma_max) <= 1
    return _NoiseLevels(flow, lambda share: float(host.percent_to_sigma(share)))


def _sigmas(args: _Args) -> Tensor:
    """One noise level per sample."""
    sigma: Tensor = args["sigma"]
    return sigma.reshape(1) if sigma.dim() == 0 else sigma.reshape(sigma.shape[0], -1)[:, 0]


def _negative(args: _Args) -> tuple[Any, Tensor]:
    """The negative conditioning and its mean; PerpNegGuider may have only an empty prompt in its place."""
    if args.get("uncond", ()) is None and args.get("empty_cond") is not None:
        return args["empty_cond"], args["empty_cond_denoised"]
    return args.get("uncond", ()), args["uncond_denoised"]


def _place(args: _Args) -> Affine:
    """How the means follow from the host's outputs, and where they are on the linear path."""
    return noise_levels(args).place(_sigmas(args))


def _grid(args: _Args) -> Tensor | None:
    """The noise levels that the sampler was given, from noise to data; None if the host passes none."""
    options = args.get("model_options") or {}
    levels = (options.get("transformer_options") or {}).get("sample_sigmas")
    return levels if isinstance(levels, Tensor) and levels.dim() == 1 else None


def _later(args: _Args, hook: object) -> list[str]:
    """The names of the functions that change the result after this hook has."""
    options = args.get("model_options") or {}
    functions = list(options.get("sampler_post_cfg_function") or ())
    place = next((i for i, one in enumerate(functions) if one is hook), len(functions))
    return [getattr(one, "__qualname__", type(one).__name__).split(".")[-1] for one in functions[place + 1 :]]


def _step_end(args: _Args) -> Number | None:
    """The time at which the step under way will end."""
    levels = _grid(args)
    if levels is None:
        return None
    below = levels[levels < _sigmas(args)[0].to(levels)]
    return noise_levels(args).time(below[:1]) if len(below) else None


def _without_negative(args: _Args) -> bool:
    """Whether the host applies no guidance: at cfg 1 it skips the negative, or there is no negative."""
    conditioning, mean = _negative(args)
    if conditioning is None:
        return True
    if "cond_scale" not in args:  # Forge passes no scale, and passes a negative even where it skipped it
        return not bool(mean.any())
    scale = args["cond_scale"]
    return isinstance(scale, (int, float)) and math.isclose(scale, 1.0)


def _negative_in_range(args: _Args) -> bool:
    """Whether any part of the negative is meant for this noise level (ConditioningSetTimestepRange)."""
    parts: Sequence[Mapping[str, Any]] = _negative(args)[0] or ()
    sigma = _sigmas(args)[0]
    return not parts or any(
        not (
            ("timestep_start" in part and bool(sigma > part["timestep_start"]))
            or ("timestep_end" in part and bool(sigma < part["timestep_end"]))
        )
        for part in parts
    )


class HookRun(RunRecord):
    """The record of one run, which calls it left unchanged, and a mark of its result."""

    def __init__(self, rule: Rule) -> None:
        super().__init__()
        self.rule = rule
        self.calls = 0
        self.at: list[int] = []  # which call each evaluation of the record was, from 1
        self.outside: list[int] = []  # places in the record of the calls before start and after end
        self.later: list[str] = []  # functions of other nodes that change the result after this one
        self.steps: int | None = None
        self._mark: Tensor | None = None

    def made(self, latent: Tensor) -> None:
        """Notes the latent that the host produced."""
        self._mark = _mark(latent)

    def left_alone(self, measure: Measure) -> None:
        """Notes what the workflow made in a call before start or after end."""
        self.outside.append(len(self))
        self.at.append(self.calls)
        self.note(measure)

    def is_of(self, latent: Tensor) -> bool:
        """Whether this run made the latent."""
        mark = _mark(latent)
        return self._mark is not None and mark is not None and torch.equal(mark, self._mark)

    @property
    def unit(self) -> str:
        one = "step" if self.steps in (None, self.calls) else "model call"
        return one if self.calls == 1 else f"{one}s"

    def headline(self) -> str:
        """One line, such as: capped 6/20 steps, effective CFG 2.1 to 7.0."""
        if len(self.outside) == len(self):
            return f"did nothing in {self.calls} {self.unit}"
        s = self.stacked()
        capped = [int(n) for n in s["active"].sum(0)]
        low, high = min(capped), max(capped)
        times = f"{low}" if low == high else f"{low} to {high}"
        many = "" if len(capped) == 1 else f" ({len(capped)} samples)"
        return f"capped {times}/{self.calls} {self.unit}, effective CFG {span(s['scale'])}{many}"

    def text(self) -> str:
        """The headline, and remarks for the user."""
        return "\n".join([f"{self.rule}: {self.headline()}", *self._remarks()])

    def _remarks(self) -> list[str]:
        if not self.calls:
            return ["This model has not been sampled yet: feed the report from the sampler that uses it."]
        if self.unguided == self.calls:
            return [
                "The sampler's cfg is 1 or it has no negative, so there is no guidance here to work on.",
                "Distilled models (Flux dev or schnell, Turbo, Lightning) run at cfg 1: nothing to cap.",
            ]
        s = self.stacked()
        inside = torch.ones(len(self), dtype=torch.bool)
        inside[self.outside] = False
        lines = self._limits(s, inside)
        if self.later:
            lines.append(
                f"Acting after this node: {', '.join(self.later)}. The sampler used what they made of it, "
                "and the numbers here are not theirs; put this node last."
            )
        if not bool(inside.any()):
            return ["No step lay between start and end.", *lines]
        ratio = float(s["ratio"][inside].max())
        asked = self.requested_span(s["asked"][inside])
        lines.insert(0, f"requested CFG {asked}; largest |m|/|m_c| {ratio:.3f}")
        if self.rule.caps and not bool(s["active"].any()):
            lines.append("Nothing exceeded the bound: the result is the workflow's own, bit for bit.")
        elif self.rule.caps and len(self) == self.calls and bool(s["active"].all()):
            lines.append("Capped throughout: a higher cfg changes nothing; raise gamma for more guidance.")
        if s["scale"].shape[1] > 1:
            lines += [
                f"sample {j + 1}: capped {int(s['active'][:, j].sum())}/{self.calls} {self.unit}, "
                f"effective CFG {span(s['scale'][:, j])}"
                for j in range(s["scale"].shape[1])
            ]
        return lines

    def _limits(self, s: dict[str, Tensor], inside: Tensor) -> list[str]:
        """What the sampler used before start and after end."""
        if not self.outside:
            return []
        acted = [call for call, one in zip(self.at, inside.tolist(), strict=True) if one]
        where = f"It acted on {self.unit} {acted[0]} to {acted[-1]}; outside" if acted else "There"
        ratio = float(s["ratio"][~inside].max())
        return [
            f"{where}, the workflow's own result was used: CFG {span(s['scale'][~inside])}, "
            f"largest |m|/|m_c| {ratio:.3f}."
        ]

    def contents(self) -> dict[str, Any]:
        self.about = {
            "rule": str(self.rule),
            "headline": self.headline(),
            "model_calls": self.calls,
            "steps": self.steps,
            "calls_without_guidance": self.unguided,
            "calls": self.at,
            "outside_start_and_end": [self.at[i] for i in self.outside],
            "acting_after": self.later,
        }
        return super().contents()


def _mark(latent: Tensor) -> Tensor | None:
    if latent.is_nested or not latent.numel():  # several tensors in one: audio and video
        return None
    stride = max(1, latent.numel() // _MARKS)
    shape = torch.tensor(latent.shape, dtype=torch.float32)
    return torch.cat([shape, latent.detach().flatten()[::stride].float().cpu()])


_SIZE, _LEFT, _RIGHT = (768, 600), 168, 1488  # drawn in double size and reduced, which smooths the lines
_INK, _FAINT, _GREY = "#222222", "#e4e4e4", "#8a8a8a"
_COLOURS = ("#0b6fb8", "#d1495b", "#2e8b57", "#8e5ea2", "#c78000", "#3aa6a6", "#7a5c3e", "#5560c8")


def draw_run(run: HookRun) -> Tensor:
    """The picture as ComfyUI holds images: (1, height, width, 3) in [0, 1].

    above   effective CFG per model call, one line per sample; dots: the cap acted; dashed: requested
    below   |m| / |m_c|, the length of the guided mean in units of the conditional one; dashed: gamma
    """
    pillow, font = need("PIL.Image", "plot"), need("PIL.ImageFont", "plot").load_default
    picture = pillow.new("RGB", (2 * _SIZE[0], 2 * _SIZE[1]), "white")
    pen = need("PIL.ImageDraw", "plot").Draw(picture)
    pen.text((48, 36), run.headline(), _INK, font(46))
    pen.text((48, 100), shorten(str(run.rule), 78, placeholder=" ..."), _GREY, font(34))
    if len(run.outside) == len(run):
        remarks = "\n".join(part for line in run.text().splitlines()[1:] for part in wrap(line, 80))
        pen.text((48, 200), remarks, _INK, font(34), spacing=20)
    else:
        s = run.stacked()
        caps = [cap.gamma for cap in run.rule.parts if type(cap) is Cap and isinstance(cap.gamma, float)]
        bounds = [[gamma] * len(s["ratio"]) for gamma in caps if gamma < 100]
        _panel(pen, 224, run, s["scale"], [s["asked"].mean(1).tolist()], "effective CFG, dashes: requested")
        _panel(pen, 776, run, s["ratio"], bounds, "|m| / |m_c|" + ", dashes: gamma" * bool(bounds))
    reduced = picture.resize(_SIZE, pillow.Resampling.LANCZOS)
    values = torch.frombuffer(bytearray(reduced.tobytes()), dtype=torch.uint8)
    return values.reshape(1, _SIZE[1], _SIZE[0], 3).float() / 255


def _panel(pen: Any, top: float, run: HookRun, values: Tensor, dashes: list[list[float]], name: str) -> None:
    """One panel: values over calls, a line per sample, dots where the cap acted, and dashed lines."""
    bottom, calls, font = top + 368, len(values), need("PIL.ImageFont", "plot").load_default(30)
    shown = [
        v for v in (*values.flatten().tolist(), *(v for one in dashes for v in one)) if abs(v) < 1e9
    ] or [0.0]
    room = 0.08 * (max(shown) - min(shown)) or 0.1 * max(abs(max(shown)), 1.0)
    lo, hi = min(shown) - room, max(shown) + room

    def place(call: float, value: float) -> tuple[float, float]:
        x = _LEFT + (call + 0.5) / calls * (_RIGHT - _LEFT)
        return x, bottom - (value - lo) / (hi - lo) * (bottom - top)

    pen.text((48, top - 60), f"{name}, dots: capped", _INK, font)
    for value in torch.linspace(min(shown), max(shown), 4).tolist():
        y = place(0, value)[1]
        pen.line([(_LEFT, y), (_RIGHT, y)], _FAINT, 2)
        pen.text((_LEFT - 20, y), f"{value:.3g}", _GREY, font, anchor="rm")
    for call in range(0, calls, max(1, -(-calls // 12))):
        pen.text((place(call, 0)[0], bottom + 28), str(run.at[call]), _GREY, font, anchor="mm")
    pen.text((48, bottom + 28), run.unit.split()[-1].removesuffix("s"), _GREY, font, anchor="lm")
    for i, value in [(i, v) for one in dashes for i, v in enumerate(one) if abs(v) < 1e9]:
        pen.line([place(i - 0.3, value), place(i + 0.3, value)], _GREY, 4)
    active = run.stacked()["active"]
    for j, column in enumerate(values.T.tolist()):
        colour = _COLOURS[j % len(_COLOURS)]
        points = [place(i, v) for i, v in enumerate(column) if abs(v) < 1e9]
        if len(points) > 1:
            pen.line(points, colour, 4, joint="curve")
        for i in active[:, j].nonzero().flatten().tolist():
            x, y = place(i, column[i])
            pen.ellipse([x - 10, y - 10, x + 10, y + 10], colour)
