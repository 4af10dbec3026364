"""Ready to be published: metadata, placeholders, workflows, archives. Skips where a tool is missing."""

import json
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

import meancap_lab
from meancap import __version__
from pages import ROOT

yaml = pytest.importorskip("yaml")
sys.path.insert(0, str(ROOT / "tools"))
import matrix  # noqa: E402
import owner  # noqa: E402

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
SCHEMAS = [
    *(("vendor.github-workflows", path) for path in WORKFLOWS),
    ("vendor.dependabot", ROOT / ".github" / "dependabot.yml"),
    ("vendor.readthedocs", ROOT / ".readthedocs.yaml"),
    ("vendor.citation-file-format", ROOT / "CITATION.cff"),
]


def text(path):
    return (ROOT / path).read_text(encoding="utf-8")


def project(folder="."):
    return tomllib.loads(text(f"{folder}/pyproject.toml"))


def tracked():
    done = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        pytest.skip("not a clone")
    return [ROOT / name for name in done.stdout.split("\n") if name]


@pytest.fixture
def copy(tmp_path):
    """The files that the command reads or writes, elsewhere."""
    others = ("CHANGELOG.md", "src/meancap/__init__.py")
    for path in (*owner.files(ROOT), *(ROOT / name for name in others)):
        there = tmp_path / path.relative_to(ROOT)
        there.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, there)
    return tmp_path


def test_one_command_fills_in_the_owner_and_may_be_run_again(copy, capsys):
    assert owner.main(["--check"], copy) == 1
    for name, publisher in (("ada-lovelace", "lovelace"), ("Grace", "grace")):
        assert owner.main([name, "--publisher", publisher], copy) == 0
        assert owner.owner(copy) == name
        assert f'PublisherId = "{publisher}"' in (copy / "pyproject.toml").read_text(encoding="utf-8")
        assert owner.main(["--check"], copy) == 0
        for path in owner.files(copy):
            assert "OWNER" not in path.read_text(encoding="utf-8"), path
    assert "lovelace" not in "".join(path.read_text(encoding="utf-8") for path in owner.files(copy))
    assert owner.main(["Grace"], copy) == 0
    assert capsys.readouterr().out.endswith("nothing to change\n")


def test_a_tag_that_is_not_the_version_is_refused(copy, capsys):
    owner.main(["ada"], copy)
    assert owner.main(["--check", "--tag", "v9.9.9"], copy) == 1
    assert f"meancap.__version__ is {__version__}" in capsys.readouterr().out
    log = copy / "CHANGELOG.md"
    log.write_text(
        log.read_text(encoding="utf-8").replace("## Unreleased", f"## {__version__}"), encoding="utf-8"
    )
    assert owner.main(["--check", "--tag", f"v{__version__}"], copy) == 0


def test_a_name_that_github_would_refuse_is_refused(copy, capsys):
    assert owner.main(["no/slash"], copy) == 2
    assert "got 'no/slash'" in capsys.readouterr().err


def test_no_other_file_has_the_placeholder():
    known = {*owner.files(ROOT), ROOT / "tools" / "owner.py", Path(__file__)}
    pattern = re.compile(rf"\b{owner.PLACEHOLDER}(/meancap|\.github\.io)|\"{owner.PLACEHOLDER}\"")
    for path in tracked():
        if path in known or path.suffix in {".png", ".jpg", ".safetensors"} or not path.is_file():
            continue
        assert not pattern.search(path.read_text(encoding="utf-8")), f"list {path.name} in tools/owner.py"


def test_the_metadata_have_what_an_index_shows():
    found, lab = project()["project"], project("lab")["project"]
    trove = pytest.importorskip("trove_classifiers")
    assert set(found["classifiers"]) <= trove.classifiers
    assert {"Repository", "Documentation", "Changelog", "Issues"} <= set(found["urls"])
    assert found["authors"] and len(found["keywords"]) >= 5 and len(found["description"]) < 120
    least = found["requires-python"].removeprefix(">=")
    shown = [c.rsplit(" ", 1)[1] for c in found["classifiers"] if re.search(r":: 3\.\d+$", c)]
    assert shown[0] == least and shown == [python for python, _ in matrix.PAIRS]
    assert found["dependencies"] == ["torch>=" + matrix.PAIRS[0][1].removesuffix(".0")]
    assert set(lab["classifiers"]) <= trove.classifiers and lab["requires-python"] == found["requires-python"]


def test_both_packages_have_one_version_and_the_laboratory_requires_it():
    assert meancap_lab.__version__ == __version__
    assert project("lab")["project"]["dependencies"] == [f"meancap=={__version__}"]
    assert project()["project"]["optional-dependencies"]["lab"] == [f"meancap-lab=={__version__}"]


def test_the_registry_gets_what_it_asks_for():
    """The specification of registry.comfy.org, and what `comfy node validate` reads (comfy-cli 1.23)."""
    found = project()
    comfy = found["tool"]["comfy"]
    assert re.fullmatch(r"[a-z][a-z0-9]*([._-][a-z0-9]+)*", found["project"]["name"])
    assert re.fullmatch(r"\d+\.\d+\.\d+", __version__)
    assert found["project"]["urls"]["Repository"].startswith("https://github.com/")
    assert "comfyui" not in found["project"]["name"] and comfy["DisplayName"] and comfy["PublisherId"]
    assert comfy["requires-comfyui"] == ">=0.3.48"
    assert "Operating System :: OS Independent" in found["project"]["classifiers"]
    icon = ROOT / comfy["Icon"].split("/main/")[1]
    assert icon.suffix == ".svg" and icon.read_text(encoding="utf-8").startswith("<svg")
    ignored = text(".comfyignore").split("\n")
    needed = {"src", "example_workflows"}
    folders = {path.relative_to(ROOT).parts[0] for path in tracked() if path.parent != ROOT}
    assert {name for name in folders if f"{name}/" not in ignored} == needed


def test_nothing_that_the_registry_scans_evaluates_text():
    """Its security check: exec, eval and two statements on a line."""
    command = [sys.executable, "-m", "ruff", "check", "src", "__init__.py", "-q", "--select=S102,S307,E702"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(("schema", "path"), SCHEMAS, ids=lambda value: getattr(value, "name", None))
def test_files_for_services_fit_their_schemas(schema, path):
    pytest.importorskip("check_jsonschema")
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema, str(path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_the_steps_of_workflows_are_commands_that_exist(path):
    """Shell that bash can read, targets that the Makefile has, files that are there."""
    targets = set(re.findall(r"^([a-z-]+):", text("Makefile"), re.MULTILINE))
    jobs = yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"]
    steps = [step for job in jobs.values() for step in job["steps"]]
    assert all(("run" in step) != ("uses" in step) for step in steps)
    for run in (step["run"] for step in steps if "run" in step):
        if bash := shutil.which("bash"):
            subprocess.run([bash, "-n"], input=run, text=True, check=True)
        assert set(re.findall(r"make ([a-z-]+)", run)) <= targets
        for name in re.findall(r"\b(tools/\w+\.py|constraints\.txt)|(\.github/[\w/-]+\.txt)", run):
            assert (ROOT / "".join(name)).exists()
        for install in re.findall(r"pip install (.*)", run):  # by hashes, or nothing but our own source
            own = re.fullmatch(r"--no-index --no-deps --no-build-isolation (-e )?\.( -e lab)?", install)
            assert own or re.fullmatch(r"--require-hashes (--no-deps )?-r \.github/\S+\.txt", install)


def test_locked_packages_have_hashes_and_the_versions_of_the_constraints():
    named = re.compile(
        r"^([\w.-]+)==([^ ;\\]+)(?: ;[^\\]*)?((?:\s*\\?\s*--hash=sha256:[0-9a-f]{64})*)$", re.M
    )
    lines = re.findall(r"^([\w.-]+)==(.*)$", text("constraints.txt"), re.M)
    pinned = {re.sub("[_.]", "-", name.lower()): version for name, version in lines}
    locks = sorted((ROOT / ".github" / "requirements").glob("*.txt"))
    assert [path.stem for path in locks] == ["comfy", "comfyui", "core", "release", "test", "torch-cpu"]
    for path in locks:
        content = path.read_text(encoding="utf-8")
        rows = named.findall(content)
        assert len(rows) == len(re.findall(r"^\w", content, re.M)) and all(hashes for _, _, hashes in rows), (
            path.name
        )
        if path.stem in ("release", "test"):
            assert {name: version for name, version, _ in rows}.items() <= pinned.items()
    assert {name for name, _, _ in rows} == {"torch"} and rows[0][1] == pinned["torch"] + "+cpu"
    assert set(pinned) - {"torch"} == set(
        re.findall(r"^([\w.-]+)==", text(".github/requirements/test.txt"), re.M)
    )


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_run_pinned_actions_and_write_only_where_nothing_is_built(path):
    """A tag or a branch can be moved to other code; a commit cannot."""
    found = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert found["permissions"] == {"contents": "read"}
    for job in found["jobs"].values():
        steps = job["steps"]
        assert all(re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", step["uses"]) for step in steps if "uses" in step)
        if "permissions" in job:
            assert not any("run" in step or "checkout" in step["uses"] for step in steps)
        for step in steps:  # secrets reach our own commands alone
            assert "secrets." not in json.dumps(step) or "run" in step


def test_the_citation_names_this_version():
    found = yaml.safe_load(text("CITATION.cff"))
    assert found["version"] == __version__ and found["license"] == "MIT"
    assert "2609.24287" in json.dumps(found["references"])


@pytest.fixture(scope="module")
def archives(tmp_path_factory):
    """Wheels and source archives of both packages, built as the workflow builds them, in this environment."""
    for name in ("build", "hatchling"):
        pytest.importorskip(name)
    out = tmp_path_factory.mktemp("dist")
    for folder in (ROOT, ROOT / "lab"):
        command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(folder)]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    return {path.name.split("-")[0] + path.suffix: path for path in out.iterdir()}


def test_the_archives_pass_the_checks_of_the_index(archives):
    for name in ("twine", "check_wheel_contents"):
        pytest.importorskip(name)
    wheels = [path for path in archives.values() if path.suffix == ".whl"]
    for command in (["twine", "check", "--strict", *archives.values()], ["check_wheel_contents", *wheels]):
        done = subprocess.run([sys.executable, "-m", *map(str, command)], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("name", "folder", "limit"), [("meancap", "src", 250_000), ("meancap_lab", "lab/src", 25_000_000)]
)
def test_a_wheel_is_the_package_and_nothing_else(archives, name, folder, limit):
    path = archives[f"{name}.whl"]
    with zipfile.ZipFile(path) as wheel:
        own = {one for one in wheel.namelist() if not one.startswith(f"{name}-{__version__}.dist-info/")}
    inside = [one for one in tracked() if one.is_relative_to(ROOT / folder) and one.is_file()]
    assert own == {one.relative_to(ROOT / folder).as_posix() for one in inside}
    assert path.stat().st_size < limit


def test_the_long_description_has_whole_addresses(archives):
    with zipfile.ZipFile(archives["meancap.whl"]) as wheel:
        metadata = wheel.read(f"meancap-{__version__}.dist-info/METADATA").decode()
    links = re.findall(r"\]\(([^)\s]+)\)", metadata)
    assert len(links) > 10 and all(re.match(r"https://|#", link) for link in links)
    pictures = re.findall(r"!\[[^\]]*\]\(([^)]+)\)", metadata)
    assert pictures and all((ROOT / link.split("/main/")[1]).exists() for link in pictures)


def test_the_source_archive_leaves_out_what_only_pages_need(archives):
    path = archives["meancap.gz"]
    with tarfile.open(path) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames()}
    assert {"pyproject.toml", "README.md", "LICENSE", "tools/hatch_readme.py", "tests/conftest.py"} <= names
    assert not any(name.startswith(("docs/", "lab/", ".github/")) for name in names)
    assert path.stat().st_size < 1_000_000
