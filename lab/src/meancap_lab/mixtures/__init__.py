"""Mixtures with exact posterior means: conditions, theory, a fast sampler, the paper's experiment (`gmm_*`).

from meancap_lab.mixtures.gmm_experiment import reproduce
from meancap_lab.mixtures.gmm_report import write_report
from meancap_lab.mixtures.gmm_settings import GMMConfig

folder = reproduce(GMMConfig(samples=200_000, seed=0), "DIR")   # table.csv and the data of the figures
list(write_report(folder))                                      # figures/, report.md, report.html
"""

from .condition import PAIR, SCENES, SINGLE, TRIPLE, Condition, Scene
from .mixture import Mixture
from .sampler import flow

__all__ = ["PAIR", "SCENES", "SINGLE", "TRIPLE", "Condition", "Mixture", "Scene", "flow"]
