"""A folder belongs to one run: begun once, it goes on under the same configuration and refuses any other."""

import pytest

from meancap_lab.mixtures.gmm_experiment import begin_run
from meancap_lab.mixtures.gmm_settings import GMMConfig
from meancap_lab.runs.config import RunIdentity, versions
from meancap_lab.runs.folder import Ledger, RunRefused, Store


def begin_images(folder, **changes):
    Store(folder, RunIdentity("m", "0", "CFG(1)", times=(0.0, 1.0), count=1, **changes), versions())


def begin_mixture(folder, **changes):
    begin_run(folder, GMMConfig(**changes))


BEGIN = {"images": begin_images, "gmm": begin_mixture}
kinds = pytest.mark.parametrize("kind", BEGIN)


def content(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


@kinds
def test_the_same_configuration_goes_on_and_changes_nothing(tmp_path, kind):
    BEGIN[kind](tmp_path / "run")
    before = content(tmp_path / "run")
    BEGIN[kind](tmp_path / "run")
    assert content(tmp_path / "run") == before and Ledger(tmp_path / "run", kind).read()


@kinds
def test_another_configuration_is_refused_in_one_sentence_and_the_folder_stays(tmp_path, kind):
    BEGIN[kind](tmp_path)
    before = content(tmp_path)
    with pytest.raises(RunRefused, match=r"belongs to another run: seed was 0, now 3; give another folder$"):
        BEGIN[kind](tmp_path, seed=3)
    assert content(tmp_path) == before


@kinds
def test_no_run_takes_the_folder_of_another_kind(tmp_path, kind):
    BEGIN[kind](tmp_path)
    for other in set(BEGIN) - {kind}:
        with pytest.raises(RunRefused, match=f"is of the experiment '{kind}', not '{other}'"):
            BEGIN[other](tmp_path)


@kinds
def test_files_of_someone_else_are_left_alone(tmp_path, kind):
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(RunRefused, match=r"holds files but no run\.json"):
        BEGIN[kind](tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
    with pytest.raises(RunRefused, match="a run needs a folder"):
        BEGIN[kind](tmp_path / "thesis.tex")


@kinds
@pytest.mark.parametrize(
    ("text", "words"),
    [("{", "is damaged"), ("[]", "not a run of format 1"), ('{"format": 2}', "not a run of format 1")],
)
def test_a_file_that_is_no_ledger_is_refused(tmp_path, kind, text, words):
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(RunRefused, match=words):
        BEGIN[kind](tmp_path)


@kinds
def test_a_kill_before_the_first_file_does_not_block_the_folder(tmp_path, kind):
    (tmp_path / ".part-12-12-run.json").write_text("{")
    BEGIN[kind](tmp_path)
