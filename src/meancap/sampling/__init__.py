"""From noise to samples: grids, steps and the loop."""

from ..rules import density_feedback
from .grid import Times, from_karras, from_sigmas, graded, shifted, uniform
from .manifold import manifold_sample, manifold_trajectory
from .model_side import autoguidance, beside, recfg_table, rectified_cfgpp
from .open_loop import open_loop
from .solve import Predict, Step, field, noise, sample, trajectory
from .steps import StepMethod, euler, heun, midpoint, rk4, weights
from .stochastic import Stochastic, ancestral

__all__ = [
    "Predict",
    "Step",
    "StepMethod",
    "Stochastic",
    "Times",
    "ancestral",
    "autoguidance",
    "beside",
    "density_feedback",
    "euler",
    "field",
    "from_karras",
    "from_sigmas",
    "graded",
    "heun",
    "manifold_sample",
    "manifold_trajectory",
    "midpoint",
    "noise",
    "open_loop",
    "recfg_table",
    "rectified_cfgpp",
    "rk4",
    "sample",
    "shifted",
    "trajectory",
    "uniform",
    "weights",
]
