"""Optional packages, imported where they are used.

`need("PIL.Image", "images")` returns the module, or raises an ImportError that names the missing package and
the extra of meancap that installs it.
"""

from __future__ import annotations

import importlib
from typing import Any

_DISTRIBUTIONS = {"PIL": "Pillow"}  # import name -> name in package indexes, where they differ


def need(module: str, extra: str) -> Any:
    """Import `module`, which `pip install "meancap[extra]"` installs (in a clone, ".[extra]")."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        root = module.partition(".")[0]
        package = _DISTRIBUTIONS.get(root, root)
        missing = isinstance(error, ModuleNotFoundError) and error.name in (None, root, module)
        reason = "which is not installed" if missing else f"which cannot be imported ({error})"
        kind = ModuleNotFoundError if missing else ImportError
        raise kind(
            f'this needs {package}, {reason}: pip install "meancap[{extra}]" (in a clone: ".[{extra}]")',
            name=error.name or root,
        ) from error
