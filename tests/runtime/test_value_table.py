"""Values of calls as one host keeps them: who waits, who has asked, what an iteration that fails takes with it, what is left."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from rlinf_lab.errors import Cancelled
from rlinf_lab.runtime.host.state.messages import ValueOf
from rlinf_lab.runtime.host.state.rank import Process
from rlinf_lab.runtime.host.state.values import Returned, ValueTable


def waiter(name: str) -> Process:
    return cast(Process, SimpleNamespace(name=name))


def test_of_overlapping_iterations_only_those_who_wait_for_the_failed_one_hear_of_it() -> None:
    table, woken = ValueTable(), list[Process]()
    early, late, there = waiter("early"), waiter("late"), waiter("there")
    for call, iteration, who in ((1, 0, early), (2, 1, late), (3, 1, there)):
        table.entry(call, 0, iteration)[0].waiters.append(who)
    table.entry(4, 0, 1)  # nobody waits for it: it may come late
    assert table.set(3, 0, 1, "made in time", None, lambda *_: None) == [there]
    table.fail_missing(1, ValueError("broken"), woken.append)
    assert woken == [late]
    with pytest.raises(Cancelled, match="will not come: broken"):
        table.entry(2, 0, 1)[0].get()
    assert table.entry(3, 0, 1)[0].get() == "made in time"
    assert table.set(2, 0, 1, "too late", None, lambda *_: None) == [], "it has been told"
    table.entry(1, 0, 0)[0].leave(interrupted := waiter("interrupted"))  # of one that is not there it is harmless
    table.entry(1, 0, 0)[0].waiters.append(interrupted)
    table.entry(1, 0, 0)[0].leave(interrupted)
    assert table.set(1, 0, 0, 5, None, lambda *_: None) == [early] and table.entry(1, 0, 0)[0].get() == 5
    assert table.set(4, 0, 1, 6, None, lambda *_: None) == [] and table.entry(4, 0, 1)[0].get() == 6


def test_each_host_that_asks_is_told_once_and_at_once_where_the_value_is_there() -> None:
    table, said = ValueTable(), list[tuple[str, Any]]()

    def say(host: str, message: Any) -> None:
        said.append((host, message))

    table.ask(1, 0, 0, "early", say)
    assert not said
    table.set(1, 0, 0, 2.5, None, say)
    table.set(1, 0, 0, 9.0, None, say)
    table.ask(1, 0, 0, "late", say)
    assert said == [(host, ValueOf(1, 0, 0, 2.5, None)) for host in ("early", "late")]


@pytest.mark.parametrize(
    ("call", "words"),
    [(5, r"What actor[2] returned from act()"), (-5, r"What actor[2] gave to the other ranks in act()")],
)
def test_what_is_not_plain_travels_with_its_source(call: int, words: str) -> None:
    entry, _ = ValueTable().entry(call, 2, 0)
    entry.source = ("actor", 2, "act")
    for plain in (None, True, 3, 2.5, "text"):
        entry.value = plain
        assert entry.to_send(call) is plain
    entry.value = [1, 2]
    sent = entry.to_send(call)
    assert isinstance(sent, Returned) and sent.what == words and sent.open() == [1, 2]
    entry.value = sent
    assert entry.to_send(call) is sent and entry.get() == [1, 2]


def test_the_table_is_empty_when_its_iterations_are_over() -> None:
    table = ValueTable()
    for call, iteration in ((1, 0), (2, 1), (3, 2), (4, 2)):
        table.entry(call, 0, iteration)
    table.retire(1)
    assert [table.entry(call, 0, iteration)[1] for call, iteration in ((3, 2), (1, 0), (2, 1))] == [False, True, True]
    table.forget(4, 0)
    table.forget(4, 0)
    table.retire(2)
    assert not table._values
