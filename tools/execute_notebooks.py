"""Executes notebooks as they are stored and keeps the outputs: `make notebooks ARGS="notebooks/02_compare.ipynb"`.

Widgets leave pictures (nobody looks at a widget in a file), states of widgets and what the tool noted go, and the last
cell, which asserts what the notebook claims, is folded: who runs all cells ends at the last picture.
"""

from __future__ import annotations

import sys
from pathlib import Path

import nbformat
import papermill

ROOT = Path(__file__).resolve().parents[1]
NOTES = ("papermill", "widgets")


def execute(path: Path) -> None:
    """In place; raises what the notebook raised, and leaves the file as it was."""
    book = papermill.execute_notebook(path, None, cwd=path.parent, progress_bar=False)
    for note in NOTES:
        book.metadata.pop(note, None)
    for cell in book.cells:
        for note in (*NOTES, "execution"):
            cell.metadata.pop(note, None)
        cell.metadata.pop("tags", None) if not cell.metadata.get("tags") else None
        for output in cell.get("outputs", []):
            if "text" in output:  # a traceback says where the project lies
                output["text"] = output["text"].replace(f"{ROOT}/", "")
            if "image/svg+xml" in output.get("data", {}):  # the same picture once more
                output.data.pop("text/html", None)
    book.cells[-1].metadata["jupyter"] = {"source_hidden": True}
    nbformat.write(book, path)


if __name__ == "__main__":
    for name in sys.argv[1:] or sorted(Path("notebooks").glob("*.ipynb")):
        execute(Path(name))
        print(name, f"{Path(name).stat().st_size / 1e3:,.0f} kB", flush=True)
