"""Checks for common mistakes of a first attempt; each error is one sentence with the next move.

Two checks read numbers, both at the first step. `warn_if_start_is_not_noise`: on the linear path the state
at t = 0 has unit variance. `warn_if_reversed`: that state does not depend on the data, so the posterior mean
must not follow it, and over the batch the slope of m_c against x is 0. A network whose velocity is
noise - data gives m_c = 2 x - data, slope 2. A network called with reversed time has slope 2 only if it is
accurate where there are no data: small trained networks gave -2 to 5, the shipped picture model 0.85, and a
network whose output is 0 gives 1. So the check detects a reversed sign, and reversed time only sometimes.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Sequence
from numbers import Number

import torch
from torch import Tensor

from ..notation import described
from ..prediction import EARLY, Prediction
from ..rules import Gain, Rule, parse
from ..tensors import scalar_dtype, transformed

_SPREADS = (0.5, 2.0)  # of a start at t close to 0; noise has 1


def need_guidance(rule: object) -> Rule:
    """The rule, also from its text; raises an error if it has no scale, or a cap stands before the scale."""
    if isinstance(rule, str):
        rule = parse(rule)
    if not isinstance(rule, Rule):
        raise TypeError(f"a rule is needed, such as CFG(3) | Cap(1.1) or parse(text); got {described(rule)}")
    if rule.caps:
        raise ValueError(f"{rule} is a cap with no guidance to cap; use CFG(7) | {rule}")
    need_scale_first(rule)
    return rule


def need_scale_first(rule: Rule) -> None:
    """Raises an error for a rule without a scale, for one with two, and for a cap before the scale.

    Without a scale the displacement is the gap itself, and m_c + (m_c - m_u) is CFG(2).
    """
    if not rule.caps and not rule.sets_scale:
        raise ValueError(f"{rule} has no scale; write CFG(7) | {rule}")
    totals = [part for part in rule.parts if part.sets_scale and not isinstance(part, Gain)]
    if len(totals) > 1:
        raise ValueError(
            f"{rule} has two scales, {totals[0]} and {totals[1]}: keep one of them, or write Gain(2) for a "
            "further factor of the displacement"
        )
    capped: Rule | None = None
    for part in rule.parts:
        if part.caps:
            capped = part
        elif capped is not None and part.sets_scale:
            raise ValueError(
                f"{rule} caps first and scales afterwards, so nothing bounds the result; "
                f"write {part} | {capped}"
            )


def need_step(step: object) -> None:
    """Raises an error if a step is named by a text."""
    if not callable(step):
        raise TypeError(
            f"step is a function: euler, heun, midpoint or rk4, without quotes; got {described(step)}"
        )


def need_start(x: object) -> None:
    """Raises an error if x is no tensor, such as a count or a list of tensors."""
    if not isinstance(x, Tensor):
        raise TypeError(
            "x is the noise to start from, one tensor with the samples along its first axis, such as "
            f"noise(range(4), (3, 8, 8)); got {described(x)}"
        )


def need_seeds(seeds: Iterable[int], shape: Sequence[int]) -> None:
    """Raises an error if a count was given in the place of seeds, or a length in the place of a shape."""
    if not isinstance(shape, Sequence):
        raise TypeError(f"shape is that of one sample, such as (3, 8, 8) or ({shape},); got {shape!r}")
    if isinstance(seeds, Number) or not isinstance(seeds, Iterable):
        raise TypeError(
            f"noise needs one seed for each sample, such as range({seeds}) for {seeds} of them; got {seeds!r}"
        )


def warn_if_start_is_not_noise(x: Tensor, t: float) -> None:
    """Warns if a run begins at t close to 0 from a state whose standard deviation is far from 1.

    Under 256 elements, which chance or a toy spreads otherwise, only a spread above 10 is: EDM starts at 80.
    A constant start (a debugging aid) and one that is not finite are not checked.
    """
    if t > EARLY or x.numel() < 2 or not _readable(x):
        return
    low, high = _SPREADS if x.numel() >= 256 else (0.0, 10.0)
    spread = float(x.detach().to(scalar_dtype(x.device)).std())
    if 0 < spread < low or high < spread < math.inf:
        warnings.warn(
            f"the start at t = {t:.3g} has a standard deviation of {spread:.3g}, and noise on the linear "
            "path has 1: pass noise(seeds, shape), and divide a state data + sigma noise of EDM by 1 + sigma "
            "(see docs/your-own-network.md)",
            stacklevel=4,
        )


def warn_if_reversed(p: Prediction) -> None:
    """Warns if the first mean moves with the noise about twice as far as the noise itself."""
    if isinstance(p.t, Tensor) or p.t > EARLY or not _readable(p.state):
        return
    dtype = scalar_dtype(p.state.device)
    slope, error = _slope(p.x.to(dtype), p.m_c.to(dtype))
    if slope - 4 * error > 1.5:
        warnings.warn(
            f"at t = {p.t:.3g} the mean moves {slope:.1f} times as far as the noise, which it should ignore: "
            "the sign of the velocity or the direction of time is probably reversed; here velocity is data - "
            "noise, and t runs from 0 at the noise to 1 at the data (see docs/your-own-network.md)",
            stacklevel=4,
        )


def warn_if_not_finite(x: Tensor) -> None:
    """Warns if samples ended as NaN or infinity; the others are as they would be without them."""
    if not x.numel() or not _readable(x):
        return
    lost = (~x.isfinite().flatten(1).all(1)).nonzero()[:, 0].tolist()
    if lost:
        some = ", ".join(map(str, lost[:5])) + (", ..." if len(lost) > 5 else "")
        warnings.warn(
            f"{len(lost)} of {len(x)} samples ended as NaN or infinity (samples {some}): look at the "
            "network's outputs step by step with trajectory(...)",
            stacklevel=3,
        )


def _slope(x: Tensor, m: Tensor) -> tuple[float, float]:
    """The slope of m against x over all samples and elements, and its standard error.

    Each element is centred over the batch, so that the mean of the data is no part of the error.
    """
    x, m = x.flatten(1), m.flatten(1)
    axis, means = (0, x.shape[1]) if len(x) > 1 else (1, 1)
    x, m = ((v - v.mean(axis, keepdim=True)).flatten() for v in (x, m))
    spread = float(x @ x)
    if spread == 0 or x.numel() < 32:  # too few to tell a slope from chance
        return 0.0, 0.0
    slope = float(x @ m) / spread
    residual = m - slope * x
    return slope, float((residual @ residual) / (x.numel() - means - 1) / spread) ** 0.5


def _readable(x: Tensor) -> bool:
    """Whether its numbers can be read here, where nothing is compiled, transformed or captured in a graph."""
    if transformed(x) or x.device.type == "meta":
        return False
    return x.device.type != "cuda" or not torch.cuda.is_current_stream_capturing()
