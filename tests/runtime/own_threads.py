"""Threads that a test starts, directly or through others: those of another test may begin at any time in the same process."""

from __future__ import annotations

import threading

import pytest


def own_threads(monkeypatch: pytest.MonkeyPatch) -> list[threading.Thread]:
    """Filled from now on."""
    parents, found, start = {threading.current_thread()}, list[threading.Thread](), threading.Thread.start

    def noted(thread: threading.Thread) -> None:
        if threading.current_thread() in parents:
            parents.add(thread)
            found.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", noted)
    return found
