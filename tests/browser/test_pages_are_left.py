"""What one notebook leaves in the page that the next one is opened in, and who is told of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

pytestmark = [pytest.mark.long, pytest.mark.browser, pytest.mark.xdist_group("browser"), pytest.mark.timeout(180)]

MARK = "(mark) => window.jupyterapp.shell.currentWidget.content.model.sharedModel.setMetadata('mark', mark)"


@contextmanager
def slow_answers(page: Any, milliseconds: int) -> Iterator[None]:
    """Every answer of the server comes late: a save has four of them, and looks at the file before it writes."""
    network = page.context.new_cdp_session(page)
    late = {"offline": False, "latency": milliseconds, "downloadThroughput": -1, "uploadThroughput": -1}
    network.send("Network.emulateNetworkConditions", late)
    yield
    network.send("Network.emulateNetworkConditions", late | {"latency": 0})
    network.detach()


@pytest.mark.parametrize("times", [1, 2])
def test_a_notebook_is_closed_when_it_is_saved(jupyterlab: Any, times: int) -> None:
    path = jupyterlab.write_notebook(f"slow-{times}", ["1 + 1"])
    lab = jupyterlab.open_notebook(path)
    page = lab.page
    page.evaluate(MARK, "saved")
    with slow_answers(page, 400):
        for _ in range(times):
            page.keyboard.press("Control+s")
        lab.wait_until(lambda: page.evaluate("() => window.saves.begun") > 0, "the save", 5)
        jupyterlab.close_pages()
    assert json.loads(path.read_text(encoding="utf-8"))["metadata"]["mark"] == "saved"
    lab = jupyterlab.open_notebook(jupyterlab.write_notebook(f"after-slow-{times}", ["2 + 2"]))
    assert lab.page is page and lab.dialogs() == [], "the page is kept"


def test_pressing_ctrl_s_lasts_as_long_as_the_save(jupyterlab: Any) -> None:
    path = jupyterlab.write_notebook("pressed", ["1 + 1"])
    lab = jupyterlab.open_notebook(path)
    assert lab.page.evaluate("() => window.jupyterapp.commands.isToggled('docmanager:toggle-autosave')") is False, "nothing is saved unasked"
    with slow_answers(lab.page, 200):
        for mark in ("first", "second"):
            lab.page.evaluate(MARK, mark)
            lab.press_save()
            assert json.loads(path.read_text(encoding="utf-8"))["metadata"]["mark"] == mark
            assert lab.page.evaluate("() => window.jupyterapp.shell.currentWidget.context.model.dirty") is False


def test_a_save_that_asks_fails_its_own_test_with_the_question(jupyterlab: Any) -> None:
    """The file has been written by somebody else since it was opened; the next notebook has a page without that question."""
    path = jupyterlab.write_notebook("twice", ["1 + 1"])
    lab = jupyterlab.open_notebook(path)
    page = lab.page
    jupyterlab.write_notebook("twice", ["3 + 3"])
    page.evaluate(MARK, "mine")
    lab.execute("docmanager:save", wait=False)
    page.locator(".jp-Dialog").wait_for()
    with pytest.raises(AssertionError, match=r'(?s)left in the page.*dialog: File Changed "twice.ipynb" has changed on disk.*a save that has not ended'):
        jupyterlab.close_pages()
    assert page.is_closed() and "mine" not in path.read_text(encoding="utf-8")
    lab = jupyterlab.open_notebook(jupyterlab.write_notebook("after-twice", ["2 + 2"]))
    assert lab.dialogs() == []


def test_a_dialog_that_comes_late_is_told_once_and_harms_no_notebook(jupyterlab: Any) -> None:
    page = jupyterlab.open_notebook(jupyterlab.write_notebook("early", ["1 + 1"])).page
    jupyterlab.close_pages()
    page.evaluate("() => { window.jupyterapp.commands.execute('help:about'); }")
    page.locator(".jp-Dialog").wait_for()
    lab = jupyterlab.open_notebook(jupyterlab.write_notebook("late-dialog", ["2 + 2"]))
    assert page.is_closed() and lab.dialogs() == []
    lab.run_all()
    with pytest.raises(AssertionError, match=r"in the kept page when a notebook was opened there: late-dialog.ipynb: dialog: Version .*ABOUT PROJECT JUPYTER"):
        jupyterlab.close_pages()
    jupyterlab.open_notebook(jupyterlab.write_notebook("after-late-dialog", ["2 + 2"]))
    jupyterlab.close_pages()


def test_dialogs_are_dismissed_with_their_texts_and_awaited_in_vain_with_them(jupyterlab: Any) -> None:
    lab = jupyterlab.open_notebook(jupyterlab.write_notebook("dismissed", ["1 + 1"]))
    lab.execute("help:about", wait=False)
    lab.page.locator(".jp-Dialog").wait_for()
    with pytest.raises(AssertionError, match=r"the impossible: not within 0.1 s; .*ABOUT PROJECT JUPYTER"):
        lab.wait_until(lambda: False, "the impossible", 0.1)
    told = lab.dismiss_dialogs()
    assert len(told) == 1 and "ABOUT PROJECT JUPYTER" in told[0] and lab.dialogs() == lab.dismiss_dialogs() == []
