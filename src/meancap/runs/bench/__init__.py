"""The guidance benchmark: every rule on problems whose truth is known, with error bars and on equal terms."""

from .config import FULL, QUICK, BenchConfig
from .families import Family, families, family_of
from .run import bench

__all__ = ["FULL", "QUICK", "BenchConfig", "Family", "bench", "families", "family_of"]
