"""The libraries we compare with, imported where torchvision is absent too.

torch-fidelity imports torchvision at the top, for data sets and resizing that no test here touches;
torchmetrics imports torch-fidelity whenever it is installed.
"""

import importlib
import importlib.util
import warnings

import pytest

from absent import stand_ins


def peer(name):
    """A module of torch_fidelity, torchmetrics or prdc; the test is skipped where it is not installed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if importlib.util.find_spec("torch_fidelity") is not None:  # torchmetrics would import it by itself
            with stand_ins("torchvision"):
                importlib.import_module("torch_fidelity")
        return pytest.importorskip(name)
