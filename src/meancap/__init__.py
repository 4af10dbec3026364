"""Guidance for flow-matching models: the posterior-mean cap and other methods behind one protocol.

A model yields a `Prediction`; a rule turns the gap m_c - m_u into a displacement g; the solver moves x
towards m_c + g.
"""

import warnings as _warnings

with _warnings.catch_warnings():
    # Without NumPy torch warns at its import; the library does not need NumPy.
    _warnings.filterwarnings("ignore", message="Failed to initialize NumPy")
    from .prediction import Prediction

from .record import Certificate, Measure, Record, measure
from .rules import (
    CFG,
    Calibration,
    Cap,
    CapDisplacement,
    Clip,
    Interval,
    Momentum,
    Project,
    Rescale,
    Rule,
    apg,
    cap_fraction,
    guide,
    guided_velocity,
    parse,
    pmc,
)
from .sampling import (
    ancestral,
    euler,
    field,
    from_karras,
    from_sigmas,
    graded,
    heun,
    midpoint,
    noise,
    rk4,
    sample,
    shifted,
    trajectory,
    uniform,
)
from .schedules import Cosine, Exponential, Linear, Piecewise, Values

__version__ = "0.1.0"

__all__ = [
    "CFG",
    "Calibration",
    "Cap",
    "CapDisplacement",
    "Certificate",
    "Clip",
    "Cosine",
    "Exponential",
    "Interval",
    "Linear",
    "Measure",
    "Momentum",
    "Piecewise",
    "Prediction",
    "Project",
    "Record",
    "Rescale",
    "Rule",
    "Values",
    "ancestral",
    "apg",
    "cap_fraction",
    "euler",
    "field",
    "from_karras",
    "from_sigmas",
    "graded",
    "guide",
    "guided_velocity",
    "heun",
    "measure",
    "midpoint",
    "noise",
    "parse",
    "pmc",
    "rk4",
    "sample",
    "shifted",
    "trajectory",
    "uniform",
]
