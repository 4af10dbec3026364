"""Runs the notebooks: `python tools/notebooks.py` writes their outputs anew, --check compares the words.

Pictures are kept small and are not compared: their bytes depend on the version of matplotlib.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = sorted((ROOT / "examples" / "notebooks").glob("*.ipynb"))


def executed(path: Path):  # type: ignore[no-untyped-def]
    """The notebook with the outputs of a fresh run."""
    import nbformat
    from nbclient import NotebookClient

    book = nbformat.read(path, as_version=4)
    if sys.platform == "win32":
        asyncio.set_event_loop_policy(asyncio.WindowsSelectorEventLoopPolicy())
    NotebookClient(
        book, timeout=120, kernel_name="python3", resources={"metadata": {"path": str(ROOT)}}
    ).execute()
    for cell in book.cells:
        cell.metadata.pop("execution", None)  # when it ran
    return book


def words(book) -> list[str]:  # type: ignore[no-untyped-def]
    """What each cell of code printed."""
    cells = (cell for cell in book.cells if cell.cell_type == "code")
    return ["".join(out.get("text", "") for out in cell.outputs) for cell in cells]


def main(argv: list[str] | None = None) -> int:
    """Runs each notebook; returns 1 if one said something else than it holds."""
    import nbformat

    parser = argparse.ArgumentParser(description="Runs the notebooks and keeps their outputs.")
    parser.add_argument("--check", action="store_true", help="compare the words, write nothing")
    parser.add_argument("names", nargs="*", help="only these, without .ipynb")
    options = parser.parse_args(argv)
    changed = False
    for path in NOTEBOOKS:
        if options.names and path.stem not in options.names:
            continue
        book = executed(path)
        if not options.check:
            nbformat.write(book, path)
        elif (now := words(book)) != (kept := words(nbformat.read(path, as_version=4))):
            changed = True
            print(f"{path.name} says\n{now}\nand holds\n{kept}\nrun: python tools/notebooks.py {path.stem}")
    return int(changed)


if __name__ == "__main__":
    sys.exit(main())
