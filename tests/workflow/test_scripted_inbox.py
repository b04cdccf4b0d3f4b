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


@pytest.mark.parametrize(
    ("call", "says"),
    [
        *((call, "has no keys|less than one") for call in (lambda s, _: s.get(0), lambda s, _: s.get(-1), lambda s, _: s.take(key=0), lambda s, _: s.get(2, key=1))),
        *((call, "is keyed") for call in (lambda _, k: k.get(), lambda _, k: k.take(), lambda _, k: k.get_all(), lambda _, k: next(iter(k)))),
        (lambda *_: Scripted([1, 2], keys=[0]), r"2 items, keys=\[0\]"),
    ],
)  # fmt: skip
def test_what_a_channel_refuses(call: Any, says: str) -> None:
    with pytest.raises(WorkflowError, match=says):
        call(Scripted([1, 2]), Scripted([1], keys=[0]))
