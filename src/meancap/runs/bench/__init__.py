"""The guidance benchmark: rules where the truth is known, with equal budgets and held-out scores."""

from .config import FULL, QUICK, BenchConfig
from .families import Family, families, family_of
from .run import bench

__all__ = ["FULL", "QUICK", "BenchConfig", "Family", "bench", "families", "family_of"]
