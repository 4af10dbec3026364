"""Import-only stand-ins for torchvision and torchaudio, which ComfyUI imports but sampling does not use.

ComfyUI itself is always the real one. Where the two packages are installed, nothing here has any effect;
where a stand-in is used after all, it says so instead of returning something.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import runpy
import sys
import types
from pathlib import Path

NAMES = ("torchvision", "torchaudio")


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
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in NAMES:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return _Module(spec.name)

    def exec_module(self, module):
        pass


def install():
    """Last on the path of finders, so that an installed package comes first."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.append(_Finder())


if __name__ == "__main__":  # python stand_ins.py main.py --cpu ...: the server, with stand-ins where needed
    install()
    sys.argv = sys.argv[1:]
    sys.path[0] = str(Path(sys.argv[0]).parent)
    runpy.run_path(sys.argv[0], run_name="__main__")
