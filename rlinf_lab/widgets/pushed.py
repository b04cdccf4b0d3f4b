"""A widget that the kernel pushes to. Deltas are numbered; a page that (re)connects gets the whole history.

While a cell runs, the kernel cannot answer the browser, so nothing here waits for a question.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import anywidget
import traitlets

from rlinf_lab.widgets import express, fallback
from rlinf_lab.widgets.fallback import WIDGET, Still


class PushedWidget(anywidget.AnyWidget):
    """Base of the live widgets. Subclasses keep a history and return all of it from `_history`.

    A page asks ``{"type": "history"}`` when it connects and after a gap; the answer replaces what it has and
    carries the number of the last delta in it, so a delta that crosses it is neither lost nor shown twice.
    """

    # whether `close` has removed it from all pages; ``comm`` says so, too, but this is asked at each glance, and that
    # is a trait
    is_closed = False

    def __init__(self, **traits: Any) -> None:
        self._push_lock = threading.RLock()
        self._seq = 0
        self._express: express.Express | None = None
        self._on_page = False  # a page has asked for something
        # the outputs that have the still picture by itself, one above each view
        self._pictures = f"rlinf-lab-{uuid.uuid4().hex}"
        self._has_pictures = False  # some are there
        super().__init__(**traits)
        self.on_msg(self._receive)

    @traitlets.observe("comm")
    def _see_end(self, change: Any) -> None:
        self.is_closed = change.new is None

    def _history(self) -> tuple[dict[str, Any], dict[str, bytes]]:
        raise NotImplementedError(f"{type(self).__name__} keeps no history")

    def _publish(self, content: Mapping[str, Any], parts: Mapping[str, bytes]) -> None:
        """Number and send one delta; the caller holds `_push_lock` since before it changed the history."""
        self._seq += 1
        self._transmit("delta", content, parts)

    def _transmit(self, kind: str, content: Mapping[str, Any], parts: Mapping[str, bytes], said: str = "") -> None:
        """``said``: the content as JSON without its braces, where that is known already."""
        buffers = list(parts.values())
        comm = self.comm
        if self._express is None or not self._express.carries(comm):
            self._express = express.Express.of(comm)
        if self._express is not None:
            names = '", "'.join(parts)
            known = f'{{"type": "{kind}", "seq": {self._seq}, "parts": ["{names}"], {said}}}' if said else ""
            self._express.send(known or self._whole(kind, content, parts), buffers)
            return
        with _without_shell_parent(comm):
            self.send(self._whole(kind, content, parts), buffers=buffers)

    def _whole(self, kind: str, content: Mapping[str, Any], parts: Mapping[str, bytes]) -> dict[str, Any]:
        return {"type": kind, "seq": self._seq, "parts": list(parts), **content}

    def every(self, seconds: float, work: Callable[[], bool]) -> express.Beat | None:
        """Have the thread that sends do ``work`` every so often, until it returns False. None where there is no such
        thread, or not yet.
        """
        return (
            self._express.every(seconds, work)
            if self._express is not None and self._express.carries(self.comm)
            else None
        )

    def _receive(self, _widget: Any, content: Any, _buffers: Any) -> None:
        if not isinstance(content, dict):
            return
        self._on_page = True
        if content.get("type") == "history":
            with self._push_lock:
                self._transmit("history", *self._history())
        else:
            self._handle(content)

    def _handle(self, content: dict[str, Any]) -> None:
        """Other messages of the page; the base knows none."""

    def _bundle_with(self, still: Still, **kwargs: Any) -> Any:
        """The mimebundle of the widget with a picture beside it. On Jupyter's pages the picture is an output of its own
        (see `apart`).

        Where a program runs the notebook for its file there is the picture alone: nobody looks at a widget there, and a
        page made of the file would prefer it, without the spans, which only a kernel has.
        """
        live, bundle = self._on_page or express.attended(), super()._repr_mimebundle_(**kwargs)
        data, metadata = bundle if isinstance(bundle, tuple) else (bundle, {})
        again = fallback.is_update()
        if (
            not live
            or not fallback.is_possible()
            or data is None
            or WIDGET not in data
            or (again and not self._has_pictures)
        ):
            return still.beside(bundle, live)
        fallback.show(still, self._pictures, again)
        self._has_pictures = True
        # A page that does not trust the notebook takes the next best of the output, which would be a line of words
        # below the picture.
        return {**data, "text/plain": still.text, "text/html": "<div></div>"}, metadata

    def renew_pictures(self, still: Still) -> None:
        """Make only the pictures above the views anew. No page makes its view anew for it, nor moves. Does nothing
        where the picture is not an output of its own.
        """
        if self._has_pictures:
            fallback.show(still, self._pictures, True)

    def replace(self, other: PushedWidget, shown: Any) -> None:
        """Be displayed where ``other`` is, its pictures and its view. ``shown``: the output's display handle."""
        self._pictures, self._has_pictures = other._pictures, other._has_pictures
        shown.update(self)

    def renew(self, shown: Any) -> None:
        """Make what is stored of an output the picture of now. ``shown``: the output's display handle."""
        shown.update(self)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(deltas sent: {self._seq})"


@contextmanager
def _without_shell_parent(comm: Any) -> Iterator[None]:
    """Send so that ipykernel does not remember the sender's shell. It would answer this comm from there.

    ipykernel 7 routes a message of the page to the (sub)shell that sent last on the comm. A sender that inherits the
    busy main shell would make pause and stop wait until the cell ends. Outside ipykernel this does nothing.
    """
    kernel = express.kernel()
    parent = getattr(kernel, "_shell_parent", None)
    if parent is None:
        yield
        return
    token = parent.set({})
    try:
        yield
    finally:
        parent.reset(token)
        # The cell that created the widget has left its own (main) shell there.
        vars(comm).pop("_reply_subshell_id", None) if comm is not None else None
