"""Our own evidence, run from a clone: `python -m studies.wind --out out/wind`; README.md is the index."""
