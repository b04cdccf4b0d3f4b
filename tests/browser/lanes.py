"""A timeline in a page without a notebook: what several files of tests look at."""

from __future__ import annotations

import base64
from typing import Any

from rlinf_lab.timeline import Timeline
from rlinf_lab.widgets.assets import TIMELINE, module, stylesheet
from rlinf_lab.widgets.feed import TimelineFeed, message


def encoded(feed: TimelineFeed, final: bool = False) -> list[Any]:
    """What is new of a timeline, as a page takes it; ``final``: all of it, as for a page that has just come."""
    content, parts = message([feed.take(final=final)])
    return [content, {name: base64.b64encode(part).decode() for name, part in parts.items()}]


def fill(page: Any, timeline: Timeline, feed: TimelineFeed | None = None) -> None:
    """All of a timeline for the `checks` of ``lanes.js``."""
    page.evaluate("([c, p]) => checks.fill(c, p)", encoded(feed or TimelineFeed(timeline), final=True))


def view_page(browser: Any) -> Any:
    """A page with an empty view of 900 x 300 px that follows the last two seconds of its store: ``view``, ``store``, ``parts``."""
    page = browser.new_page(viewport={"width": 1000, "height": 400})
    page.set_content(f"<style>{stylesheet()}</style><div id='host' style='width: 900px; height: 300px; display: grid'></div>")
    page.add_script_tag(content=f"{module(*TIMELINE)}\nwindow.parts = {{ Store, TimelineView, applyTo }};", type="module")
    page.wait_for_function("() => window.parts", timeout=10_000)
    page.evaluate("() => { window.store = new parts.Store(); window.view = new parts.TimelineView(document.getElementById('host'), store, { tail: 2 }); }")
    return page


def tell(page: Any, feed: TimelineFeed, final: bool = False) -> None:
    """See `encoded`, for a `view_page`."""
    page.evaluate("""([content, data, anew]) => {
        const parts_ = Object.fromEntries(Object.entries(data).map(([k, v]) => [k, Uint8Array.from(atob(v), (c) => c.charCodeAt(0)).buffer]));
        if (anew) store.reset();
        parts.applyTo([store], content, parts_); view.refresh();
    }""", [*encoded(feed, final), final])  # fmt: skip
