"""The inbox for calling a worker by hand: it refuses what a channel refuses."""

from __future__ import annotations

from typing import Any

import pytest

from rlinf_lab.errors import ChannelClosed, WorkflowError
from rlinf_lab.workflow.worker import Collected, Scripted


def test_batches_and_what_is_left() -> None:
    inbox = Scripted([1, 2, 3, 4, 5], micro_batch=2)
    assert inbox.take() == 1 and inbox.get() == [2, 3] and inbox.get(1) == [4] and inbox.get_all() == [5] and list(inbox) == []
    with pytest.raises(ChannelClosed):
        inbox.take()


def test_keys_choose_the_stream() -> None:
    box: Collected[str] = Collected()
    for key, item in [(0, "a"), (1, "b"), (0, "c")]:
        box.put(item, key=key)
    inbox = Scripted(box, keys=[k for k in box.keys if k is not None])
    assert inbox.take(key=1) == "b" and inbox.get(key=0) == ["a", "c"] and repr(inbox) == "Scripted(0 items left, keyed)"


@pytest.mark.parametrize("call", [lambda s: s.get(0), lambda s: s.get(-1), lambda s: s.take(key=0), lambda s: s.get(2, key=1)])
def test_an_inbox_without_keys_refuses_keys_and_less_than_one_item(call: Any) -> None:
    with pytest.raises(WorkflowError, match=r"has no keys|less than one"):
        call(Scripted([1, 2]))


@pytest.mark.parametrize("call", [lambda s: s.get(), lambda s: s.take(), lambda s: s.get_all(), lambda s: next(iter(s))])
def test_a_keyed_inbox_wants_a_key(call: Any) -> None:
    with pytest.raises(WorkflowError, match="is keyed"):
        call(Scripted([1], keys=[0]))


def test_a_key_for_each_item() -> None:
    with pytest.raises(WorkflowError, match=r"2 items, keys=\[0\]"):
        Scripted([1, 2], keys=[0])
