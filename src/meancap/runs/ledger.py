"""Which run a folder belongs to: its run.json, begun once and compared every time after that.

    kind       what sort of run: images, gmm (the mixture experiment), bench (the benchmark) or a study
    identity   the parts of run.json that decide the numbers, such as the configuration and the versions
    the rest   what may change while the run goes on, such as `finished`

A new or empty folder is begun. A folder with the same kind and identity goes on where it was left. Every
other folder is refused in one sentence, and stays as it is.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..files import is_temporary, write_whole

FORMAT = 1
FIELDS = {  # what run.json holds, by kind
    "images": {"config", "made_with", "finished"},
    "gmm": {"config", "made_with", "finished"},
    "bench": {"config", "problems", "families"},
    "label-noise": {"config", "made_with"},
    "wind": {"config", "made_with"},
    "feedback": {"config", "made_with"},
    "avoid": {"config", "made_with"},
}


class RunRefused(ValueError):
    """The folder belongs to another run, or cannot be used."""


@dataclass(frozen=True)
class Ledger:
    """The run.json of one folder."""

    folder: Path
    kind: str  # one of FIELDS

    def begin(self, identity: Mapping[str, Mapping[str, Any]], **rest: Any) -> dict[str, Any]:
        """Begins the folder or checks that it belongs to this run; the caller holds the lock."""
        old = self.read()
        if old is not None:
            changed = [d for part, value in identity.items() for d in differences(old[part], value)]
            if changed:
                raise RunRefused(
                    f"{self.folder} belongs to another run: {'; '.join(changed)}; give another folder"
                )
            return old
        if not all(is_temporary(path) for path in self.folder.iterdir()):
            raise RunRefused(f"{self.folder} holds files but no run.json; give an empty or a new folder")
        named = {} if self.kind == "images" else {"experiment": self.kind}
        begun = {"format": FORMAT, **named, **{k: dict(v) for k, v in identity.items()}, **rest}
        self.write(begun)
        return begun

    def read(self) -> dict[str, Any] | None:
        """The content of run.json, or None where there is none."""
        path = self.folder / "run.json"
        if not path.is_file():
            return None
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except ValueError:
            raise RunRefused(f"{path} is damaged; move the folder away and start again") from None
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise RunRefused(f"{path} is not a run of format {FORMAT}; give another folder")
        if (kind := _kind(content)) != self.kind:
            raise RunRefused(f"{path} is of the experiment {kind!r}, not {self.kind!r}; give another folder")
        if missing := FIELDS[kind] - content.keys():
            raise RunRefused(f"{path} lacks {', '.join(sorted(missing))}; move the folder away")
        return content

    def write(self, content: Mapping[str, Any]) -> None:
        """Replaces run.json."""
        text = json.dumps(content, indent=1, ensure_ascii=False)
        write_whole(self.folder / "run.json", text + "\n")

    @property
    def finished(self) -> bool:
        """Whether the run is complete; a benchmark never is, since more can always be added."""
        content = self.read()
        return content is not None and content.get("finished") is not None

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Makes the folder if there is none, and locks it for one process."""
        if self.folder.exists() and not self.folder.is_dir():
            raise RunRefused(f"{self.folder} is a file; a run needs a folder")
        self.folder.mkdir(parents=True, exist_ok=True)
        with locked(self.folder):
            yield


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Admits one process at a time; the system releases the lock when the process ends, however it ends."""
    try:
        import fcntl
    except ImportError:  # not a POSIX system: one process there
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """What differs between two configurations, one phrase each."""
    phrases = []
    for key in [*new, *(k for k in old if k not in new)]:
        a, b = old.get(key), new.get(key)
        if a != b:
            phrases.append(f"{key} was {_short(a)}, now {_short(b)}")
    return phrases


def _kind(content: Mapping[str, Any]) -> str:
    """Earlier versions named the kind of the mixture experiment only."""
    return str(content.get("experiment") or ("bench" if "families" in content else "images"))


def _short(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:40]}… ({len(text)} characters)"
