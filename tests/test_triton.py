"""The CUDA kernels without a GPU: run in Triton's interpreter, compiled for two devices, chosen by device."""

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from meancap import CFG, Cap, guided_velocity
from meancap.rules import fused

FILES = [Path(__file__).parent / "interpreted" / name for name in ("numerics.py", "behaviour.py")]
needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")


@needs_triton
def test_the_kernels_hold_in_the_interpreter():
    # Triton decides at import whether to interpret, so this is a process of its own.
    job = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--show-capture=no", *FILES],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
    )
    assert job.returncode == 0, job.stdout + job.stderr


@pytest.fixture
def device(monkeypatch, tmp_path):
    """Makes triton believe in a GPU: launches are compiled for it, and end there."""
    import triton
    from meancap.cuda import kernels
    from triton.backends.compiler import GPUTarget

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    compiled = []

    def choose(arch):
        fake = SimpleNamespace(
            get_current_device=lambda: arch,
            get_current_stream=lambda device: 0,
            get_current_target=lambda: GPUTarget("cuda", arch, 32),
        )
        monkeypatch.setattr(triton.runtime.driver, "_active", fake)

    for name in ("whole_samples", "part_sums", "part_velocities"):
        kernel = getattr(kernels, name)

        def compile_only(*args, kernel=kernel, warmup, **kwargs):
            compiled.append(type(kernel).run(kernel, *args, warmup=True, **kwargs))

        monkeypatch.setattr(kernel, "run", compile_only)
        kernel.device_caches.clear()
    yield SimpleNamespace(choose=choose, compiled=compiled)
    for name in ("whole_samples", "part_sums", "part_velocities"):
        getattr(kernels, name).device_caches.clear()


def launch(shape, dtype, *, c=6.0, gamma=1.1, t=0.3, floor=None, ball=True, x_dtype=None, out=None):
    from meancap.cuda.step import capped_step

    x, v_c, v_u = (torch.zeros(shape, dtype=d) for d in (x_dtype or dtype, dtype, dtype))
    capped_step(x, t, v_c, v_u, c, gamma, floor, ball=ball, margin=4 * 2.0**-23, dtype=out or dtype)


def resources(kernel, folder):
    """Registers, and bytes of stack, that the finished binary asks for."""
    import triton

    binary = folder / "kernel.cubin"
    binary.write_bytes(kernel.asm["cubin"])
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    shown = subprocess.run([tool, "-res-usage", binary], capture_output=True, text=True, check=True)
    found = re.search(r"REG:(\d+) STACK:(\d+) SHARED:\d+ LOCAL:(\d+)", shown.stdout + shown.stderr)
    assert found, shown.stdout
    registers, stack, local = map(int, found.groups())
    return registers, stack + local


EACH = torch.zeros(2)
LAUNCHES = {
    "the largest in registers": ((2, 16384), torch.float32, {}),
    "the same in bfloat16": ((2, 4, 64, 64), torch.bfloat16, {}),
    "numbers per sample": (
        (2, 16384),
        torch.float32,
        {"t": EACH, "c": EACH.double(), "gamma": EACH, "floor": EACH, "ball": False},
    ),
    "points": ((2000, 2), torch.float32, {}),
    "parts": ((2, 16, 64, 64), torch.float32, {}),
}
MORE = {
    "float16, from a float32 state": ((2, 4, 64, 64), torch.float16, {"x_dtype": torch.float32}),
    "bfloat16 to float32": ((2, 4, 64, 64), torch.bfloat16, {"out": torch.float32}),
    "an odd size": ((2, 8191), torch.bfloat16, {"floor": 1.0}),
    "parts of odd size": ((2, 16385), torch.bfloat16, {"t": EACH, "floor": 2.0}),
}


@needs_triton
@pytest.mark.parametrize("arch", [80, 90])
@pytest.mark.parametrize("given", LAUNCHES.values(), ids=LAUNCHES)
def test_every_kernel_compiles_without_spills(given, arch, device, tmp_path):
    compiles_without_spills(*given, arch, device, tmp_path)


@pytest.mark.slow
@needs_triton
@pytest.mark.parametrize("arch", [80, 90])
@pytest.mark.parametrize("given", MORE.values(), ids=MORE)
def test_the_rarer_variants_compile_without_spills(given, arch, device, tmp_path):
    compiles_without_spills(*given, arch, device, tmp_path)


def compiles_without_spills(shape, dtype, options, arch, device, folder):
    device.choose(arch)
    launch(shape, dtype, **options)
    assert len(device.compiled) == (1 if torch.Size(shape[1:]).numel() <= 16384 else 2)
    for kernel in device.compiled:
        ptx = kernel.asm["ptx"]
        assert kernel.asm["cubin"][:4] == b"\x7fELF" and f"sm_{arch}" in ptx
        assert ".ftz" not in ptx  # small numbers are kept
        assert set(re.findall(r"cvt\.(\w+)\.(?:b?f16|bf16x2|f16x2)\.f32", ptx)) <= {"rn"}  # to nearest
        registers, spilled = resources(kernel, folder)
        assert spilled == 0 and registers * 32 * kernel.metadata.num_warps <= 65536


@needs_triton
@pytest.mark.parametrize("shape", [(3, 640), (3, 20000)])
def test_no_value_causes_a_compilation(shape, device):
    device.choose(80)
    values = (0.0, 1e-300, 0.1, 1.0, 16.0, 7.3, 1e300, float("inf"))
    for value in values:
        launch(shape, torch.float32, c=value, gamma=value, t=value, floor=value)
    for batch in (1, 2, 16, 17, 64):
        launch((batch, *shape[1:]), torch.float32, floor=1.0)
    assert len({id(kernel) for kernel in device.compiled}) == (1 if shape[1] <= 16384 else 2)


def test_a_host_is_no_such_device():
    assert not fused.on_cuda(torch.zeros(2, 3)) and not fused.on_cuda(torch.zeros(2, 3, device="meta"))


@needs_triton
def test_where_triton_cannot_work_the_eager_path_says_so_once(monkeypatch):
    # No GPU here, so triton fails as it does where it finds no compiler.
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    fused._ready.cache_clear()
    with pytest.warns(UserWarning, match="triton failed"):
        assert not fused._ready(0)
    assert not fused._ready(0)
    fused._ready.cache_clear()


def test_older_devices_and_machines_without_triton_take_the_eager_path(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    fused._ready.cache_clear()
    assert not fused._ready(0)
    fused._ready.cache_clear()
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    for name in [name for name in sys.modules if name.split(".")[0] == "triton"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "triton", None)
    assert not fused._ready(0)
    fused._ready.cache_clear()
    x, v_c, v_u = torch.randn(3, 2, 600)
    assert guided_velocity(CFG(7) | Cap(1.1), x, 0.3, v_c, v_u)[0].isfinite().all()
