"""What a live widget has sent, kept so that a page that reloads gets all of it in one message."""

from __future__ import annotations

from typing import Any

from rlinf_lab.widgets.feed import Update


class SpanHistory:
    """Packed spans and bubbles of a timeline, and the newest tables."""

    def __init__(self) -> None:
        self.tables: Any = None
        self._spans: list[bytes] = []
        self._idle: list[bytes] = []

    def add(self, update: Update) -> tuple[dict[str, Any], dict[str, bytes]]:
        """Keep an update; returns it as (content, binary parts) of a message."""
        content: dict[str, Any] = {}
        parts: dict[str, bytes] = {}
        if update.tables is not None:
            self.tables = content["tables"] = update.tables
        if update.spans:
            self._spans.append(update.spans)
            parts["spans"] = update.spans
        if update.idle:
            self._idle.append(update.idle)
            parts["idle"] = update.idle
        return content, parts

    def everything(self) -> tuple[dict[str, Any], dict[str, bytes]]:
        """All of it as (content, binary parts); joins the pieces, so that asking again is cheap."""
        self._spans, self._idle = [b"".join(self._spans)], [b"".join(self._idle)]
        content = {} if self.tables is None else {"tables": self.tables}
        return content, {"spans": self._spans[0], "idle": self._idle[0]}
