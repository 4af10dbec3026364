"""From noise to samples: grids, steps and the loop."""

from .grid import Times, from_sigmas, graded, shifted, uniform
from .solve import Predict, Step, field, noise, sample, trajectory
from .steps import StepMethod, euler, heun, midpoint, rk4, weights

__all__ = [
    "Predict",
    "Step",
    "StepMethod",
    "Times",
    "euler",
    "field",
    "from_sigmas",
    "graded",
    "heun",
    "midpoint",
    "noise",
    "rk4",
    "sample",
    "shifted",
    "trajectory",
    "uniform",
    "weights",
]
