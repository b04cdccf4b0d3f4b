"""JupyterLab on the loopback and Chromium to open it in: for the tests that need a real page, and for the benchmarks.

    with chromium() as browser, jupyterlab(browser, folder) as lab:
        page = lab.open_notebook(lab.write_notebook("a", ["1 + 1"]), theme="dark")
        page.run_all()
        page.screenshot("a-dark")          # test-artifacts/a-dark.png

Nothing is fetched from anywhere.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import nbformat

REPOSITORY = Path(__file__).resolve().parents[2]
ARTIFACTS = REPOSITORY / "test-artifacts"
SAMPLES = REPOSITORY / "tests" / "widgets"  # the made-up run, for the tests and for the kernels
FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--hide-scrollbars",
]  # fmt: skip
THEMES = {"light": "JupyterLab Light", "dark": "JupyterLab Dark"}
# Counts in each page what the command begins that Ctrl+S and `LabPage.save` run, and what of it ends: the notebook is written, and its checkpoint.
COUNT_SAVES = """
window.saves = { begun: 0, done: 0, failed: 0 };
let application;
Object.defineProperty(window, "jupyterapp", { get: () => application, set: (made) => {
    application = made;
    made.commands.commandExecuted.connect((_, { id, result }) => {
        if (id !== "docmanager:save") return;
        window.saves.begun += 1;
        result.then(() => { window.saves.done += 1; }, () => { window.saves.failed += 1; });
    });
} });
"""
IS_SAVING = "window.saves.begun > window.saves.done + window.saves.failed"
DIALOGS = """[...document.querySelectorAll(".jp-Dialog")].map((e) => `dialog: ${e.innerText.replace(/\\s+/g, " ").trim()}`)"""
# A dialog keeps the focus, so no other notebook becomes the current one.
NOTEBOOK_OR_DIALOG_IS_SHOWN = """(name) => {
    if (document.querySelector(".jp-Dialog")) return true;
    const shown = window.jupyterapp?.shell?.currentWidget;
    return shown?.context?.path === name && shown.content?.widgets?.length;
}"""
REST = """(frames) => new Promise((done, fail) => {
    const until = performance.now() + 15_000, now = () => JSON.stringify(VALUE);
    let seen = now(), same = 0;
    const look = () => {
        const next = now();
        same = next === seen ? same + 1 : 0;
        seen = next;
        if (same >= frames) done();
        else if (performance.now() > until) fail(new Error(`no rest: ${seen}`));
        else requestAnimationFrame(look);
    };
    requestAnimationFrame(look);
})"""
# Closes all notebooks once they are saved; what of them is still in the page. JupyterLab says of a notebook that is closed while it looks at the file
# that it would write "File Save Error ... Disposed", in a dialog that comes when the next notebook is there. A save that asks something waits for its answer.
LEAVE = """async (seconds) => {
    const dialogs = () => DIALOGS, saving = () => IS_SAVING, until = performance.now() + 1000 * seconds;
    const frames = async () => { for (let i = 0; i < 2; i++) await new Promise(requestAnimationFrame); };
    while (saving() && !dialogs().length && performance.now() < until) await new Promise((done) => setTimeout(done, 20));
    await frames();
    const left = [...dialogs(), ...(saving() ? ["a save that has not ended"] : [])];
    for (const widget of [...window.jupyterapp.shell.widgets('main')]) widget.dispose();
    await frames();
    const parts = [...document.querySelectorAll('.jp-Notebook, [class*="rl-"], [class*="rlinf-lab"]')];
    return [...new Set([...left, ...dialogs(), ...parts.map((e) => e.className)])];
}""".replace("DIALOGS", DIALOGS).replace("IS_SAVING", IS_SAVING)


class DialogError(AssertionError):
    """JupyterLab shows a dialog that nobody has asked for."""


class LabPage:
    """One notebook, open in JupyterLab's single-document mode. ``page`` is Playwright's page."""

    def __init__(self, page: Any, url: str) -> None:
        self.page, self.url = page, url

    def execute(self, command: str, wait: bool = True, **arguments: Any) -> None:
        """Run a command of JupyterLab, as ``"notebook:run-all-cells"``."""
        done = "return window.jupyterapp.commands.execute(c, a).then(() => null);" if wait else "window.jupyterapp.commands.execute(c, a);"
        self.page.evaluate("([c, a]) => {" + done + "}", [command, arguments])

    def run_all(self, wait: bool = True) -> None:
        """Run every cell; with ``wait``, until all have ended."""
        self.execute("notebook:run-all-cells", wait)

    def is_computing(self) -> bool:
        """Whether a cell has not ended: by its prompt, for a widget's messages make the kernel's status flicker."""
        return self.page.locator(".jp-InputPrompt", has_text="[*]").count() > 0

    def kernel_status(self) -> str:
        """ "idle", "busy", ... as the page knows it."""
        return self.page.evaluate("() => window.jupyterapp.shell.currentWidget?.sessionContext?.session?.kernel?.status ?? 'none'")

    def wait_kernel(self, status: str = "idle", timeout: float = 120) -> None:
        self.wait_until(lambda: self.kernel_status() == status, f"kernel {status}", timeout)

    def wait_until(self, holds: Any, what: str, timeout: float = 120, every: float = 0.05) -> None:
        """Poll ``holds()`` until it is true; `AssertionError` says what did not come. To ask the page takes a kernel's core away: of what lasts, ask seldom."""
        end = time.monotonic() + timeout
        while not holds():
            assert time.monotonic() < end, f"{what}: not within {timeout:g} s; {self.dialogs() or 'no dialog'}"
            self.page.wait_for_timeout(1000 * every)

    def wait_rest(self, value: str, frames: int = 5) -> None:
        """Until a JavaScript expression has been the same for so many frames on end: what moved has come to rest."""
        self.page.evaluate(REST.replace("VALUE", value), frames)

    def set_theme(self, theme: str) -> None:
        self.execute("apputils:change-theme", theme=THEMES[theme])
        light = "true" if theme == "light" else "false"
        self.page.wait_for_selector(f'body[data-jp-theme-light="{light}"]', state="attached", timeout=60_000)

    def save(self) -> None:
        """Save the notebook, and wait until that is done. While it is being saved the command does nothing, so what is under way ends before."""
        self._wait_saved()
        self.execute("docmanager:save")

    def press_save(self) -> None:
        """Press Ctrl+S, which JupyterLab has to hear, and wait until the notebook is saved."""
        self._wait_saved()
        before = self._saves()
        self.page.keyboard.press("Control+s")
        self.wait_until(lambda: self._saves()["begun"] > before["begun"], "JupyterLab hears Ctrl+S", 60)
        self._wait_saved()
        assert self._saves() == {"begun": before["begun"] + 1, "done": before["done"] + 1, "failed": before["failed"]}, self.dialogs()

    def _saves(self) -> dict[str, int]:
        return self.page.evaluate("() => window.saves")

    def _wait_saved(self) -> None:
        self.wait_until(lambda: not self.page.evaluate(f"() => {IS_SAVING}"), "the notebook is saved", 60)

    def dialogs(self) -> list[str]:
        """Texts of the dialogs that JupyterLab shows."""
        return self.page.evaluate(f"() => {DIALOGS}")

    def dismiss_dialogs(self) -> list[str]:
        """Answer each dialog with its "Cancel"; their texts."""
        seen: list[str] = []
        while shown := self.dialogs():
            seen += shown[-1:]
            self.page.locator(".jp-Dialog").last.press("Escape", timeout=5000)
            self.wait_until(lambda shown=shown: self.dialogs() != shown, f"dismissing {shown}", 60)
        return seen

    def reload(self) -> None:
        """Load the page anew and wait for the notebook."""
        self.page.goto(self.url)
        self.ready()

    def ready(self) -> None:
        """Wait for this notebook's cells and a kernel; `DialogError` where JupyterLab shows a dialog instead."""
        name = unquote(urlsplit(self.url).path.rsplit("/", 1)[1])
        self.page.wait_for_function(NOTEBOOK_OR_DIALOG_IS_SHOWN, arg=name, timeout=180_000)  # a page opens late on a busy machine
        self.wait_until(lambda: self.kernel_status() in ("idle", "busy") or self.dialogs(), "a kernel")
        if shown := self.dialogs():
            raise DialogError(f"{name}: {'; '.join(shown)}")

    def leave(self) -> list[str]:
        """Close the notebook, saved or not, so that another one can be opened in this page, but not while it is being saved; what of it stays there:
        texts of dialogs, classes of parts.
        """
        self.page.mouse.move(0, 0)
        return self.page.evaluate(LEAVE, 30)

    def errors(self) -> list[str]:
        """Texts of the tracebacks that the notebook shows."""
        return self.page.locator(
            '.jp-OutputArea-output[data-mime-type="application/vnd.jupyter.stderr"], .jp-RenderedText[data-mime-type*="error"]'
        ).all_inner_texts()

    def screenshot(self, name: str) -> Path:
        """PNG of the window in ``test-artifacts/``."""
        ARTIFACTS.mkdir(exist_ok=True)
        path = ARTIFACTS / f"{name}.png"
        self.page.screenshot(path=str(path))
        return path


class JupyterLab:
    """A running server with a browser. ``root`` is the folder it shows.

    ``keeps_page``: JupyterLab is loaded once, which takes several seconds; each notebook after the first one is opened in the page that the last one has left.
    """

    def __init__(self, url: str, token: str, root: Path, settings: Path, browser: Any, pages: str = "doc/tree", keeps_page: bool = False) -> None:
        self.url, self.token, self.root, self.settings, self.browser, self.pages = url, token, root, settings, browser, pages
        self.keeps_page = keeps_page
        self._contexts: list[Any] = []
        self._opened: list[LabPage] = []  # the notebooks whose pages can be kept
        self._free: Any = None  # a page of JupyterLab with no notebook in it
        self._late: list[str] = []  # what came into it after its notebook was closed

    def write_notebook(self, name: str, cells: Sequence[str]) -> Path:
        """A notebook of code cells in the server's folder, with the kernelspec that keeps a dialog away."""
        book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(c) for c in cells])
        book.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
        path = self.root / f"{name}.ipynb"
        nbformat.write(book, path)
        return path

    def open_notebook(self, path: Path, theme: str = "light", size: tuple[int, int] = (1366, 768), fresh: bool = False) -> LabPage:
        """Open a notebook, copied into the served folder when it is elsewhere. ``fresh``: in a browser context that has seen nothing yet."""
        if path.parent != self.root:
            path = Path(shutil.copy(path, self.root))
        url = f"{self.url}/{self.pages}/{path.name}?token={self.token}"
        if fresh or self._free is None:
            lab = self._load(url, theme, size)
            lab.ready()
        else:
            lab = self._open_in_kept_page(path.name, url, theme, size)
        lab.wait_kernel("idle")
        return lab

    def _open_in_kept_page(self, name: str, url: str, theme: str, size: tuple[int, int]) -> LabPage:
        """What an earlier notebook has left there late is told when this one is closed; meanwhile it has a page of its own."""
        from playwright.sync_api import TimeoutError as Late

        lab, self._free = LabPage(self._free, url), None
        self._opened.append(lab)
        try:
            lab.page.set_viewport_size({"width": size[0], "height": size[1]})
            lab.page.emulate_media(color_scheme=theme)
            lab.set_theme(theme)
            lab.execute("docmanager:open", path=name, factory="Notebook")
            lab.ready()
        except (DialogError, Late) as error:  # a kept page that shows no notebook within a minute is given up, too
            if isinstance(error, DialogError):
                self._late.append(f"in the kept page when a notebook was opened there: {error}")
            self._opened.remove(lab)
            lab.page.context.close()
            lab = self._load(url, theme, size)
            lab.ready()
        return lab

    def _load(self, url: str, theme: str, size: tuple[int, int]) -> LabPage:
        self._set_theme_file(theme)
        context = self.browser.new_context(viewport={"width": size[0], "height": size[1]}, color_scheme=theme)
        context.add_init_script(COUNT_SAVES)
        lab = LabPage(context.new_page(), url)
        if self.keeps_page and not self._opened and self._free is None:
            self._opened.append(lab)
        else:
            self._contexts.append(context)
        lab.page.goto(url)
        return lab

    def open_file(self, path: Path, size: tuple[int, int] = (1366, 768), theme: str = "light") -> Any:
        """A file of this machine as a Playwright page, without any server."""
        context = self.browser.new_context(viewport={"width": size[0], "height": size[1]}, color_scheme=theme, offline=True)
        self._contexts.append(context)
        page = context.new_page()
        page.goto(path.resolve().as_uri())
        return page

    def _set_theme_file(self, theme: str) -> None:
        folder = self.settings / "@jupyterlab" / "apputils-extension"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "themes.jupyterlab-settings").write_text(json.dumps({"theme": THEMES[theme]}))

    def close_pages(self, keep: bool = True) -> None:
        """Close what a test opened, and end its kernels; `AssertionError` where something of a notebook stays in the page, or of an earlier one has come
        into it. ``keep`` False: the next notebook has a new page, whatever has become of this one.
        """
        for context in self._contexts:
            context.close()
        self._contexts.clear()
        left, self._late = self._late, []
        for lab in self._opened:
            left += lab.leave() if keep else []
            if keep and not left:
                self._free = lab.page
            else:
                lab.page.context.close()
        self._opened.clear()
        request = urllib.request.Request(f"{self.url}/api/kernels?token={self.token}")
        with urllib.request.urlopen(request, timeout=10) as answer:
            kernels = json.load(answer)
        for kernel in kernels:
            urllib.request.urlopen(urllib.request.Request(f"{self.url}/api/kernels/{kernel['id']}?token={self.token}", method="DELETE"), timeout=20).close()
        assert not left, f"left in the page: {left}"


def _free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def _start_server(home: Path, root: Path, port: int, token: str, application: str) -> subprocess.Popen[bytes]:
    settings = home / "settings"
    (settings / "@jupyterlab" / "apputils-extension").mkdir(parents=True)
    news = {"fetchNews": "false", "checkForUpdates": False}
    (settings / "@jupyterlab" / "apputils-extension" / "notification.jupyterlab-settings").write_text(json.dumps(news))
    # Every two minutes JupyterLab saves by itself, which no test waits for: closed meanwhile, or its file rewritten, a notebook says so in a dialog.
    (settings / "@jupyterlab" / "docmanager-extension").mkdir()
    (settings / "@jupyterlab" / "docmanager-extension" / "plugin.jupyterlab-settings").write_text(json.dumps({"autosave": False}))
    (home / "config" / "labconfig").mkdir(parents=True)
    disabled = {"@jupyterlab/apputils-extension:announcements": True, "@jupyterlab/extensionmanager-extension": True}
    (home / "config" / "labconfig" / "page_config.json").write_text(json.dumps({"disabledExtensions": disabled}))
    environment = os.environ | {
        "JUPYTER_CONFIG_DIR": str(home / "config"),
        "JUPYTER_DATA_DIR": str(home / "data"),
        "JUPYTER_RUNTIME_DIR": str(home / "runtime"),
        "JUPYTERLAB_SETTINGS_DIR": str(settings),
        "JUPYTERLAB_WORKSPACES_DIR": str(home / "workspaces"),
        "IPYTHONDIR": str(home / "ipython"),
        "PYTHONPATH": os.pathsep.join([str(REPOSITORY), str(SAMPLES)]),
        "OMP_NUM_THREADS": "1",
    }
    command = [
        sys.executable, "-m", application, "--no-browser", "--allow-root", "--expose-app-in-browser", "--ServerApp.ip=127.0.0.1",
        f"--ServerApp.port={port}", "--ServerApp.port_retries=0", f"--IdentityProvider.token={token}", f"--ServerApp.root_dir={root}",
        "--LabApp.news_url=", "--FileContentsManager.delete_to_trash=False",
    ]  # fmt: skip
    log = (home / "server.log").open("wb")
    return subprocess.Popen(command, env=environment, cwd=root, stdout=log, stderr=log, start_new_session=True)


def _wait_answer(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + 60
    while True:
        try:
            urllib.request.urlopen(url, timeout=2).close()
            return
        except OSError:
            tail = log.read_text(errors="replace")[-2000:]
            assert server.poll() is None and time.monotonic() < end, f"JupyterLab did not start:\n{tail}"
            time.sleep(0.1)


def chromium_path() -> str | None:
    """The machine's Chromium, None without one."""
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@contextmanager
def chromium() -> Iterator[Any]:
    """Debian's Chromium under Playwright, drawing in software."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium_path(), args=FLAGS)
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def jupyterlab(browser: Any, folder: Path, application: str = "jupyterlab", keeps_page: bool = False) -> Iterator[JupyterLab]:
    """A server of its own in ``folder``, which need not be empty; ended at the end of the block. ``application``: "notebook" for Notebook 7, which keeps no
    page: it opens each notebook in one of its own.
    """
    home, root = folder / "jupyter", folder / "notebooks"
    root.mkdir(parents=True, exist_ok=True)
    port, token = _free_port(), secrets.token_hex(16)
    server = _start_server(home, root, port, token, application)
    url = f"http://127.0.0.1:{port}"
    try:
        _wait_answer(f"{url}/api?token={token}", server, home / "server.log")
        yield JupyterLab(url, token, root, home / "settings", browser, "doc/tree" if application == "jupyterlab" else "notebooks", keeps_page)
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        try:
            server.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()
