"""The laboratory of meancap: mixtures, models, metrics, runs, reports, benchmark, explorer and command."""

__version__ = "0.1.0"
