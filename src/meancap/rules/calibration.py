"""A calibration: a rule for one model, how it was found, and the curves of its examples, in one file.

    a pilot         unguided runs measure an anchor and radii: Cap(1, anchor=..., floor=Piecewise(...))
    least squares   labelled examples give a scale over time: CFG(Piecewise(...))
    path matching   noised examples choose among rules: the chosen rule

A `Calibration` is a rule, so `sample`, `guided` and every host take it. `meancap calibrate` writes the file,
rule.json, from examples. A `Pilot` needs no examples and runs in any loop or host.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..files import write_whole
from ..prediction import Prediction
from ..schedules import Piecewise, Scale, Values, at
from .caps import Cap
from .rule import Chain, Displacement, Rule, State
from .scale import CFG

_FORMAT = "meancap calibration 1"
_QUANTILES = {"q50": 0.5, "q75": 0.75, "q90": 0.9, "q97": 0.97}
LEVELS = ("rms", *_QUANTILES)
FEWEST = 16


class GapCurve(NamedTuple):
    """The rms gap of noised real examples at some times, with which a run is compared."""

    times: tuple[float, ...]
    gap: tuple[float, ...]

    def ratio(self, t: float, gap: float) -> float:
        """The squared gap at time t over that of the examples, interpolated in log(gap); 0 if either is 0."""
        known = [(s, g) for s, g in zip(self.times, self.gap, strict=True) if g > 0]
        if not known or not gap > 0:
            return 0.0
        real = at(Piecewise(tuple(s for s, _ in known), tuple(math.log(g) for _, g in known)), t)
        return math.exp(min(2 * (math.log(gap) - float(real)), 700.0))

    def farthest(self, times: Sequence[float], gaps: Sequence[float]) -> tuple[int, float] | None:
        """The index of the rms gap that differs most from that of the examples, and its squared ratio.

        The first time, at which all states are noise, later times than those of the examples, and times at
        which the examples have less than a tenth of their largest gap do not count.
        """
        least, first, last = (0.1 * max(self.gap)) ** 2, self.times[0], self.times[-1]
        ratios = [(i, self.ratio(t, gaps[i])) for i, t in enumerate(times) if first < t <= last]
        known = [(i, r) for i, r in ratios if r > 0 and gaps[i] ** 2 > least * r]
        return max(known, key=lambda one: abs(math.log(one[1])), default=None)

    def compare(self, times: Sequence[float], gaps: Sequence[float]) -> str:
        """How far rms gaps at these times lie from those of the examples, at the time where that is most."""
        far = self.farthest(times, gaps)
        if far is None:
            return "no gap to compare with that of real examples"
        return f"squared gap {far[1]:.2g} x that of real examples at t = {times[far[0]]:.2g}"


def _versions() -> dict[str, str]:
    from .. import __version__

    return {"meancap": __version__, "torch": str(torch.__version__)}


@dataclass(frozen=True)
class Calibration(Chain):
    """A rule, and what it was made from. It prints as its rule, and `CFG(5) | calibration` joins it.

    calls    of the network, one for each sample and prediction
    curves   by name, at the times "t": "gap", "mean" and "cosine" of the examples, radii, or a scale
    details  further results of the method
    """

    method: str = ""
    model: str = ""
    examples: int = 0
    seed: int | None = None
    calls: int = 0
    versions: Mapping[str, str] = field(default_factory=_versions, hash=False)
    curves: Mapping[str, tuple[float, ...]] = field(default_factory=dict, hash=False)
    details: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "details", json.loads(json.dumps(self.details)))  # as a file returns them
        for name, curve in self.curves.items():
            try:
                Piecewise(self.curves["t"], curve)
            except (KeyError, ValueError) as error:
                raise ValueError(f"the curve {name!r} does not fit the times 't' ({error})") from None

    @property
    def gaps(self) -> GapCurve:
        """The gap of the examples."""
        if "gap" not in self.curves:
            raise ValueError(
                f"a calibration by {self.method or 'hand'} has no gap of real examples; use one of "
                "`meancap calibrate --learn rule`"
            )
        return GapCurve(self.curves["t"], self.curves["gap"])

    def save(self, path: str | Path) -> Path:
        """Writes the file, which appears whole or not at all.

        The rule is written as text; the numbers of an anchor or a schedule come back bit for bit.
        """
        from .grammar import parse

        text = str(self)
        if parse(text).parts != self.parts:
            raise ValueError(f"{text[:80]} does not parse to an equal rule, so it cannot be saved")
        kept = {one.name: getattr(self, one.name) for one in fields(self) if one.name != "rules"}
        content = {"format": _FORMAT, "rule": text, **kept}
        lines = [f" {json.dumps(key)}: {json.dumps(value)}" for key, value in content.items()]
        return write_whole(Path(path), "{\n" + ",\n".join(lines) + "\n}\n")

    @classmethod
    def load(cls, path: str | Path) -> Calibration:
        """Reads a file that `save` wrote; the rule's text is parsed, and nothing is evaluated."""
        from .grammar import parse

        try:
            read = json.loads(Path(path).read_text(encoding="utf-8"))
            if not isinstance(read, dict) or read.pop("format", None) != _FORMAT:
                raise ValueError("it has another format")
            curves = {str(name): tuple(map(float, curve)) for name, curve in read.pop("curves").items()}
            return cls(parse(read.pop("rule")).parts, **read, curves=curves)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(
                f"{path} cannot be read as a calibration ({error}); `meancap calibrate` and Calibration.save "
                "write such files"
            ) from None


class Pilot(Rule):
    """Measures runs without guidance, in any loop or host: an anchor r, and radii |m_c - r| over time.

        pilot = Pilot()
        sample(predict, pilot, noise, times)               # one or more runs with the same times
        pilot.calibration("q90", model="mine").save("rule.json")

    r is the average of m_u at the first evaluation, one value for each channel (axis 1) or element. Because
    |m_c - r|^2 = |m_c|^2 - 2 sum_k r_k sums_k + n sum_k r_k^2, with the sums of m_c over the n elements that
    share a value r_k, the means need not be kept until r is known. Only states of the first shape are
    measured: a host that steps a second state, such as audio, keeps its conditional output.
    """

    turns, sets_scale, has_state = False, True, True

    def __init__(self, per: str = "channel") -> None:
        if per not in ("channel", "element"):
            raise ValueError(f"Pilot needs per='channel' or 'element'; got {per!r}")
        self.per, self.shape = per, torch.Size()
        self._runs: list[list[_Evaluation]] = []

    def __str__(self) -> str:
        return f"Pilot(per='{self.per}')"

    def update(self, g: Displacement, p: Prediction, state: State) -> tuple[Displacement, State]:
        if state is None and (not self._runs or p.state.shape[1:] == self.shape):
            self.shape, state = p.state.shape[1:], []
            self._runs.append(state)
        if isinstance(state, list):
            cells = (*p.state.shape[:2], -1) if self.per == "channel" else (len(p.state), -1, 1)
            m_c, m_u = (m.detach().double().reshape(cells).cpu() for m in (p.m_c, p.m_u))
            t = float(torch.as_tensor(p.t).flatten()[0])
            state.append(_Evaluation(t, m_u.mean(2), m_c.sum(2), m_c.square().sum((1, 2)), m_c.shape[2]))
        return g.times(0.0), () if state is None else state

    def within_step(self, before: State, after: State) -> State:
        return ()  # later evaluations of a step are not measured

    def cap(self, level: str = "q90") -> Cap:
        """Guided means may lie as far from r as this level of the unguided ones: a quantile, or the rms."""
        anchor, curves = self._measured()
        if level not in LEVELS:
            raise ValueError(f"a pilot measures the levels {', '.join(LEVELS)}; got {level!r}")
        return Cap(1.0, anchor=anchor, floor=Piecewise(curves["t"], curves[level]))

    def calibration(self, level: str = "q90", *, model: str = "", seed: int | None = None) -> Calibration:
        """The cap of one level, with the radii of all levels as its curves."""
        samples = sum(len(run[0].squares) for run in self._runs)
        calls = 2 * sum(len(one.squares) for run in self._runs for one in run)
        curves = self._measured()[1]
        return Calibration(self.cap(level).parts, "pilot", model, samples, seed, calls, curves=curves)

    def _measured(self) -> tuple[Values, dict[str, tuple[float, ...]]]:
        """The anchor, and the times and the radii of each level."""
        samples = sum(len(run[0].squares) for run in self._runs)
        if samples < FEWEST:
            raise ValueError(f"a pilot needs at least {FEWEST} samples for its quantiles; got {samples}")
        times = tuple(one.t for one in self._runs[0])
        if {len(run) for run in self._runs} != {len(times)}:
            raise ValueError("the runs of a pilot must have the same number of steps")
        r = torch.cat([run[0].first for run in self._runs]).mean(0)
        r = torch.tensor(_digits(r), dtype=torch.float64)
        radii = torch.cat([torch.stack([one.radii(r) for one in run]) for run in self._runs], dim=1)
        levels = {"rms": radii.square().mean(1).sqrt()}
        levels |= {name: radii.quantile(q, dim=1) for name, q in _QUANTILES.items()}
        anchor = r.reshape(self.shape) if self.per == "element" else r
        return Values(anchor), {"t": times, **{name: _digits(v) for name, v in levels.items()}}


class _Evaluation(NamedTuple):
    """What a pilot keeps of one evaluation, for each sample."""

    t: float
    first: Tensor  # means of m_u, (samples, values of r)
    sums: Tensor  # of m_c, (samples, values of r)
    squares: Tensor  # |m_c|^2
    size: int  # elements that share a value of r

    def radii(self, r: Tensor) -> Tensor:
        return (self.squares - 2 * self.sums @ r + self.size * r.square().sum()).clamp(min=0).sqrt()


def _digits(values: Tensor) -> tuple[float, ...]:
    """Six digits: far below the error of any pilot, and a text that people can read."""
    return tuple(float(f"{v:.6g}") for v in values.tolist())


def auto(scale: Scale | Calibration = 2.0) -> Rule:
    """The rule for people who do not choose one: `CFG(scale) | Cap(1.1, anchor="first")`, which it logs once.

    A calibration is returned as it is. docs/choosing.md lists when not to use it.
    """
    if isinstance(scale, Calibration):
        return scale
    rule = CFG(scale) | Cap(1.1, anchor="first")
    _announce(str(rule))
    return rule


@cache
def _announce(rule: str) -> None:
    logging.getLogger("meancap").warning(
        "auto: %s, the default without a calibration; `meancap calibrate` chooses by examples", rule
    )
