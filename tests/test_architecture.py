"""A layer imports only layers below it; layers 0-3 import torch alone."""

import ast
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "meancap"
LAYERS = {
    "notation": 0, "tensors": 0, "drawing": 0, "path": 0, "schedules": 0,
    "operation": 1,
    "prediction": 2,
    "rules": 3,
    "diagnostics": 4, "sampling": 4,
    "lab": 5, "adapters": 5, "models": 5, "metrics": 5,
    "runs": 6,
    "report": 7,
    "explorer": 8, "cli": 9, "__main__": 10,
}  # fmt: skip


# Packages of their own library, which is theirs to import; others import them inside a function only.
ON_DEMAND = {"cuda": "triton"}


def modules():
    return sorted(SOURCE.rglob("*.py"))


def package(path):
    return path.relative_to(SOURCE).with_suffix("").parts[0]


def imported(path):
    """Absolute names of everything a file imports, and whether a function does it."""
    here = ["meancap", *path.relative_to(SOURCE).with_suffix("").parts]
    if here[-1] == "__init__":
        here = [*here[:-1], ""]
    tree = ast.parse(path.read_text())
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    within = {id(node) for function in functions for node in ast.walk(function)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, id(node) in within) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(here[: len(here) - node.level]) if node.level else ""
            name = ".".join(part for part in (base, node.module or "") if part)
            yield from ((f"{name}.{alias.name}", id(node) in within) for alias in node.names)


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(SOURCE)))
def test_imports_point_downwards(path):
    own = package(path)
    if own == "__init__":
        return
    assert own in LAYERS, f"{own} has no layer; name it in LAYERS and in docs/architecture.md"
    for name, _ in imported(path):
        parts = name.split(".")
        if parts[0] != "meancap" or len(parts) < 2 or parts[1] == own or parts[1] not in LAYERS:
            continue
        assert LAYERS[parts[1]] < LAYERS[own] or {parts[1], own} <= {
            "notation",
            "tensors",
            "path",
            "schedules",
        }, f"{own} (layer {LAYERS[own]}) imports {name} (layer {LAYERS[parts[1]]})"


@pytest.mark.parametrize(
    "path", [p for p in modules() if LAYERS.get(package(p), 0) <= 3], ids=lambda p: str(p.relative_to(SOURCE))
)
def test_the_core_imports_torch_alone(path):
    own = package(path)
    allowed = set(sys.stdlib_module_names) | {"torch", "meancap", ON_DEMAND.get(own)}
    for name, inside in imported(path):
        library, module = f"{name}.".split(".")[:2]
        if library not in allowed or (library == "meancap" and module in ON_DEMAND.keys() - {own}):
            assert inside, f"{path.name} imports {name}"
