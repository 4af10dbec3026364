"""A layer imports only layers below it, in both packages; layers 0-4 import torch alone."""

import ast
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCES = [path for path in (ROOT / "src", ROOT / "lab" / "src") if path.is_dir()]
# A name ends at a dot, or stands for all that begin with it if it ends with an underscore.
LAYERS = {
    "meancap.extras": 0, "meancap.files": 0, "meancap.notation": 0,
    "meancap.tensors": 0, "meancap.path": 0, "meancap.schedules": 0,
    "meancap.cap": 1, "meancap.fast": 2,
    "meancap.prediction": 2,
    "meancap.rules": 3,
    "meancap.record": 4, "meancap.sampling": 4,
    "meancap.adapters": 5, "meancap.__main__": 5,
    "meancap_lab.extras": 6, "meancap_lab.torch_settings": 6, "meancap_lab.tensor_files": 6,
    "meancap_lab.mixtures": 7, "meancap_lab.metrics": 7,
    "meancap_lab.models": 8,
    "meancap_lab.runs": 9,
    "meancap_lab.report": 10,
    "meancap_lab.mixtures.gmm_": 11, "meancap_lab.bench": 11, "meancap_lab.conformance": 11,
    "meancap_lab.explorer": 12,
    "meancap_lab.cli": 13, "meancap_lab.__main__": 14,
}  # fmt: skip


# Modules that import a compiler; others import them inside a function only, where they are used.
KERNELS = {"fast": {"numba", "numpy"}}
PACKAGES = ("meancap", "meancap_lab")


def modules():
    """Every file of both packages with its dotted name."""
    for source in SOURCES:
        for path in sorted(source.rglob("*.py")):
            yield path, ".".join(path.relative_to(source).with_suffix("").parts).removesuffix(".__init__")


def place(name):
    """The longest of LAYERS that holds a dotted name, or None."""
    held = [key for key in LAYERS if f"{name}.".startswith(key if key.endswith("_") else f"{key}.")]
    return max(held, key=len, default=None)


def imported(path, own):
    """Absolute names of everything a file imports, and whether a function does it."""
    here = own.split(".") + [""] * (path.name == "__init__.py")
    tree = ast.parse(path.read_text(encoding="utf-8"))
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
    for path, own in modules():
        if own in PACKAGES:
            continue
        assert place(own), f"{own} has no layer; name it in LAYERS and in docs/contributing.md"
        for name, _ in imported(path, own):
            here, there = place(own), place(name)
            if there in (None, here):
                continue
            if not (LAYERS[there] < LAYERS[here] or LAYERS[there] == LAYERS[here] in (0, 6)):
                wrong.append(f"{own} (layer {LAYERS[here]}) imports {name} ({LAYERS[there]})")
    assert not wrong, "\n".join(wrong)


def test_the_library_names_nothing_of_the_laboratory():
    named = [
        own for path, own in modules() if "meancap_lab" in path.read_text() and own.split(".")[0] == "meancap"
    ]
    assert not named


def test_the_laboratory_s_tests_stand_where_the_modules_stand():
    """test_X.py or test_X_more.py is about the module or package X of its folder, or a script of the page."""
    source, tests = ROOT / "lab" / "src" / "meancap_lab", ROOT / "lab" / "tests"
    wrong = []
    for path in tests.rglob("test_*.py"):
        folder = path.parent.relative_to(tests)
        if folder.parts[:1] in (("repository",), ("studies",)):  # of what stands outside the packages
            continue
        names = [folder.name, *(file.stem for file in (source / folder).glob("[!_]*.*"))]
        if not any(f"{path.stem}_".startswith(f"test_{name}_") for name in names):
            wrong.append(str(path.relative_to(ROOT)))
    assert not wrong


def test_the_core_imports_torch_alone():
    wrong = []
    for path, own in modules():
        if own in PACKAGES[1:] or LAYERS.get(place(own), 0) > 4:
            continue
        allowed = set(sys.stdlib_module_names) | {"torch", "meancap"} | KERNELS.get(path.stem, set())
        for name, inside in imported(path, own):
            kernels = name.rpartition(".")[2] in KERNELS and path.stem not in KERNELS
            if not inside and (name.split(".")[0] not in allowed or kernels):
                wrong.append(f"{own} imports {name} outside of a function")
    assert not wrong, "\n".join(wrong)


def test_one_module_renames_files():
    """`Path.replace` and `Path.rename` take one argument; `str.replace` takes two."""
    wrong = []
    for path, own in modules():
        if own == "meancap.files":
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            if node.func.attr in ("replace", "rename") and len(node.args) == 1 and not node.keywords:
                wrong.append(f"{own}:{node.lineno}; use meancap.files.writing")
    assert not wrong, "\n".join(wrong)


def test_only_commands_change_torch_for_good():
    """Modules of `cli` own the process; others restore what they change."""
    changes = {"torch.manual_seed", "torch.set_num_threads", "torch.set_default_dtype"}
    wrong = []
    for path, own in modules():
        if place(own) in ("meancap_lab.cli", "meancap_lab.torch_settings"):
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        restored = {
            id(node)
            for block in ast.walk(tree)
            if isinstance(block, ast.With) and "fork_rng" in ast.unparse(block.items[0])
            for node in ast.walk(block)
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and ast.unparse(node) in changes and id(node) not in restored:
                wrong.append(f"{own}:{node.lineno} {ast.unparse(node)} is not restored")
    assert not wrong, "\n".join(wrong)
