"""`jupyter nbconvert --execute`, papermill and the like: nobody looks at a widget, the page made of the file shows the pictures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient
from nbconvert import HTMLExporter

from rlinf_lab.widgets import Dashboard, express
from rlinf_lab.widgets.fallback import WIDGET

CELLS = [
    """
import sys
sys.path.insert(0, {folder!r})
from widget_samples import SampleRun
from rlinf_lab.widgets import Dashboard, TimelineView
from IPython.display import display
sample = SampleRun()
board = Dashboard("made up", charts=["loss"])
handle = display(board, display_id=True)
""",
    """
for _ in range(3):
    board.push({"state": "running"}, [sample.step()], sample.timeline)
board.push({"state": "finished"}, timeline=sample.timeline, final=True)
handle.update(board)
TimelineView(sample.timeline)
""",
]


def test_a_notebook_that_a_program_has_run_shows_the_pictures(tmp_path: Path) -> None:
    folder = str(Path(__file__).parent)
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell.replace("{folder!r}", repr(folder))) for cell in CELLS])
    NotebookClient(book, timeout=60, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [output for cell in book.cells for output in cell.outputs]
    assert len(outputs) == 2 and not any(WIDGET in output.data for output in outputs)
    html, _ = HTMLExporter().from_notebook_node(book)
    for words in ("made up · finished", "loss: ", "simulator", "Timeline: 2 devices"):
        assert words in html
    assert html.count('role="img"') >= 2


class Kernel:
    def __init__(self, allow_stdin: bool) -> None:
        self._allow_stdin = allow_stdin


@pytest.mark.parametrize(
    ("allow_stdin", "server", "asked", "live"),
    [(True, "", False, True), (False, "", False, False), (False, "voila/0.5.8", False, True), (False, "", True, True), (None, "", False, True)],
)
def test_a_widget_is_there_where_a_page_may_show_it(
    monkeypatch: pytest.MonkeyPatch, allow_stdin: bool | None, server: str, asked: bool, live: bool
) -> None:
    """Also for a page that has asked before some program looked into the kernel."""
    board: Any = Dashboard()
    if asked:
        board._receive(board, {"type": "command", "command": "pause"}, [])
    monkeypatch.setenv("SERVER_SOFTWARE", server)
    monkeypatch.setattr(express, "kernel", lambda: None if allow_stdin is None else Kernel(allow_stdin))
    data, _ = board._repr_mimebundle_()
    assert (WIDGET in data) is live and data["text/html"] and data["image/png"]
