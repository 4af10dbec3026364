"""The libraries we compare with, imported where torchvision is absent too.

torch-fidelity imports torchvision at the top, for data sets and resizing that no test here touches;
torchmetrics imports torch-fidelity whenever it is installed. Empty modules under torchvision's names let both
be imported, and are taken away again at once. With a working torchvision nothing of this happens.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import pytest

_DATASETS = ("CIFAR10", "CIFAR100", "STL10")


@contextmanager
def _empty_torchvision() -> Iterator[None]:
    if importlib.util.find_spec("torchvision") is not None:
        yield
        return
    names = ["torchvision", "torchvision.datasets", "torchvision.transforms"]
    names.append("torchvision.transforms.functional")
    modules = {name: ModuleType(name) for name in names}
    for name in _DATASETS:
        setattr(modules["torchvision.datasets"], name, type(name, (), {}))
    for name in names[1:]:
        parent, _, child = name.rpartition(".")
        setattr(modules[parent], child, modules[name])
    sys.modules.update(modules)
    try:
        yield
    finally:
        for name in names:
            del sys.modules[name]


def peer(name: str) -> Any:
    """A module of torch_fidelity, torchmetrics or prdc; the test is skipped where it is not installed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if importlib.util.find_spec("torch_fidelity") is not None:  # torchmetrics would import it by itself
            with _empty_torchvision():
                importlib.import_module("torch_fidelity")
        return pytest.importorskip(name)
