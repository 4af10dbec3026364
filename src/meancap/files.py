"""Files that are written whole: a name holds the complete new content, the complete old content, or nothing.

    with writing("figure.png") as temporary:   # a temporary name in the same folder
        figure.savefig(temporary)              # anything that writes to a path
    write_whole("table.csv", text)             # the same for content that is already in memory

The temporary file is flushed to the disk and then renamed, which the system does in one step. If the block
fails, the temporary file is removed and the old file stays. A killed process cannot remove its own;
`remove_leftovers` does, once no process writes to that folder any more.
"""

from __future__ import annotations

import csv
import hashlib
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import StringIO
from pathlib import Path

_PREFIX = ".part-"


@contextmanager
def writing(path: str | Path) -> Iterator[Path]:
    """Gives a temporary name to write to; after the block the file takes the name `path`.

    The temporary name contains the ids of the process and of the thread, so that writers never share one, and
    ends with the name of the file, so that libraries recognise its suffix.
    """
    path = Path(path)
    folder = path.absolute().parent
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no folder {path.parent} to write {path.name} into; make it first")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(f"{folder} cannot be written to; give another folder for {path.name}")
    temporary = path.with_name(f"{_PREFIX}{os.getpid()}-{threading.get_native_id()}-{path.name}")
    try:
        yield temporary
        _flush(temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)  # after a rename there is nothing left to remove


def write_whole(path: str | Path, content: bytes | str) -> Path:
    """Writes bytes, or text as UTF-8, so that the file appears whole or not at all; returns its path."""
    with writing(path) as temporary:
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)
    return Path(path)


def csv_text(rows: Sequence[Mapping[str, object]]) -> str:
    """Rows as CSV; columns in the order in which their keys first appear, empty if a row lacks one."""
    text = StringIO()
    columns = list(dict.fromkeys(key for row in rows for key in row))
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def is_temporary(path: Path) -> bool:
    """Whether a file is one that `writing` writes to."""
    return path.name.startswith(_PREFIX)


def remove_leftovers(folder: Path) -> None:
    """Removes the temporary files directly inside a folder that no process writes to any more."""
    for path in folder.glob(f"{_PREFIX}*"):
        path.unlink(missing_ok=True)


def sha256_of(path: str | Path) -> str:
    """SHA-256 of a file, read in pieces."""
    sha = hashlib.sha256()
    with Path(path).open("rb") as file:
        while piece := file.read(1 << 22):
            sha.update(piece)
    return sha.hexdigest()


def _flush(path: Path) -> None:
    """Waits until the content is on the disk: a rename must not overtake it if the power fails."""
    file = os.open(path, os.O_RDWR)
    try:
        os.fsync(file)
    finally:
        os.close(file)
