"""Import-only stand-ins for packages that a host imports and the code under test does not use.

An installed package comes first. A stand-in that is used after all raises instead of returning something.
"""

import importlib.abc
import importlib.machinery
import runpy
import sys
import types
from contextlib import contextmanager
from pathlib import Path

COMFY = ("torchvision", "torchaudio")  # ComfyUI imports them, and sampling does not use them


class _Absent:
    def __init_subclass__(cls, **options):
        pass

    def __init__(self, *values, **options):
        raise RuntimeError(f"{type(self).__name__} is a stand-in: this package is not installed here")


class _Module(types.ModuleType):
    __path__ = ()

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return type(f"{self.__name__}.{name}", (_Absent,), {})


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, *names):
        self.names = names

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in self.names:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return _Module(spec.name)

    def exec_module(self, module):
        pass


def install(*names):
    """Puts stand-ins last on the path of finders, until the process ends."""
    finder = _Finder(*names)
    sys.meta_path.append(finder)
    return finder


@contextmanager
def stand_ins(*names):
    """Packages that can be imported inside the block, and are forgotten after it."""
    finder = install(*names)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name in [name for name, module in sys.modules.items() if isinstance(module, _Module)]:
            del sys.modules[name]


if __name__ == "__main__":  # python absent.py main.py --cpu ...: ComfyUI's server
    install(*COMFY)
    sys.argv = sys.argv[1:]
    sys.path[0] = str(Path(sys.argv[0]).parent)
    runpy.run_path(sys.argv[0], run_name="__main__")
