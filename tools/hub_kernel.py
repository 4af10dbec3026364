"""The step kernels in the layout of Hugging Face's `kernels`: sources for its builder, and builds that load.

build.toml, flake.nix, README.md        of huggingface/kernel
torch-ext/meancap_step/                 the package: our modules, which import each other relatively
build/torch-cpu, build/torch-cuda       the same with metadata.json; Python alone, so nothing is compiled
"""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "meancap_step"
MODULES = ("request", "fraction", "reference", "cuda", "triton_kernels")
BACKENDS = {"cpu": {"type": "cpu"}, "cuda": {"type": "cuda", "archs": ["8.0", "8.6", "8.9", "9.0"]}}
AGAIN = "from .. import *\n"  # what older versions of `kernels` import


def package(folder: Path) -> None:
    """Writes the modules of the kernel."""
    source = ROOT / "src" / "meancap"
    (folder / "operation").mkdir(parents=True)
    shutil.copyfile(ROOT / "huggingface" / "kernel" / "__init__.py", folder / "__init__.py")
    shutil.copyfile(source / "tensors.py", folder / "tensors.py")
    (folder / "operation" / "__init__.py").write_text('"""The step."""\n', encoding="utf-8")
    for name in MODULES:
        shutil.copyfile(source / "operation" / f"{name}.py", folder / "operation" / f"{name}.py")


def digest(path: Path) -> str:
    return base64.b64encode(hashlib.sha256(path.read_bytes()).digest()).decode()


def build(folder: Path, backend: str) -> None:
    """Writes one build with its metadata."""
    package(folder)
    (folder / PACKAGE).mkdir()
    (folder / PACKAGE / "__init__.py").write_text(AGAIN, encoding="utf-8")
    files = {path.relative_to(folder).as_posix(): digest(path) for path in sorted(folder.rglob("*.py"))}
    hashed = hashlib.sha256(json.dumps(files).encode()).hexdigest()
    metadata = {
        "name": PACKAGE.replace("_", "-"),
        "id": f"_{PACKAGE}_{backend}_{hashed[:7]}",
        "version": 1,
        "license": "MIT",
        "python-depends": [],
        "backend": BACKENDS[backend],
        "digest": {"algorithm": "sha256", "files": files},
    }
    (folder / "metadata.json").write_text(json.dumps(metadata, indent=2) + "\n", encoding="utf-8")


def kernel_repository(out: Path) -> Path:
    """Writes the folder of the kernel, anew; returns it."""
    folder = out / "meancap-step"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name in ("build.toml", "flake.nix", "README.md"):
        shutil.copyfile(ROOT / "huggingface" / "kernel" / name, folder / name)
    package(folder / "torch-ext" / PACKAGE)
    for backend in BACKENDS:
        build(folder / "build" / f"torch-{backend}", backend)
    return folder
