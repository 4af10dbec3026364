"""This repository as a ComfyUI node pack: ComfyUI loads this file by its path; the library is in src/meancap.

The nodes find the library beside them by relative import, so that a clone in custom_nodes needs no install.
Whoever else comes across this file gets no nodes, and nothing here hides the library.
"""

import importlib.util
import sys
from pathlib import Path

if __name__ == "meancap":
    # Python was started in the folder above a clone of this name, and found the clone before the library.
    _spec = importlib.util.spec_from_file_location(
        "meancap", Path(__file__).parent / "src" / "meancap" / "__init__.py"
    )
    assert _spec is not None and _spec.loader is not None
    sys.modules["meancap"] = importlib.util.module_from_spec(_spec)
    _spec.loader.exec_module(sys.modules["meancap"])
elif __package__ and "comfy.samplers" in sys.modules:
    from .src.meancap.adapters.comfy.nodes import comfy_entrypoint

    __all__ = ["comfy_entrypoint"]
