"""The page's messages must not be routed to the busy main shell because the kernel pushed from it."""

from __future__ import annotations

from contextvars import ContextVar
from types import SimpleNamespace
from typing import Any

import pytest

from rlinf_lab.widgets import express, pushed


def test_outside_a_kernel_nothing_happens() -> None:
    comm = SimpleNamespace(_reply_subshell_id="kept")
    with pushed._without_shell_parent(comm):
        pass
    assert comm._reply_subshell_id == "kept"


def test_in_a_kernel_the_parent_is_hidden_while_sending(monkeypatch: pytest.MonkeyPatch) -> None:
    parent: ContextVar[dict[str, Any]] = ContextVar("shell_parent")
    parent.set({"header": {"subshell_id": None}})
    monkeypatch.setattr(express, "kernel", lambda: SimpleNamespace(_shell_parent=parent))
    comm = SimpleNamespace(_reply_subshell_id=None)
    with pushed._without_shell_parent(comm):
        assert parent.get() == {}
    assert parent.get() == {"header": {"subshell_id": None}}
    assert not hasattr(comm, "_reply_subshell_id")
