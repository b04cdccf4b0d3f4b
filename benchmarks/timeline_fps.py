"""Frames of the timeline in Chromium with a software rasteriser: a zooming and panning path over one and five million spans.

Counted by the browser: the spacing of animation frames, the time in the draw call, and the frames that its compositor
showed (``Display::DrawAndSwap`` of a trace). The view changes in every frame; the first frames are left out.
"""

from __future__ import annotations

import json
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import real_trace
from harness import Case

from rlinf_lab.timeline import Timeline
from rlinf_lab.widgets.assets import TIMELINE, module, stylesheet

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "browser"))

SIZE = {"width": 1400, "height": 1000}
MAKE = Path(__file__).with_suffix(".js").read_text(encoding="utf-8")
PAGE = """<!doctype html><meta charset="utf-8"><style>{style} body {{ margin: 0 }} #timeline {{ height: 980px }}</style>
<div id="timeline"></div><script type="module">{script}</script>"""
PARTS = (1.0, 0.3, 0.1, 0.01, 0.001)
NEAR = (*PARTS, 0.0002)  # of five million spans: nearer, where arrows are drawn


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None: ...


@contextmanager
def timeline_page(timeline: Timeline | None = None) -> Iterator[Any]:
    """A page with the widget's own script, the generator, and beside it what the kernel would send of a timeline."""
    import lab_browser

    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        if timeline is not None:
            real_trace.write_message(timeline, folder)
        script = f"{module(*TIMELINE)}\n{MAKE}\nwindow.ready = true;"
        (folder / "page.html").write_text(PAGE.format(style=stylesheet(), script=script), encoding="utf-8")
        server = stack.enter_context(ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder))))
        threading.Thread(target=server.serve_forever, daemon=True).start()
        stack.callback(server.shutdown)
        browser = stack.enter_context(lab_browser.chromium())
        page = browser.new_page(viewport=SIZE, color_scheme="light")
        page.goto(f"http://127.0.0.1:{server.server_address[1]}/page.html")
        page.wait_for_function("() => window.ready")
        yield page


def swaps(browser: Any, page: Any, frames: int, part: float) -> tuple[dict[str, list[float]], int]:
    """One flight, and how many frames the compositor showed meanwhile."""
    browser.start_tracing(page=page, categories=["viz", "benchmark"])
    flown = page.evaluate("([n, part]) => fly(n, part)", [frames, part])
    events = json.loads(browser.stop_tracing())["traceEvents"]
    return flown, sum(1 for e in events if e["name"] == "Display::DrawAndSwap" and e["ph"] in "BX")


def p95(values: list[float]) -> float:
    return sorted(values)[int(0.95 * (len(values) - 1))]


def measure(count: int, shape: str, frames: int, parts: tuple[float, ...] = PARTS) -> dict[str, dict[str, float]]:
    """For each part of the range that is in sight: p95 of frame spacing and of the draw call in ms, and the share of frames shown."""
    with timeline_page() as page:
        page.evaluate("([n, shape]) => makeSpans(n, shape)", [count, shape])
        return flights(page, frames, parts)


def measure_real(count: int, frames: int, parts: tuple[float, ...] = PARTS) -> dict[str, dict[str, float]]:
    """The same of a recorded trace, with arrows, idle time, marks and counters; what of them there was is in ``there``."""
    with timeline_page(real_trace.real_trace(count)) as page:
        there = page.evaluate("() => takeTrace()")
        found = flights(page, frames, parts)
    there["arrows"] = max(row["arrows"] for row in found.values() if "frame_ms" in row)
    few = {"arrows"} if count < 1_000_000 else set()  # of a short trace no flight need meet one
    if there["spans"] < count or not all(n for name, n in there.items() if name not in few):
        raise RuntimeError(f"The trace lacks something: {there}")
    return found | {"there": there}


def flights(page: Any, frames: int, parts: tuple[float, ...]) -> dict[str, dict[str, float]]:
    found = {}
    page.wait_for_timeout(500)
    page.evaluate("() => fly(20, 0.5)")  # the engine compiles what is hot
    for part in parts:
        flown, shown = swaps(page.context.browser, page, frames, part)
        found[str(part)] = {"frame_ms": p95(flown["spacing"]), "draw_ms": p95(flown["draw"]), "shown": shown / frames, "arrows": flown["arrows"]}
    found["ingest"] = {"ms": page.evaluate("() => ingestMs")}
    return found


def worst(count: int, shape: str, frames: int, parts: tuple[float, ...], kept: dict[str, Any]) -> float:
    kept.clear()
    kept.update(measure_real(count, frames, parts) if shape == "real" else measure(count, shape, frames, parts))
    return max(row["frame_ms"] for row in kept.values() if "frame_ms" in row)


def cases(smoke: bool) -> list[Case]:
    frames = 20 if smoke else 90
    rows = []
    for count, target in ((20_000, "<= 17"), (50_000, "<= 34")) if smoke else ((1_000_000, "<= 17"), (5_000_000, "<= 34")):
        for shape in ("random", "nested", "real"):
            kept: dict[str, Any] = {}
            parts = NEAR if shape == "real" and count > 1_000_000 else PARTS

            def curve(kept: dict[str, Any] = kept) -> list[list[float]]:
                return [[float(part), row["frame_ms"], row["draw_ms"], row["shown"]] for part, row in kept.items() if "frame_ms" in row]

            rows.append(
                Case(
                    f"timeline_fps_{count // 1_000_000}m_{shape}" if not smoke else f"timeline_fps_{shape}", "ms, p95 of a frame",
                    partial(worst, count, shape, frames, parts, kept), target=target, target_of="value", runs=3, curve=curve,
                    note=f"the slowest of {len(parts)} zoom levels, zooming and panning in every frame, all lanes in sight on 1400 x 1000 px, "
                    "software rasteriser; curve: part of the range in sight, "
                    "p95 ms of a frame, p95 ms of the draw call, share of the frames that the compositor showed"
                    + "; a PPO run and torch's profiles of a learner, recorded and repeated, with arrows, idle time and counters" * (shape == "real"),
                )
            )  # fmt: skip
    return rows


if __name__ == "__main__":
    for size, kind in ((1_000_000, "random"), (1_000_000, "nested"), (5_000_000, "random"), (5_000_000, "nested")):
        print(size, kind, json.dumps(measure(size, kind, 100)))
