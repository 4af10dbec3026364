"""Tests inside ComfyUI use the real one: where COMFYUI_PATH is not set, they are reported as not run."""

import comfy_host
import pytest


def pytest_generate_tests(metafunc):
    """One test per sampler that this ComfyUI knows; one that is not run where there is none."""
    if "sampler" in metafunc.fixturenames:
        names = comfy_host.host().comfy.samplers.SAMPLER_NAMES if comfy_host.where() else ["every sampler"]
        metafunc.parametrize("sampler", names)


@pytest.fixture
def comfy():
    """The real host, or a skip that says how to get it."""
    return comfy_host.host()
