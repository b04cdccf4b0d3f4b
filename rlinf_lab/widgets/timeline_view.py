"""A timeline in a notebook: zoom, pan, search and statistics happen in the browser, also while the kernel is busy."""

from __future__ import annotations

from typing import Any

import traitlets

from rlinf_lab.timeline import Timeline
from rlinf_lab.widgets import fallback
from rlinf_lab.widgets.assets import module, stylesheet
from rlinf_lab.widgets.feed import TimelineFeed
from rlinf_lab.widgets.pushed import PushedWidget

SCRIPTS = ("base.js", "store.js", "timeline.js")


class TimelineView(PushedWidget):
    """Canvas timeline of a `Timeline`, live when `update` is called while it grows.

    Mouse: wheel zooms, drag pans, shift-drag selects, double-click fits. Keys: W/S zoom, A/D pan, F fit, L follow, / search.
    """

    _esm = module(*SCRIPTS, "timeline_widget.js")
    _css = stylesheet()
    height = traitlets.Int(340, help="height in CSS pixels").tag(sync=True)

    def __init__(self, timeline: Timeline, *, height: int = 340) -> None:
        self.timeline = timeline
        self._feed = TimelineFeed(timeline)
        super().__init__(height=height)
        self.update()

    def update(self, final: bool = False) -> None:
        """Send what is new. From any thread; at most about ten times a second. ``final``: nothing will come any more."""
        with self._push_lock:
            news = self._feed.take(final)
            if news:
                self._publish(*news.message())

    def _history(self) -> tuple[dict[str, Any], dict[str, bytes]]:
        return self._feed.everything().message()

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        return fallback.with_picture(super()._repr_mimebundle_(**kwargs), fallback.timeline_picture(self.timeline), repr(self))
