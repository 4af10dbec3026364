"""The paper's mixture experiment: nine settings, their table, its figures and its report.

from meancap.gmm import GMMConfig, reproduce
folder = reproduce(GMMConfig(samples=200_000, seed=0), "DIR")   # table.csv and the data of the figures
list(meancap.gmm.report.write_report(folder))                   # figures/, report.md, report.html
"""

from .experiment import reproduce
from .settings import SETTINGS, GMMConfig, Setting

__all__ = ["SETTINGS", "GMMConfig", "Setting", "reproduce"]
