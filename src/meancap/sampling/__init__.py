"""From noise to samples: grids, steps and the loop."""

from .sample import Predict, Step, sample, trajectory
from .solvers import (
    StepMethod,
    Times,
    euler,
    from_sigmas,
    graded,
    heun,
    midpoint,
    rk4,
    shifted,
    uniform,
    weights,
)
from .stochastic import Stochastic, ancestral, noise
from .wrappers import (
    autoguidance,
    beside,
    field,
    from_edm,
    from_karras,
    manifold_sample,
    recfg_table,
    rectified_cfgpp,
)

__all__ = [
    "Predict",
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
