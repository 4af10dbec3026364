"""From noise to samples: grids, steps and the loop."""

from ..prediction import Predict, Predictor
from .grids import Times, from_karras, from_sigmas, graded, shifted, uniform
from .loop import Step, StepMethod, euler, heun, midpoint, rk4, sample, trajectory, weights
from .stochastic import Stochastic, ancestral, noise
from .wrappers import (
    autoguidance,
    beside,
    field,
    from_edm,
    manifold_sample,
    recfg_table,
    rectified_cfgpp,
)

__all__ = [
    "Predict",
    "Predictor",
    "Step",
    "StepMethod",
    "Stochastic",
    "Times",
    "ancestral",
    "autoguidance",
    "beside",
    "euler",
    "field",
    "from_edm",
    "from_karras",
    "from_sigmas",
    "graded",
    "heun",
    "manifold_sample",
    "midpoint",
    "noise",
    "recfg_table",
    "rectified_cfgpp",
    "rk4",
    "sample",
    "shifted",
    "trajectory",
    "uniform",
    "weights",
]
