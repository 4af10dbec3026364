"""Scored runs together: tables in the paper's layout, fronts, equal-alignment comparisons, and a page."""

from .collect import ScoredRun, collect
from .page import write_report

__all__ = ["ScoredRun", "collect", "write_report"]
