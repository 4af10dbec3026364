"""Import-only stand-ins for packages that a host imports and the code under test does not use."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import types
from typing import Any


class _Module(types.ModuleType):
    __path__ = ()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


class Absent(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Put last on sys.meta_path, so that an installed package comes first."""

    def __init__(self, *names: str) -> None:
        self.names = names

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name.split(".")[0] in self.names:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> types.ModuleType:
        return _Module(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass
