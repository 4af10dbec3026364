"""Optional packages, imported by the functions that use them.

`need("matplotlib", "plot")` returns the module, or raises an ImportError that names the missing package and
the pip command that installs it.
"""

from __future__ import annotations

import importlib
from typing import Any

_DISTRIBUTIONS = {"PIL": "Pillow"}  # import name -> name in package indexes, if they differ


def pip_command(extra: str, package: str = ".") -> str:
    """The command that installs an extra; from a clone until meancap is on PyPI."""
    return f'pip install "{package}[{extra}]" in your clone of meancap'


def need(module: str, extra: str, package: str = ".") -> Any:
    """Return the imported `module`, which the extra `extra` of the package in that folder installs."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        root = module.partition(".")[0]
        name = _DISTRIBUTIONS.get(root, root)
        missing = isinstance(error, ModuleNotFoundError) and error.name in (None, root, module)
        reason = "which is not installed" if missing else f"which cannot be imported ({error})"
        kind = ModuleNotFoundError if missing else ImportError
        raise kind(
            f"this needs {name}, {reason}; run {pip_command(extra, package)}", name=error.name or root
        ) from error
