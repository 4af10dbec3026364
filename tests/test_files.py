"""A file that is written whole is the old one or the new one, whatever happens in between."""

import signal
import subprocess
import sys
from threading import Barrier, Thread

import pytest

from meancap.files import is_temporary, remove_leftovers, write_whole, writing


class Interrupted(BaseException):
    """What a user's Ctrl-C raises is no Exception either."""


@pytest.mark.parametrize("failure", [OSError, ValueError, Interrupted])
def test_a_failure_in_the_middle_keeps_the_old_file_and_leaves_nothing_else(tmp_path, failure):
    path = write_whole(tmp_path / "a.json", "old")
    with pytest.raises(failure), writing(path) as temporary:
        temporary.write_text("ne")
        raise failure
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_nothing_has_the_name_before_the_block_ends(tmp_path):
    path = tmp_path / "a.json"
    with writing(path) as temporary:
        temporary.write_text("new")
        assert not path.exists()
        assert temporary.suffix == path.suffix, "libraries choose a format by the suffix"
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_a_kill_in_the_middle_keeps_the_old_file_and_its_leftover_can_be_removed(tmp_path):
    path = write_whole(tmp_path / "a.json", "old")
    script = (
        "import os, signal, sys\nfrom meancap.files import writing\n"
        "with writing(sys.argv[1]) as temporary:\n"
        "    temporary.write_text('ne')\n    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    killed = subprocess.run([sys.executable, "-c", script, str(path)], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert path.read_text() == "old"
    assert [is_temporary(p) for p in sorted(tmp_path.iterdir())] == [True, False]
    remove_leftovers(tmp_path)
    assert list(tmp_path.iterdir()) == [path]


def test_a_block_that_writes_nothing_is_an_error_and_not_an_empty_file(tmp_path):
    with pytest.raises(FileNotFoundError), writing(tmp_path / "a.json"):
        pass
    assert list(tmp_path.iterdir()) == []


def test_two_threads_never_write_to_one_temporary_file(tmp_path):
    path, meet, names = tmp_path / "a.json", Barrier(2), []

    def write(content):
        with writing(path) as temporary:
            meet.wait(60)
            names.append(temporary)
            temporary.write_text(content)
            meet.wait(60)

    threads = [Thread(target=write, args=(c * 100_000,)) for c in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({*names}) == 2
    assert len({*path.read_text()}) == 1
    assert list(tmp_path.iterdir()) == [path]


def test_a_missing_folder_is_named_and_not_the_temporary_file(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"there is no folder .*nowhere to write a\.json into"):
        write_whole(tmp_path / "nowhere" / "a.json", "x")
