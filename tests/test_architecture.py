"""A layer imports only layers below it; layers 0-3 import torch alone."""

import ast
import sys
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "meancap"
LAYERS = {
    "extras": 0, "files": 0, "torch_settings": 0,
    "notation": 0, "tensors": 0, "path": 0, "schedules": 0,
    "cap": 1, "fast": 2,
    "prediction": 2,
    "rules": 3,
    "record": 4, "sampling": 4,
    "lab": 5, "adapters": 5, "models": 5, "metrics": 5,
    "scenes": 6,
    "runs": 7,
    "report": 8,
    "bench": 9, "gmm": 9,
    "explorer": 10, "cli": 11, "__main__": 12,
}  # fmt: skip


# Modules that import a compiler; others import them inside a function only, where they are used.
KERNELS = {"fast": {"numba", "numpy"}}
GROUND = {name for name, layer in LAYERS.items() if layer == 0}  # they may import each other


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


def test_imports_point_downwards():
    wrong = []
    for path in modules():
        own = package(path)
        if own == "__init__":
            continue
        assert own in LAYERS, f"{own} has no layer; name it in LAYERS and in docs/contributing.md"
        for name, _ in imported(path):
            parts = name.split(".")
            if parts[0] != "meancap" or len(parts) < 2 or parts[1] == own or parts[1] not in LAYERS:
                continue
            if not (LAYERS[parts[1]] < LAYERS[own] or {parts[1], own} <= GROUND):
                wrong.append(
                    f"{path.relative_to(SOURCE)} (layer {LAYERS[own]}) imports {name} ({LAYERS[parts[1]]})"
                )
    assert not wrong, "\n".join(wrong)


def test_the_core_imports_torch_alone():
    wrong = []
    for path in modules():
        if LAYERS.get(package(path), 0) > 4:
            continue
        allowed = set(sys.stdlib_module_names) | {"torch", "meancap"} | KERNELS.get(path.stem, set())
        for name, inside in imported(path):
            kernels = name.rpartition(".")[2] in KERNELS and path.stem not in KERNELS
            if not inside and (name.split(".")[0] not in allowed or kernels):
                wrong.append(f"{path.relative_to(SOURCE)} imports {name} outside of a function")
    assert not wrong, "\n".join(wrong)


def test_one_module_renames_files():
    """`Path.replace` and `Path.rename` take one argument; `str.replace` takes two."""
    wrong = []
    for path in modules():
        if package(path) == "files":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            if node.func.attr in ("replace", "rename") and len(node.args) == 1 and not node.keywords:
                wrong.append(f"{path.relative_to(SOURCE)}:{node.lineno}; use meancap.files.writing")
    assert not wrong, "\n".join(wrong)


def test_only_commands_change_torch_for_good():
    """Modules of `cli` own the process; the sampler of the laboratory has a thread of its own."""
    changes = {"torch.manual_seed", "torch.set_num_threads", "torch.set_default_dtype"}
    wrong = []
    for path in modules():
        if package(path) in ("cli", "torch_settings") or path.name == "sampler.py":
            continue
        tree = ast.parse(path.read_text())
        restored = {
            id(node)
            for block in ast.walk(tree)
            if isinstance(block, ast.With) and "fork_rng" in ast.unparse(block.items[0])
            for node in ast.walk(block)
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and ast.unparse(node) in changes and id(node) not in restored:
                wrong.append(f"{path.relative_to(SOURCE)}:{node.lineno} {ast.unparse(node)} is not restored")
    assert not wrong, "\n".join(wrong)
