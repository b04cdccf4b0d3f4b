"""One browser and one JupyterLab for the whole session; see `lab_browser`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "widgets")]  # the latter: a made-up run

import lab_browser  # noqa: E402

from rlinf_lab.widgets.assets import TIMELINE, module  # noqa: E402


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Chromium, under Playwright."""
    if lab_browser.chromium_path() is None:
        pytest.skip("no Chromium on this machine (Debian: apt-get install chromium)")
    with lab_browser.chromium() as found:
        yield found


@pytest.fixture(scope="module")
def page(browser: Any) -> Iterator[Any]:
    """The timeline's parts without a notebook, as the `checks` of ``lanes.js``; files that look at other parts have their own."""
    page = browser.new_page()
    own = Path(__file__).with_name("lanes.js").read_text(encoding="utf-8")
    page.add_script_tag(content=f"{module(*TIMELINE)}\n{own}", type="module")
    page.wait_for_function("() => window.checks", timeout=10_000)
    yield page
    page.close()


@pytest.fixture(scope="session")
def jupyterlab_session(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[lab_browser.JupyterLab]:
    with lab_browser.jupyterlab(browser, tmp_path_factory.mktemp("lab"), keeps_page=True) as lab:
        yield lab


def _closed_after(server: lab_browser.JupyterLab, session: pytest.Session) -> Iterator[lab_browser.JupyterLab]:
    failed = session.testsfailed
    yield server
    server.close_pages(keep=session.testsfailed == failed)


@pytest.fixture
def jupyterlab(jupyterlab_session: lab_browser.JupyterLab, request: pytest.FixtureRequest) -> Iterator[lab_browser.JupyterLab]:
    """The session's server; the notebooks and kernels of the test are closed after it, and the page too if it has failed."""
    yield from _closed_after(jupyterlab_session, request.session)


@pytest.fixture(scope="module")
def jupyterlab_of_module(jupyterlab_session: lab_browser.JupyterLab, request: pytest.FixtureRequest) -> Iterator[lab_browser.JupyterLab]:
    """The same for notebooks that several tests of a module look at, whether the fixture that opens them succeeds or not."""
    yield from _closed_after(jupyterlab_session, request.session)
