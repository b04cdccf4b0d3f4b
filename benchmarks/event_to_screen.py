"""From the end of a span of a real run to its pixels, in JupyterLab in Chromium, while another cell keeps the kernel busy.

A workflow of two workers in threads of the kernel, started with `lab.run`, writes some hundred spans a second; its own observer looks for
them and its own dashboard is told, exactly as users have it. The page notes when the dashboard's timeline has drawn how many spans; both
ends read the same clock. Spans are counted from the start of the busy cell on. Those of other processes come up to 0.1 s later (`device_host`).
"""

from __future__ import annotations

import itertools
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from harness import Case

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "browser"))

BUSY = {
    "python": "n = 0\nwhile time.monotonic() < limit:\n    n += sum(i * i for i in range(200))",
    "numpy": "import numpy as np\na = np.random.rand(600, 600)\nwhile time.monotonic() < limit:\n    b = a @ a",
    "torch": """
import torch
torch.set_num_threads(1)
net, x = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.Tanh(), torch.nn.Linear(256, 8)), torch.randn(128, 64)
opt = torch.optim.Adam(net.parameters())
limit = time.monotonic() + seconds
while time.monotonic() < limit:
    opt.zero_grad(); net(x).square().mean().backward(); opt.step()""",
}
WORK = """
seconds = {seconds}
begun, behind = time.monotonic_ns(), time.time_ns() - time.monotonic_ns()
limit = time.monotonic() + seconds
{busy}
run.stop()
ends = run.timeline.spans["end"].tolist()
open({path!r}, "w").write(json.dumps([[number, end + behind] for number, end in enumerate(ends, 1) if end >= begun]))
"""
# When the timeline has drawn how many spans: noted in the task after the frame.
WATCH = """() => {
    const root = document.querySelector('.rl-dashboard .rl-timeline');
    window.drawn = [];
    const note = new MessageChannel();
    note.port1.onmessage = (e) => window.drawn.push([e.data, performance.timeOrigin + performance.now()]);
    new MutationObserver(() => note.port2.postMessage(Number(root.dataset.spans))).observe(root, {attributeFilter: ['data-spans', 'data-frames']});
}"""


def latencies(kind: str, seconds: float) -> tuple[list[float], list[list[float]]]:
    """Milliseconds from the end of each span to the frame that showed it; and what the page noted."""
    import lab_browser
    from pipeline_cell import pipeline_cell

    with tempfile.TemporaryDirectory() as folder, lab_browser.chromium() as browser, lab_browser.jupyterlab(browser, Path(folder)) as server:
        path = Path(folder) / "ended.json"
        cells = [pipeline_cell("pipeline", 20, 0.01, 0.01, micro_batch=1), WORK.format(seconds=seconds, busy=BUSY[kind], path=str(path))]
        lab = server.open_notebook(server.write_notebook("latency", cells))
        lab.execute("notebook:run-cell-and-select-next")
        drawn_once = "() => Number(document.querySelector('.rl-dashboard .rl-timeline')?.dataset.spans) > 0"
        lab.wait_until(lambda: lab.page.evaluate(drawn_once), "the timeline")
        lab.page.evaluate(WATCH)
        lab.execute("notebook:run-cell-and-select-next", wait=False)
        lab.wait_until(path.exists, "the end of the cell", seconds + 60)
        lab.wait_kernel("idle")
        lab.page.wait_for_timeout(500)
        drawn, ended = lab.page.evaluate("() => window.drawn"), json.loads(path.read_text())
        server.close_pages()
    return shown_after(ended, drawn), drawn


def shown_after(ended: list[list[int]], drawn: list[list[float]]) -> list[float]:
    """For each span, as (number, when it ended, ns), the ms until the first frame that had so many."""
    found, at = [], 0
    for number, end in ended:
        while at < len(drawn) and drawn[at][0] < number:
            at += 1
        if at == len(drawn):
            break  # written when the run was stopped
        found.append(drawn[at][1] - end / 1e6)
    return found


def p95(values: list[float]) -> float:
    return sorted(values)[int(0.95 * (len(values) - 1))]


def measured(kind: str, seconds: float, kept: dict[str, Any]) -> float:
    found, drawn = latencies(kind, seconds)
    steps = [b[1] - a[1] for a, b in itertools.pairwise(drawn) if b[0] > a[0]]
    kept.update(median=sorted(found)[len(found) // 2], p95=p95(found), most=max(found), longest_gap=max(steps, default=0.0), spans=len(found))
    return p95(found)


def row(kind: str, seconds: float, runs: int, name: str) -> Case:
    kept: dict[str, Any] = {}
    return Case(
        f"event_to_screen_{name}", "ms, p95", lambda: measured(kind, seconds, kept), target="<= 150", target_of="value", runs=runs,
        curve=lambda: [[kept[key] for key in ("median", "p95", "most", "longest_gap", "spans")]],
        note="end of a span of a real run to its pixels on its dashboard in JupyterLab, the kernel busy"
        f"{' with Python for ten minutes' * (name == 'ten_minutes')}; curve: median, p95, most, longest gap between frames, spans",
    )  # fmt: skip


def cases(smoke: bool) -> list[Case]:
    if smoke:
        return [row("python", 2, 3, "python")]
    return [*(row(kind, 10, 3, kind) for kind in BUSY), row("python", 600, 1, "ten_minutes")]


if __name__ == "__main__":
    values: dict[str, Any] = {}
    measured(sys.argv[1], float(sys.argv[2]), values)
    print(json.dumps(values))
