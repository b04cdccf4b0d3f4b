"""The notebooks of the repository, run in JupyterLab in Chromium at the sizes of CI: no error, live boards drawn, nothing cut off, both themes.

Pictures of what a reader sees go to ``test-artifacts/notebook-*.png``.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "notebooks"))
from test_notebooks import IN_LAB, NOTEBOOKS, SMALL

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("browser"), pytest.mark.timeout(240)]

# The others are run by nbclient; what they show is in these, too.
HERE = [
    pytest.param(path, id=path.stem, marks=[] if path.stem == "00_hello" else [pytest.mark.long if path.stem in IN_LAB else pytest.mark.slow])
    for path in NOTEBOOKS
    if path.stem != "63_vllm"  # which has an environment of its own, without a browser
]

EVERY_CELL_HAS_RUN = """() => {
    const code = window.jupyterapp.shell.currentWidget.content.widgets.filter((c) => c.model.type === 'code');
    return code.every((c) => c.model.executionCount);
}"""
# Ids of the cells that leave more than printed text.
SHOWING = """() => window.jupyterapp.shell.currentWidget.content.widgets.filter((c) => c.model.type === 'code'
    && Array.from({length: c.model.outputs.length}, (_, i) => c.model.outputs.get(i)).some((o) => o.type !== 'stream')).map((c) => c.model.id)"""
# Scrolls to a cell's output and says what is there.
SHOW = """async (id) => {
    const notebook = window.jupyterapp.shell.currentWidget.content;
    const index = notebook.widgets.findIndex((c) => c.model.id === id);
    notebook.activeCellIndex = index;
    await notebook.scrollToItem(index, 'start');
    const output = notebook.widgets[index].node.querySelector('.jp-Cell-outputWrapper');
    output.scrollIntoView({block: output.offsetHeight < 780 ? 'center' : 'start'});
    const right = notebook.node.getBoundingClientRect().right;
    return {
        height: output.offsetHeight,
        cut: [...output.querySelectorAll('.jp-OutputArea-output > *')].filter((e) => e.getBoundingClientRect().right > right + 1)
            .map((e) => e.textContent.slice(0, 80)),
        boards: [...output.querySelectorAll('.rl-dashboard')].map((e) => e.innerText),
        explorers: [...output.querySelectorAll('.rl-explorer')].map((e) => e.dataset.best),
        spans: [...output.querySelectorAll('.rl-timeline')].map((e) => Number(e.dataset.spans || 0)),
    };
}"""


def small(path: Path, root: Path) -> Path:
    """A copy with the sizes of CI."""
    book = nbformat.read(path, as_version=4)
    cell = next(c for c in book.cells if "parameters" in c.metadata.get("tags", []))
    cell.source += "".join(f"\n{name} = {value!r}" for name, value in SMALL[path.stem].items())
    copy = root / path.name
    nbformat.write(book, copy)
    return copy


def dashboards(source: str) -> int:
    """How many a cell shows: of runs and trainings, unless told not to, and by ``lab.show``."""
    return sum("lab.show(" in line or "lab.train(" in line or ("lab.run(" in line and "dashboard=False" not in line) for line in source.split("\n"))


@pytest.mark.parametrize("path", HERE)
def test_a_notebook_runs_in_jupyterlab(jupyterlab: Any, path: Path) -> None:
    lab = jupyterlab.open_notebook(small(path, jupyterlab.root), theme="dark", size=(1366, 900))
    failures: list[str] = []
    lab.page.on("pageerror", lambda error: failures.append(str(error)))
    lab.run_all(wait=False)
    lab.wait_until(lambda: lab.page.evaluate(EVERY_CELL_HAS_RUN) or any(lab.errors()), "the last cell", 200, every=0.5)
    assert not any(lab.errors())
    boards, spans, explorers = [], [], []
    for theme in ("dark", "light"):
        if theme == "light":
            lab.set_theme(theme)
        for cell in lab.page.evaluate(SHOWING):
            lab.page.evaluate(SHOW, cell)
            lab.page.wait_for_timeout(250)
            seen = lab.page.evaluate(SHOW, cell)  # again: what was above it has its own height now
            lab.screenshot(f"notebook-{path.stem[:2]}-{theme}-{cell}")
            assert seen["cut"] == [] and seen["height"] > 10, cell
            boards += seen["boards"]
            spans += seen["spans"]
            explorers += seen["explorers"]
    code = [c.source for c in nbformat.read(path, as_version=4).cells if c.cell_type == "code"]
    assert len(boards) == 2 * sum(map(dashboards, code)), "each run that is shown leaves a dashboard, in both themes"
    assert len(explorers) == 2 * sum("lab.PlanExplorer(" in source for source in code) and all(explorers)
    assert all("finished" in board and "NaN" not in board for board in boards)
    assert all(n > 50 for n in spans), spans
    assert not failures
