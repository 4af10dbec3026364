"""The schedule that an adaptive rule amounts to: what it did on average, as a function of time alone."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from ..schedules import Piecewise


class Recorded(Protocol):
    """Whatever holds the meter of a run: see `meancap.Record`."""

    def stacked(self) -> dict[str, Tensor]: ...


def open_loop(record: Recorded) -> Piecewise:
    """The mean effective scale over the samples at every recorded time; use it as `CFG(open_loop(record))`.

    Samples whose gap is zero at a time say nothing about the scale there and are left out. A rule that turns
    the displacement counts with its part along the gap. If the adaptive rule is not better than this
    schedule, its feedback brings nothing.
    """
    seen = record.stacked()
    t, scale, gap = (seen[name].double().flatten() for name in ("t", "scale", "gap"))
    known = (gap > 0) & scale.isfinite()
    # Rounding must not make two knots of one time.
    place = (t * 2**24).round()
    told = [(place == knot) & known for knot in sorted(set(place.tolist()))]
    told = [here for here in told if bool(here.any())]
    if not told:
        return Piecewise((0.0,), (1.0,))  # there never was a gap to scale
    return Piecewise(
        tuple(float(t[here].mean()) for here in told), tuple(float(scale[here].mean()) for here in told)
    )
