"""The CUDA kernels without a GPU: in the interpreter, compiled for two devices, and when there are any."""

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from operation_truth import MARGIN, cap_with, combine_with, measure_with

from meancap.operation import cuda

KERNELS = ("whole_samples", "part_sums", "part_results")
needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")


@needs_triton
@pytest.mark.parametrize("which", ["not slow", pytest.param("slow", marks=pytest.mark.slow)])
def test_the_kernels_hold_in_the_interpreter(which):
    # Triton decides at import whether to interpret, so this is a process of its own.
    job = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--show-capture=no", "-m", which,
         Path(__file__).parent / "in_interpreter.py"],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
    )  # fmt: skip
    assert job.returncode == 0, job.stdout + job.stderr


@pytest.fixture
def device(monkeypatch, tmp_path):
    """Makes triton believe in a GPU: launches are compiled for it, and end there."""
    import triton
    from triton.backends.compiler import GPUTarget

    from meancap.operation import triton_kernels

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    compiled = []

    def choose(arch):
        fake = SimpleNamespace(
            get_current_device=lambda: arch,
            get_current_stream=lambda device: 0,
            get_current_target=lambda: GPUTarget("cuda", arch, 32),
        )
        monkeypatch.setattr(triton.runtime.driver, "_active", fake)

    for name in KERNELS:
        kernel = getattr(triton_kernels, name)

        def compile_only(*args, kernel=kernel, warmup, **kwargs):
            compiled.append(type(kernel).run(kernel, *args, warmup=True, **kwargs))

        monkeypatch.setattr(kernel, "run", compile_only)
        kernel.device_caches.clear()
    yield SimpleNamespace(choose=choose, compiled=compiled)
    for name in KERNELS:
        getattr(triton_kernels, name).device_caches.clear()


def launch(
    shape, dtype, *, a=1.0, k=0.7, c=6.0, gamma=1.1, floor=0.0, ball=True, mean=False, x_dtype=None, out=None
):
    given = [torch.zeros(shape, dtype=d) for d in (x_dtype or dtype, dtype, dtype)]
    cap_with(cuda, *given, a, k, c, gamma, floor, ball=ball, margin=MARGIN, dtype=out or dtype, mean=mean)


def measure(shape, dtype):
    measure_with(cuda, *(torch.zeros(shape, dtype=dtype) for _ in range(3)), 1.0, 0.7)


def combine(shape, dtype, mean=False):
    combine_with(
        cuda, *(torch.zeros(shape, dtype=dtype) for _ in range(3)), 1.0, 0.7, 6.0, dtype=dtype, mean=mean
    )


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
EVERY = {"a": EACH, "k": EACH, "c": EACH.double(), "gamma": EACH, "floor": EACH}
LAUNCHES = {
    "the largest in registers": (launch, (2, 16384), torch.float32, {}),
    "the same in bfloat16": (launch, (2, 4, 64, 64), torch.bfloat16, {}),
    "numbers per sample": (launch, (2, 16384), torch.float32, {**EVERY, "ball": False, "mean": True}),
    "points": (launch, (2000, 2), torch.float32, {}),
    "parts": (launch, (2, 16, 64, 64), torch.float32, {}),
    "lengths alone": (measure, (2, 16384), torch.float32, {}),
    "the result alone": (combine, (2, 16384), torch.bfloat16, {"mean": True}),
}
MORE = {
    "float16, from a float32 state": (launch, (2, 4, 64, 64), torch.float16, {"x_dtype": torch.float32}),
    "bfloat16 to float32": (launch, (2, 4, 64, 64), torch.bfloat16, {"out": torch.float32}),
    "an odd size": (launch, (2, 8191), torch.bfloat16, {"floor": 1.0, "mean": True}),
    "parts of odd size": (launch, (2, 16385), torch.bfloat16, {**EVERY, "mean": True}),
    "lengths of parts": (measure, (2, 16385), torch.bfloat16, {}),
    "parts of the result": (combine, (2, 16, 64, 64), torch.float32, {}),
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


def compiles_without_spills(call, shape, dtype, options, arch, device, folder):
    device.choose(arch)
    call(shape, dtype, **options)
    one = torch.Size(shape[1:]).numel() <= 16384 or call is combine
    assert len(device.compiled) == (1 if one else 2)
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
    for value in (0.0, 1e-300, 0.1, 1.0, 16.0, 7.3, 1e300, float("inf")):
        launch(shape, torch.float32, a=value, k=value, c=value, gamma=value, floor=value)
    for batch in (1, 2, 16, 17, 64):
        launch((batch, *shape[1:]), torch.float32, floor=1.0)
    assert len({id(kernel) for kernel in device.compiled}) == (1 if shape[1] <= 16384 else 2)


@pytest.fixture
def asked_again():
    cuda.ready.cache_clear()
    yield
    cuda.ready.cache_clear()


@needs_triton
def test_where_triton_cannot_work_this_is_said_once(monkeypatch, asked_again):
    # No GPU here, so triton fails as it does where it finds no compiler.
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    with pytest.warns(UserWarning, match="triton failed"):
        assert not cuda.ready(0)
    assert not cuda.ready(0)


def test_older_devices_have_no_kernels(monkeypatch, asked_again):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    assert not cuda.ready(0)


def test_machines_without_triton_have_no_kernels(monkeypatch, asked_again):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    for name in [name for name in sys.modules if name.split(".")[0] == "triton"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "triton", None)
    assert not cuda.ready(0)
