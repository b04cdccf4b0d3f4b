"""A timeline in a notebook. Zoom, pan, search and statistics happen in the browser, also while the kernel is busy."""

from __future__ import annotations

from typing import Any

import traitlets

from rlinf_lab.errors import ConfigError, shown
from rlinf_lab.timeline import Timeline
from rlinf_lab.widgets import fallback
from rlinf_lab.widgets.assets import TIMELINE, module, stylesheet
from rlinf_lab.widgets.feed import TimelineFeed, message
from rlinf_lab.widgets.pushed import PushedWidget
from rlinf_lab.widgets.report import pair


class TimelineView(PushedWidget):
    """Canvas timeline of a `Timeline`, live when `update` is called while it grows.

    ``over``: a second timeline, laid over the first lane by lane: predicted over measured, or run A over run B;
    ``labels`` names the two. Mouse: wheel zooms, drag pans, shift-drag selects, click explains, double-click fits.
    Keys: W/S zoom, A/D pan, arrows and Page keys scroll, F fit, L follow, G lanes, C colours, K counters, R arrows, O
    outliers, / search, N/P next and previous found.
    """

    _esm = module(*TIMELINE, "timeline_widget.js")
    _css = stylesheet()
    height = traitlets.Int(380, help="CSS pixels that it grows to when it has many lanes").tag(sync=True)
    labels = traitlets.List(
        traitlets.Unicode(), help="what is shown; two names: the second is laid over the first"
    ).tag(sync=True)

    def __init__(
        self,
        timeline: Timeline,
        *,
        over: Timeline | None = None,
        labels: tuple[str, str] = ("measured", "predicted"),
        height: int = 380,
    ) -> None:
        both, named = pair("TimelineView", timeline, over, labels)
        if isinstance(height, bool) or not isinstance(height, int) or height < 1:
            raise ConfigError(f"TimelineView(height={shown(height)}): whole CSS pixels. Next: height=380.")
        self.timeline, self.over = timeline, over
        self._feeds = [TimelineFeed(t) for t in both]
        super().__init__(height=height, labels=named)
        self.update(final=True)

    def update(self, final: bool = False) -> None:
        """Send what is new. From any thread; at most about ten times a second. ``final``: nothing will come
        any more.
        """
        with self._push_lock:
            news = [feed.take(final) for feed in self._feeds]
            if any(news):
                self._publish(*message(news))

    def _history(self) -> tuple[dict[str, Any], dict[str, bytes]]:
        return message([feed.everything() for feed in self._feeds])

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        still = fallback.timelines_still([feed.timeline for feed in self._feeds], self.labels, repr(self))
        return self._bundle_with(still, **kwargs)
