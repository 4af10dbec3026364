"""Scored runs together: tables in the paper's layout, fronts, equal-alignment comparisons, and a page."""

from .collect import Entry, collect
from .page import write_report

__all__ = ["Entry", "collect", "write_report"]
