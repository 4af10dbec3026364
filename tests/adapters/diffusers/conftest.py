"""What the host itself says while it is built and called is not what these tests are about."""

from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

if find_spec("diffusers") is None or find_spec("diffusers").origin is None:  # this folder has the same name
    collect_ignore_glob = ["test_*.py"]
HERE = Path(__file__).parent
UPSTREAM = (
    "ignore::FutureWarning:diffusers",
    "ignore::FutureWarning:transformers",
    "ignore::DeprecationWarning:diffusers",
    "ignore:In CPU autocast:UserWarning",
    "ignore:__array:DeprecationWarning",
    "ignore:Mismatch dtype between input and weight:UserWarning",
    "ignore:Should have t:UserWarning",
    "ignore:`torch.nn.utils.weight_norm` is deprecated:FutureWarning",
    "ignore:`torch.jit.script` is deprecated:DeprecationWarning",
    "ignore:Initializing zero-element tensors:UserWarning",
)


def pytest_collection_modifyitems(items):
    for item in items:
        if HERE in item.path.parents:
            for what in UPSTREAM:
                item.add_marker(pytest.mark.filterwarnings(what))


@pytest.fixture(autouse=True, scope="session")
def _quiet():
    import diffusers
    import transformers

    diffusers.utils.logging.set_verbosity_error()
    transformers.utils.logging.set_verbosity_error()
    torch.set_num_threads(1)
