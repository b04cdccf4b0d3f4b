"""Processes that may have no more memory or files: the message is lost and said to be, the next ones are heard, nobody waits for ever."""

from __future__ import annotations

import builtins
import errno
import itertools
import subprocess
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from ends import Ends
from sessions import until

from rlinf_lab import ExecutionPlan, Inbox, Outbox, Weights, Worker, Workflow
from rlinf_lab.errors import ExecutorError, WorkerError
from rlinf_lab.runtime.executors import device_host
from rlinf_lab.runtime.host.liveness.failures import not_understood
from rlinf_lab.runtime.run.run import session
from rlinf_lab.runtime.transport import frames, shared_memory
from rlinf_lab.runtime.transport.links import Address, Link, Ways

MIB = 1 << 20


def stingy(*args: Any) -> bytearray:
    """In place of `bytearray`: a process that has no memory for a block of a MiB, or of exactly 50,000 bytes."""
    if args and isinstance(args[0], int) and (args[0] >= MIB or args[0] == 50_000):
        raise MemoryError
    return builtins.bytearray(*args)


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> Iterator[Ends]:
    made = Ends()
    yield made
    monkeypatch.undo()
    made.close()


def test_a_message_without_memory_for_it_is_an_error_and_the_next_is_heard(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before, the thread that heard ended with a traceback, and everybody waited for ever."""
    monkeypatch.setattr(frames, "bytearray", stingy, raising=False)
    monkeypatch.setattr(shared_memory, "LIMIT", 0)
    for value in (1, np.zeros(3 * MIB, np.uint8), 2, "x" * (2 * MIB), 3):
        ends.link.send(("value", value))
    ends.wait_for(5)
    assert ends.values == [1, 2, 3] and not ends.broken
    assert ends.errors == [(MemoryError, "3.0 MiB"), (MemoryError, "2.0 MiB")]


@pytest.mark.parametrize("number", [None, errno.EMFILE, errno.ENOMEM])
def test_slots_of_a_message_that_is_lost_or_cannot_be_seen_are_free(number: int | None, ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    """None: there is no memory for its second part. Else, in each message the first is seen, the second is not, the third is not tried."""
    view, calls, sizes, pool = shared_memory.SlotViews.view, itertools.count(), [70_000] * 3 if number else [70_000, 50_000], ends.link._slots

    def viewed(self: shared_memory.SlotViews, buffer: shared_memory.InSlot) -> Any:
        if number and next(calls) % 2:
            raise OSError(number, "no more")
        return view(self, buffer)

    monkeypatch.setattr(shared_memory.SlotViews, "view", viewed)
    monkeypatch.setattr(frames, "bytearray", stingy, raising=False)
    for i in range(5):
        ends.link.send(("value", [np.zeros(size, np.uint8) for size in sizes]))
        ends.wait_for(i + 1)
        until(lambda: pool.take_back() or sum(map(len, pool._free.values())) == len(pool._slots))
    assert len(ends.errors) == 5 and not ends.values
    assert len(pool._slots) == sum(size != 50_000 for size in sizes)


def test_who_may_open_no_more_files_is_told() -> None:
    """Before: "could not understand a message", and advice about how classes are unpickled."""
    with pytest.raises(ExecutorError, match=r"Host 'a' may open no more files.*Next: close what its workers opened"):
        raise not_understood("'a'", "'b'", OSError(errno.EMFILE, "no"))


def test_a_sender_without_memory_for_the_rest_of_a_message_ends_its_stream(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    """What came next would have been read as that rest."""
    monkeypatch.setattr(shared_memory, "LIMIT", 0)

    def no_memory(parts: Any, skip: int) -> Any:
        raise MemoryError

    ends.link.send(("value", 1))
    monkeypatch.setattr(Link, "_copied", staticmethod(no_memory))
    with pytest.raises(MemoryError):
        ends.link.send(("value", np.zeros(16 * MIB, np.uint8)))
    ends.wait_for(2)
    assert (ends.values, ends.errors, ends.broken) == ([1], [], ["here"])
    with pytest.raises(ConnectionError, match="no memory for a message to it"):
        ends.link.send(("value", 2))


def test_nothing_of_a_message_that_has_left_stays(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before, the last one that the socket had not taken at once stayed until there was another: weights of 3 GiB for each reader."""
    monkeypatch.setattr(shared_memory, "LIMIT", 0)
    copied, kept = Link._copied, []

    def remembered(parts: Any, skip: int) -> memoryview:
        rest = np.frombuffer(copied(parts, skip), np.uint8).copy()
        kept.append(weakref.ref(rest))
        return memoryview(rest)

    monkeypatch.setattr(Link, "_copied", staticmethod(remembered))
    ends.link.send(("value", np.zeros(16 * MIB, np.uint8)))
    ends.wait_for(1)
    until(lambda: kept[0]() is None)


class Odd:
    def __reduce__(self) -> Any:
        return int, ("odd",)


class Makes(Worker):
    def make(self, size: int, out: Outbox) -> None:
        shared_memory.LIMIT = 0
        out.put(np.ones(size, np.uint8) if size else Odd())

    def learn(self, size: int, weights: Weights) -> int:
        shared_memory.LIMIT = 0
        return weights.publish(np.ones(size, np.uint8))


class Takes(Worker):
    def take(self, items: Inbox) -> int:
        vars(frames)["bytearray"] = stingy
        return sum(int(each.sum()) for batch in items for each in batch)

    def act(self, at_least: int, weights: Weights) -> int:
        vars(frames)["bytearray"] = stingy
        return int(weights.pull(at_least).state.sum())


def test_a_reader_without_memory_fails_the_iteration_and_the_session_goes_on() -> None:
    flow = Workflow("little memory")
    items, weights = flow.channel("items"), flow.weights("w")
    makes, takes = flow.worker(Makes, name="makes"), flow.worker(Takes, name="takes")

    @flow.iteration
    def iteration(size: int, what: str = "both") -> Any:
        found = []
        if what != "weights":
            makes.make(size, items)
            found.append(takes.take(items).wait())
        if what != "items":
            found.append(takes.act(makes.learn(size, weights).wait(), weights).wait())
        return found

    plan = ExecutionPlan.spatial(flow, ["cpu:0", "cpu:1"], {"makes": [0], "takes": [1]})
    with session(flow, plan, executor="processes", emulate=True) as s:
        assert s.step(1000) == [1000, 1000]
        odd = r"'host1' \(takes\[0\]\) could not understand a message of 'host0' \(makes\[0\]\): ValueError: invalid literal.*Next: .*__reduce__"
        with pytest.raises((ExecutorError, WorkerError), match=odd):
            s.step(0)
        for what in ("items", "weights"):
            with pytest.raises((ExecutorError, WorkerError), match=r"'host1' \(takes\[0\]\) has no memory for a message of 'host0' \(makes\[0\]\): 3.0 MiB"):
                s.step(3 * MIB, what)
            assert s.step(2000) == [2000, 2000]


FEW_FILES = """
import os, resource
from rlinf_lab import ExecutionPlan, Worker, Workflow, session
from rlinf_lab.errors import ExecutorError
from rlinf_lab.runtime.host.liveness.failures import not_understood  # not for the first time when files are few

class One(Worker):
    def one(self) -> int:
        return self.rank

flow = Workflow("few files")
worker = flow.worker(One, name="w")
flow.iteration(lambda: worker.one().wait())
plan = ExecutionPlan.spatial(flow, ["cpu:0", "cpu:1", "cpu:2"], {"w": [0, 1, 2]})
there = len(os.listdir("/proc/self/fd"))
for more in range(4, 40, 4):
    resource.setrlimit(resource.RLIMIT_NOFILE, (there + more, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    try:
        with session(flow, plan, executor="processes", emulate=True) as s:
            s.step()
        print(more, "ran")
    except ExecutorError as error:
        print(more, "told" if "Next: " in str(error) and "limit" in str(error) else error)
"""


@pytest.mark.long
def test_who_may_open_too_few_files_for_the_links_is_told(tmp_path: Path) -> None:
    """Before: OSErrors about a file of the kernel, connections that were reset, or advice about modules that are run as programs."""
    script = tmp_path / "few_files.py"
    script.write_text(FEW_FILES)
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-3000:]
    said = [line.split(" ", 1)[1] for line in done.stdout.strip().split("\n")]
    assert len(said) == 9 and set(said) == {"told", "ran"}, said


def test_a_host_may_be_stopped_while_it_opens_its_links(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before: "dictionary changed size during iteration" in place of why the launch was given up."""
    monkeypatch.setattr(device_host, "Link", lambda address, *_: SimpleNamespace(peer=address.host, transport="unix"))
    host: Any = object.__new__(device_host.DeviceHost)
    host.name, host.links = "a", {}
    addresses = [Address(name, "node", "", ("", 0), b"") for name in "abc"]
    host.connect(addresses[:2], Ways())
    assert list(host.links) == ["b"]
    going_through = iter(host.links.values())
    host.connect(addresses[2:], Ways())
    assert [link.peer for link in going_through] == ["b"] and [*host.links] == ["b", "c"]
