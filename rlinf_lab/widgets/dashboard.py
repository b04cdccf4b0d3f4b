"""The dashboard of a run, laid out for a laptop's screen. It is one widget, fed from a background thread."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from numbers import Integral, Real
from typing import Any

import traitlets

from rlinf_lab.errors import ConfigError, shown
from rlinf_lab.timeline import Timeline
from rlinf_lab.timeline.formats.packed import json_of_delta
from rlinf_lab.timeline.record.batch import FEW_SPANS
from rlinf_lab.widgets import fallback
from rlinf_lab.widgets.assets import DASHBOARD, module, stylesheet
from rlinf_lab.widgets.feed import TimelineFeed, Update
from rlinf_lab.widgets.pushable import check_config, check_push, tidy, tidy_row, tidy_state
from rlinf_lab.widgets.pushed import PushedWidget

COMMANDS = ("pause", "resume", "stop")
OVER = ("finished", "failed", "stopped")
KEPT_SAMPLES = 600
FRAME_SECONDS = 0.5


SampleOfBar = Callable[[str, int, int], Mapping[str, Any] | None]


class Dashboard(PushedWidget):
    """Progress, learning curves, timeline, utilisation, bubbles and a picture of the environments.

    ``charts`` names the metrics to plot, in order (a name also matches a metric that ends with it, as
    ``"learner.loss"``; ``"a|b"`` is b where there is no a). Where none of them is, the first three are plotted.
    Feed it with `push`; `on_command` hears the buttons (without ``buttons`` there are none). ``every_seconds`` promises
    that something is pushed that often while the run is not over: the page then says when nothing has been heard for
    long, as of a kernel that was restarted. None promises nothing. Raises `ConfigError` for arguments that make no
    sense.
    """

    _esm = module(*DASHBOARD)
    _css = stylesheet()
    config = traitlets.Dict(help="title, plan, devices, iterations, charts, buttons, every_seconds").tag(sync=True)

    def __init__(
        self,
        title: str = "run",
        plan: str = "",
        devices: Iterable[str] = (),
        iterations: int | None = None,
        charts: Iterable[str] = ("success_rate", "return", "loss"),
        buttons: bool = True,
        every_seconds: float | None = None,
    ) -> None:
        if every_seconds is not None and not (
            isinstance(every_seconds, Real) and not isinstance(every_seconds, bool) and 0 < every_seconds < math.inf
        ):
            raise ConfigError(
                f"Dashboard(every_seconds={shown(every_seconds)}): the longest time between two pushes, s. Next: "
                "every_seconds=60, or None."
            )
        # looked at, and kept
        devices, charts = (list(names) if isinstance(names, Iterator) else names for names in (devices, charts))
        check_config(title, plan, devices, iterations, charts)
        self._feed: TimelineFeed | None = None
        self._left: tuple[dict[str, Any], dict[str, bytes]] = ({}, {})  # what goes with the next message
        self._state: dict[str, Any] = {}
        self._metrics: dict[int, dict[str, Any]] = {}
        self._samples: list[list[Any]] = []
        self._frame = b""
        self._frame_at = -FRAME_SECONDS
        self._callbacks: list[Callable[[str], None]] = []
        self._sample_of: SampleOfBar | None = None
        self._is_over = False
        self._kept: tuple[Any, ...] = ()  # what the stored picture shows
        config = {
            "title": title,
            "plan": plan,
            "devices": list(devices),
            "iterations": _plain(iterations),
            "charts": list(charts),
            "buttons": buttons,
        }
        super().__init__(config=config | {"every_seconds": _plain(every_seconds)})

    def push(
        self,
        state: Mapping[str, Any] | None = None,
        metrics: Iterable[Mapping[str, Any]] = (),
        timeline: Timeline | None = None,
        counters: Mapping[str, float | None] | None = None,
        frame: bytes | None = None,
        final: bool = False,
        bubbles: bool = True,
        now_ns: int | None = None,
        later: bool = False,
    ) -> None:
        """Send what is new; from any thread, at most about ten times a second.

        state: any of ``state`` (as `Run.state`), ``iteration`` (finished), ``iterations``, ``elapsed_seconds``,
        ``eta_seconds``, ``message``, ``standstill`` (lines: why nothing moves; empty while something does), ``waits``
        (who then waits for whom: ``nodes`` of ``name``, ``text``, ``computes``; ``edges`` of [from, to, label] and
        ``cycles`` by numbers of nodes), ``load_note`` (why the load of some device is not known),
        ``plan_note`` (how the plan came about: old, predicted, measured, gain).
        metrics: rows that are new or have changed; one replaces that of the same ``iteration``; what is NaN or infinite
        has diverged and is shown as such, elsewhere it is not known. timeline: the growing timeline;
        what is new in it is found here. counters: utilisation from 0 to 1 by device name, now. frame: a PNG or JPEG
        picture (more than two a second are left out). final: the run has ended. bubbles: False leaves device time and
        bubbles to `push_bubbles`. now_ns: now, by the timeline's clock: its axis goes on while a long call has not
        ended. later: it goes with the spans that are pushed next (`push_spans`, by another thread), and its own are
        left to that, unless they are too many (`FEW_SPANS`). Raises `ConfigError` for what cannot be shown, and then
        nothing of it is.
        """
        state, rows = (
            tidy_state(state),
            [tidy_row(row) for row in metrics] if isinstance(metrics, Iterable) else [metrics],
        )
        counters = (
            {name: tidy(value) for name, value in counters.items()} if isinstance(counters, Mapping) else counters
        )
        check_push(state, rows, timeline, counters, frame, now_ns)
        with self._push_lock:
            self._is_over = final
            later = (
                later
                and not final
                and self._feed is not None
                and self._feed.timeline is timeline
                and self._feed.behind() <= FEW_SPANS
            )
            content, parts = (
                self._feed.take_samples() if later and self._feed is not None else self._news(timeline, final)
            ).content()
            if now_ns is not None and self._feed is not None and (origin := self._feed.origin_ns) is not None:
                content["now"] = max(0, now_ns - origin)
            if state is not None:
                self._state.update({key: _plain(value) for key, value in state.items()})
                content["state"] = dict(self._state)
            if rows := [_sayable(row) for row in rows]:
                self._metrics.update((row["iteration"], row) for row in rows)
                content["metrics"] = rows
            if counters is not None:
                sample = [
                    time.monotonic(),
                    {
                        name: float(value)
                        for name, value in counters.items()
                        if value is not None and math.isfinite(value)
                    },
                ]
                self._samples = [*self._samples[1 - KEPT_SAMPLES :], sample]
                content["counters"] = [sample]
            if frame is not None and (final or self.wants_frame()):
                self._frame, self._frame_at = frame, time.monotonic()
                parts["frame"] = frame
            self._leave(content, parts) if later else self._publish(content, parts)
            if bubbles and timeline is not None:
                self.push_bubbles()

    def push_spans(
        self, timeline: Timeline, wait: bool = True, state: str | None = None, iteration: int | None = None
    ) -> None:
        """Send the spans that are new, and what was left to go with them. From any thread, at most about ten times a
        second: the least that a push can cost.

        ``wait``: False does nothing while something else is pushed, nor where they are many (`FEW_SPANS`): `push`
        sends them. ``state``: the one of now, which is told where the page knows another, until the end was told: a
        thread that read it before may come after that. ``iteration``: finished ones, likewise: spans of the next are
        not to be seen beside a number of long ago.
        """
        if not self._push_lock.acquire(blocking=wait):
            return
        try:
            known = self._feed if self._feed is not None and self._feed.timeline is timeline else None
            waiting = None if known is None else known.take_waiting(FEW_SPANS)
            if waiting is None:
                if not wait and known is not None and known.behind() > FEW_SPANS:
                    return
                content, parts = self._news(timeline, False).content()
            else:
                content, parts = ({"layout": waiting.layout}, {"spans": waiting.spans}) if waiting.spans else ({}, {})
            if state is not None and state != self._state.get("state") and not self._is_over:
                self._state["state"] = state
                content["state"] = dict(self._state)
            if iteration is not None and iteration > self._state.get("iteration", 0) and not self._is_over:
                self._state["iteration"] = iteration
                content["state"] = dict(self._state)
            if content or parts or any(self._left):
                is_plain = waiting is not None and waiting.layout is not None and len(content) == 1
                self._publish(content, parts, f'"layout": {json_of_delta(content["layout"])}' if is_plain else "")
        finally:
            self._push_lock.release()

    def push_bubbles(self) -> None:
        """Send device time and bubbles, where it is time to look at them. From any thread."""
        with self._push_lock:
            self.account()
            self._tell_left()

    def account(self, at_once: bool = False) -> None:
        """Look at device time and bubbles, where it is time or ``at_once``. What is new goes with the next message.
        From any thread.
        """
        with self._push_lock:
            if self._feed is not None and (update := self._feed.take_bubbles(at_once)):
                self._leave(*update.content())

    def _leave(self, content: dict[str, Any], parts: dict[str, bytes]) -> None:
        """It goes with the next message."""
        self._left = self._with_what_was_left(content, parts)

    def _tell_left(self) -> None:
        if any(self._left):
            self._publish({}, {})

    def _publish(self, content: Mapping[str, Any], parts: Mapping[str, bytes], said: str = "") -> None:
        if any(self._left):
            content, parts = self._with_what_was_left(content, parts)
            self._left, said = ({}, {}), ""
        self._seq += 1
        self._transmit("delta", content, parts, said)

    def _with_what_was_left(
        self, content: Mapping[str, Any], parts: Mapping[str, bytes]
    ) -> tuple[dict[str, Any], dict[str, bytes]]:
        """Both; where they speak of the same, what was left has gone before."""
        (more, own), both = self._left, (dict(content), dict(parts))
        if not more and not own:
            return both
        if not more.keys().isdisjoint(content) or not own.keys().isdisjoint(parts):
            self._left = ({}, {})
            super()._publish(more, own)
            return both
        return {**content, **more}, {**parts, **own}

    def wants_frame(self) -> bool:
        """Whether a picture would be shown now. Ask before encoding one."""
        return time.monotonic() - self._frame_at >= FRAME_SECONDS

    def on_command(self, callback: Callable[[str], None]) -> None:
        """Call ``callback("pause" | "resume" | "stop")`` when a button is pressed. It runs in the kernel's
        comm thread.
        """
        if not callable(callback):
            raise ConfigError(f"on_command({shown(callback)}): a function of one text. Next: on_command(print).")
        self._callbacks.append(callback)

    def on_sample(self, sample_of: SampleOfBar) -> None:
        """Ask ``sample_of(worker, rank, start_ns)`` what a clicked bar shows. It gives a mapping of names to values, or
        None.

        It runs in the kernel's comm thread.
        """
        if not callable(sample_of):
            raise ConfigError(
                f"on_sample({shown(sample_of)}): a function of worker, rank and start. Next: run.sample_of_bar."
            )
        self._sample_of = sample_of

    def _news(self, timeline: Timeline | None, final: bool) -> Update:
        if timeline is None:
            return Update()
        if self._feed is None or self._feed.timeline is not timeline:
            self._feed = TimelineFeed(timeline)
        return self._feed.take(final) if final else self._feed.take_spans()

    def _rows(self) -> list[dict[str, Any]]:
        return [self._metrics[iteration] for iteration in sorted(self._metrics)]

    def _history(self) -> tuple[dict[str, Any], dict[str, bytes]]:
        # it is in what follows, too, but a page that has not asked, or has seen all since, does not listen to that
        self._tell_left()
        content, parts = (self._feed.everything() if self._feed else Update()).content()
        content |= {"state": self._state, "metrics": self._rows(), "counters": self._samples}
        if self._frame:
            parts["frame"] = self._frame
        return content, parts

    def _handle(self, content: dict[str, Any]) -> None:
        if content.get("type") == "sample" and (said := _of_bar(self._sample_of, self._feed, content)):
            with self._push_lock:
                self._publish({"sample": said}, {})
        command = content.get("command")
        if content.get("type") == "command" and command in COMMANDS:
            for callback in self._callbacks:
                callback(command)

    def still(self) -> fallback.Still:
        """The dashboard as it is now, as a picture without script: ``display_handle.update(dashboard.still())``.

        Where the run has not ended it says of when it is.
        """
        return self._still(self._feed.timeline if self._feed else None)

    def _still(self, timeline: Timeline | None) -> fallback.Still:
        with self._push_lock:
            state, rows = dict(self._state), self._rows()
            as_of = "" if self._is_over or state.get("state") in OVER else time.strftime("as of %Y-%m-%d %H:%M:%S %Z")
            text = repr(self) + f", {as_of}" * bool(as_of)
        return fallback.dashboard_still(self.config, state, rows, timeline, text, as_of)

    def keep(self) -> bool:
        """Make the stored picture that of now; says whether. Only where it lies above the view in an output of its own,
        and something has happened since.

        For a run that goes on, from any thread: a page that is loaded while a cell is busy, and a notebook saved
        meanwhile, have nothing else. Without the PNG, which takes most of the time: that comes with the end. What is
        accounted for it is told to the page, too: half of its time is that.
        """
        with self._push_lock:
            now = (self._state.get("state"), self._state.get("iteration"), self._feed.told_spans if self._feed else 0)
            if not self._has_pictures or now == self._kept:
                return False
            self.account(at_once=True)
            shown = self._feed.accounted if self._feed else None
        self.renew_pictures(self._still(shown).without_png())
        self._kept = now
        return True

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        return self._bundle_with(self.still(), **kwargs)

    def __repr__(self) -> str:
        of = self._state.get("iterations", self.config["iterations"])
        done = f"iteration {self._state.get('iteration', 0)}" + (f"/{of}" if of else "")
        plan = f", plan {self.config['plan']!r}" if self.config["plan"] else ""
        return f"Dashboard({self.config['title']!r}{plan}: {self._state.get('state', 'starting')}, {done})"


def _of_bar(
    sample_of: SampleOfBar | None, feed: TimelineFeed | None, asked: Mapping[str, Any]
) -> dict[str, Any] | None:
    """The answer to a page that asks for the sample of a bar. The bar begins ``start`` ns after the origin."""
    worker, rank, start = (asked.get(key) for key in ("worker", "rank", "start"))
    origin = feed.origin_ns if feed is not None else None
    known = isinstance(worker, str) and isinstance(rank, int) and isinstance(start, (int, float))
    if sample_of is None or origin is None or not known:
        return None
    row = sample_of(str(worker), int(rank or 0), origin + int(start or 0)) or {}
    fields = [[name, value if isinstance(value, str) else _worded(value)] for name, value in row.items()]
    return {"worker": worker, "rank": rank, "start": start, "fields": fields}


def _worded(value: object) -> str:
    """A value of a sample, as a reader wants it."""
    return f"{value:.4g}" if isinstance(value, float) and not value.is_integer() else str(_plain(value))


def _sayable(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of metrics as JSON can hold it. Numbers of any library become Python's, what diverged becomes text."""
    return {key: _number(value) if isinstance(value, Real) else value for key, value in row.items()}


def _plain(value: Any) -> Any:
    """A number of any library as JSON can hold it. One that is not finite becomes None; anything else stays."""
    if type(value) in (str, bool, int, list, dict) or not isinstance(value, Real):
        return value
    number = _number(value)
    return None if isinstance(number, str) else number


def _number(value: Real) -> int | float | str:
    if not isinstance(value, float) and isinstance(value, Integral):
        return int(value)
    number = float(value)
    return number if math.isfinite(number) else fallback.no_number(number)
