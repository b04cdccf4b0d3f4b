"""A thread of a host sends messages while a worker's thread imports torch: the module is there, and has nothing in it yet."""

from __future__ import annotations

import os
import pickle
import sys
import types

import pytest

from rlinf_lab.errors import ExecutorError
from rlinf_lab.runtime.machine.pinning import on_core
from rlinf_lab.runtime.transport.pickling import Packed, pickled


def test_messages_are_sent_while_torch_is_being_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", types.ModuleType("torch"))
    data, buffers = pickled(("failed", ExecutorError("why"), [1, 2]))
    assert pickle.loads(data, buffers=buffers)[2] == [1, 2]
    assert Packed.of({"a": (1, lambda x: x + 1)}).open()["a"][1](2) == 3


def test_a_thread_is_kept_on_its_core_while_torch_is_being_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", types.ModuleType("torch"))
    core = min(os.sched_getaffinity(0))
    with on_core(core):
        assert os.sched_getaffinity(0) == {core}
