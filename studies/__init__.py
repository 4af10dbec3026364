"""Our own evidence, run from a clone: `python -m studies.wind --out out/wind`. README.md lists the studies."""
