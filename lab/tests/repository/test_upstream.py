"""The patches of integrations/upstream: whole, for the version they name, and capping as the library does."""

import ast
import importlib.util
import re
import shutil
import subprocess
from importlib.metadata import version
from pathlib import Path

import pytest
import torch

from meancap import CFG, Cap, cap_fraction, guided_velocity
from pages import ROOT

FOLDER = ROOT / "integrations" / "upstream"
PATCHES = sorted(FOLDER.glob("*.patch"))


def new_files(patch):
    """Path -> text of every file that a patch adds."""
    text = patch.read_text(encoding="utf-8")
    parts = re.split(r"^diff --git a/\S+ b/(\S+)\n", text, flags=re.MULTILINE)[1:]
    return {
        path: "".join(line[1:] + "\n" for line in body.split("\n") if re.match(r"\+(?!\+\+ b/)", line))
        for path, body in zip(parts[::2], parts[1::2], strict=True)
        if body.startswith("new file")
    }


def loaded(name, path, text):
    path.write_text(text, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def given(count=3):
    g = torch.Generator().manual_seed(4)
    return (torch.randn(count, 4, 6, 6, generator=g) for _ in range(3))


@pytest.mark.parametrize("patch", PATCHES, ids=lambda path: path.stem)
def test_a_patch_has_a_text_and_whole_hunks(patch):
    text = patch.read_text(encoding="utf-8")
    head, *_ = text.split("\ndiff --git ")
    base, subject = head.split("\n")[:2]
    assert re.fullmatch(r"Applies to: \S+/\S+ (\d+\.\d+\.\d+|[0-9a-f]{40})", base)
    assert subject.startswith("Subject: ") and len(head.split("\n")) > 8
    assert patch.name in (FOLDER / "README.md").read_text(encoding="utf-8")
    read = subprocess.run(["git", "apply", "--numstat", str(patch)], capture_output=True, text=True)
    assert read.returncode == 0 and read.stdout.count("\n") == text.count("\ndiff --git "), read.stderr
    for path, content in new_files(patch).items():
        if path.endswith(".py"):
            ast.parse(content, path)


def test_the_diffusers_patch_fits_the_version_that_is_installed(tmp_path):
    package = importlib.util.find_spec("diffusers")
    if package is None or shutil.which("git") is None:
        pytest.skip("diffusers or git is not installed")
    patch = FOLDER / "diffusers.patch"
    text = patch.read_text(encoding="utf-8")
    wanted = re.match(r"Applies to: \S+ (\S+)", text).group(1)
    assert f"diffusers=={wanted}\n" in (ROOT / "constraints.txt").read_text(encoding="utf-8")
    if version("diffusers") != wanted:
        pytest.skip(f"diffusers {wanted} is not installed")
    for name in set(re.findall(r"^diff --git a/src/diffusers/(\S+)", text, re.MULTILINE)):
        source = Path(package.origin).parent / name
        (tmp_path / "src" / "diffusers" / name).parent.mkdir(parents=True, exist_ok=True)
        if source.exists():
            shutil.copyfile(source, tmp_path / "src" / "diffusers" / name)
    subprocess.run(["git", "apply", "--check", str(patch)], cwd=tmp_path, check=True)


def test_the_diffusers_guider_caps_as_the_library_does(tmp_path):
    pytest.importorskip("diffusers.guiders")
    files = new_files(FOLDER / "diffusers.patch")
    path = "src/diffusers/guiders/posterior_mean_cap_guidance.py"
    module = loaded("diffusers.guiders.posterior_mean_cap_guidance", tmp_path / "guider.py", files[path])
    x, v_c, v_u = given()
    guider = module.PosteriorMeanCapGuidance(guidance_scale=7.0, gamma=1.1)
    guider.set_state(step=0, num_inference_steps=4, timestep=torch.tensor(600.0))
    guider.prepare_inputs({"hidden_states": (x, x)})
    # Their velocity is noise - data.
    expected = -guided_velocity(CFG(7.0) | Cap(1.1), x, 0.4, -v_c, -v_u)[0]
    torch.testing.assert_close(guider.forward(v_c, v_u).pred, expected, rtol=1e-5, atol=1e-5)


def test_the_comfyui_node_caps_as_the_library_does(tmp_path):
    text = new_files(FOLDER / "comfyui.patch")["comfy_extras/nodes_pmc.py"]
    function = next(
        part for part in ast.parse(text).body if getattr(part, "name", "") == "posterior_mean_cap"
    )
    module = loaded("nodes_pmc", tmp_path / "nodes_pmc.py", f"import torch\n{ast.unparse(function)}\n")
    m, other, _ = given()
    guided = 3 * other
    share = cap_fraction(m, guided - m, 1.1)
    assert (share < 1).any()
    expected = m + share * (guided - m)
    torch.testing.assert_close(module.posterior_mean_cap(m, guided, 1.1), expected, rtol=1e-5, atol=1e-5)
