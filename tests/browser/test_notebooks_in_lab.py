"""A notebook of the repository, run in JupyterLab in Chromium: both dashboards end up drawn and the assertions hold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nbformat
import pytest

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("browser"), pytest.mark.timeout(180)]

NOTEBOOK = Path(__file__).resolve().parents[2] / "notebooks" / "30_live_timeline.ipynb"
LAST_HAS_RUN = """() => {
    const code = window.jupyterapp.shell.currentWidget.content.widgets.filter((c) => c.model.type === 'code');
    return Boolean(code[code.length - 1].model.executionCount);
}"""
SCROLL_TO = "(i) => window.jupyterapp.shell.currentWidget.content.scrollToItem(i, 'smart')"


def small(root: Path) -> Path:
    """A copy with the sizes of CI."""
    book = nbformat.read(NOTEBOOK, as_version=4)
    cell = next(c for c in book.cells if "parameters" in c.metadata.get("tags", []))
    cell.source += "\nsamples, iterations = 24, 5"
    path = root / NOTEBOOK.name
    nbformat.write(book, path)
    return path


@pytest.mark.parametrize("theme", ["dark"])
def test_live_timeline_runs_in_jupyterlab(jupyterlab: Any, theme: str) -> None:
    lab = jupyterlab.open_notebook(small(jupyterlab.root), theme=theme, size=(1366, 900))
    lab.run_all(wait=False)
    lab.wait_until(lambda: lab.page.evaluate(LAST_HAS_RUN) or any(lab.errors()), "the last cell", 120)
    assert not any(lab.errors())
    boards = [i for i, c in enumerate(nbformat.read(NOTEBOOK, as_version=4).cells) if c.source.rstrip().endswith("show(run, charts=(\"loss\",));")]
    assert len(boards) == 1
    lab.page.evaluate(SCROLL_TO, boards[0])
    board = lab.page.locator(".rl-dashboard").first
    board.scroll_into_view_if_needed()
    lab.wait_until(lambda: "finished" in board.inner_text() and "5 / 5" in board.inner_text(), "the end on the dashboard")
    lab.wait_until(lambda: int(board.locator(".rl-timeline").evaluate("(e) => e.dataset.spans") or 0) > 200, "the spans")
    assert "NaN" not in board.inner_text()
    lab.screenshot(f"notebook-30-{theme}")
