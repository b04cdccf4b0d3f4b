"""Threads of ranks: those that wait hear messages themselves, by whom, exactly once, in order, and never held up by what has not arrived; gates, with counters
of the kernel and without; looking at what another thread executes."""

from __future__ import annotations

import gc
import os
import random
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from rlinf_lab.runtime.threads import gate as gates
from rlinf_lab.runtime.threads.gate import Gate
from rlinf_lab.runtime.threads.lookout import AWAKE_NS, Heard, Lookout
from rlinf_lab.runtime.transport.links import Link
from rlinf_lab.runtime.transport.listener import Listener

SIZES = (0, 10, 3_000, 20_000, 300_000)  # also more than a rank takes in at once, and more than any buffer


class Host:
    """Hears from several others; notes which thread heard what."""

    def __init__(self, peers: int, has_core: bool = False) -> None:
        self.heard: dict[str, list[int]] = defaultdict(list)
        self.by: list[int] = []
        self.broken: list[str] = []
        self.changed = threading.Condition()
        self.lookout = Lookout(lambda: has_core)
        self.listener = Listener("me", self._on_message, self._on_broken, lambda host, error: self.broken.append(repr(error)), lookout=self.lookout)
        self.links = [Link(self.listener.address, f"peer{i}") for i in range(peers)]

    def _on_message(self, message: tuple) -> None:
        with self.changed:
            self.heard[message[0]].append(message[1])
            self.by.append(threading.get_ident())
            self.changed.notify_all()
        self.lookout.ring()  # as a host does that wakes a rank: a reading thread may have been faster than the one that listens

    def _on_broken(self, peer: str) -> None:
        with self.changed:
            self.broken.append(peer)
            self.changed.notify_all()

    def wait_for(self, condition: Callable[[], bool]) -> None:
        with self.changed:
            assert self.changed.wait_for(condition, 30), (self.heard, self.broken)

    def close(self) -> None:
        for link in self.links:
            link.close()
        self.listener.close()


class Rank(threading.Thread):
    """Listens whenever it finds the place, until it is told to end."""

    def __init__(self, host: Host, until: Callable[[], bool]) -> None:
        super().__init__(daemon=True)
        self.host, self.until = host, until
        self.returned = 0

    def run(self) -> None:
        lookout = self.host.lookout
        while not self.until():
            if lookout.take_place():
                try:
                    lookout.listen(self.until)
                finally:
                    lookout.leave_place()
                self.returned += 1


@pytest.fixture
def host() -> Iterator[Host]:
    made = Host(3)
    yield made
    made.close()


@contextmanager
def listening(host: Host, until: Callable[[], bool]) -> Iterator[Rank]:
    """It has ended when the block does: what it listens for has come by then, or its bell is rung."""
    rank = Rank(host, until)
    rank.start()
    yield rank
    host.lookout.ring()
    rank.join(30)
    assert not rank.is_alive()


def test_what_comes_while_a_rank_listens_it_hears_itself(host: Host) -> None:
    with listening(host, lambda: len(host.heard["a"]) == 300) as rank:
        for i in range(300):
            host.links[0].send(("a", i))
            host.wait_for(lambda i=i: len(host.heard["a"]) > i)
    assert host.heard["a"] == list(range(300)) and host.by.count(rank.ident or 0) > 10  # how many is up to the kernel


def test_while_a_rank_stays_awake_no_thread_is_woken_for_what_comes_and_afterwards_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes between a `hush` and the next `heed`. How soon a rank hushes the connection, and whether it leaves the place to a thread that is at work
    already, is up to the kernel."""
    monkeypatch.setattr("rlinf_lab.runtime.threads.lookout.AWAKE_NS", 10**12)  # however late the next message comes
    host, enough, periods = Host(1, has_core=True), threading.Event(), 0
    lookout, begin, end = host.lookout, host.lookout._hush, host.lookout._heed

    def hush() -> None:
        nonlocal periods
        before = lookout._hushed
        begin()
        periods += before is None and lookout._hushed is not None

    def heed() -> None:
        nonlocal periods
        periods += lookout._hushed is not None
        end()

    monkeypatch.setattr(lookout, "_hush", hush)
    monkeypatch.setattr(lookout, "_heed", heed)
    within, woken = 0, set()
    sent = iter(range(20_000))

    def say_one() -> None:
        number = next(sent)
        host.links[0].send(("a", number))
        host.wait_for(lambda: len(host.heard["a"]) > number)

    with listening(host, enough.is_set) as rank:
        while within < 300:
            period = periods
            say_one()
            if period % 2 and period == periods:  # odd: hushed
                within += 1
                if host.by[-1] != rank.ident:
                    assert period not in woken  # once, if it had been woken before
                    woken.add(period)
        enough.set()  # its bell ends a wait in which nothing comes
    say_one()  # nobody listens now
    assert host.by[-1] != rank.ident and host.heard["a"] == list(range(next(sent)))
    host.close()


class Eager(Lookout):
    """A rank hears a connection as soon as it is watched, stays awake meanwhile, and has its thread roused."""

    def watch(self, connection: Heard) -> None:
        super().watch(connection)
        connection.hush()
        connection.hear_what_is_there()
        connection.heed()


@pytest.mark.parametrize("files", [True, False])
def test_a_connection_may_be_heard_before_its_thread_is_ready(files: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where its thread gets no file to wait with."""
    monkeypatch.setattr(__name__ + ".Lookout", Eager)
    if not files:
        monkeypatch.setattr("rlinf_lab.runtime.transport.listener.IN_TURN", -1)  # the kernel refuses it
    host = Host(2)
    for i in range(20):
        host.links[i % 2].send((f"a{i % 2}", i))
    host.wait_for(lambda: sum(map(len, host.heard.values())) == 20)
    host.close()
    assert host.broken == []


def test_the_beginning_of_a_frame_holds_nobody_up(host: Host) -> None:
    """A peer that stops in the middle of a frame: whoever listens goes when its own message has come, and the rest is heard when it is there."""
    slow, other, _ = host.links
    frame = b"".join(slow._framed([b""], [], []))  # its head is sent alone
    with listening(host, lambda: bool(host.heard["other"])) as rank:
        slow._socket.sendall(frame[:5])
        other.send(("other", 1))
        rank.join(30)
    slow._socket.sendall(frame[5:])
    slow.send(("slow", 2))
    host.wait_for(lambda: host.heard["slow"] == [2])
    assert len(host.broken) == 1 and "EOFError" in host.broken[0]  # a message of no bytes is no message


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("awake", [False, True])
def test_everything_is_heard_once_and_in_order_whoever_hears_it(seed: int, awake: bool) -> None:
    host, rng, total = Host(3, awake), random.Random(seed), 120
    sent = [[rng.choice(SIZES) for _ in range(total)] for _ in host.links]

    def all_heard() -> bool:
        return all(len(host.heard[f"peer{i}"]) == total for i in range(3))

    # Turns of their own: each listens for a few messages, then leaves the place to the other or to nobody.
    ranks = [Rank(host, all_heard) for _ in range(2)]

    def say(i: int) -> None:
        for n, size in enumerate(sent[i]):
            host.links[i].send((f"peer{i}", n, bytes(size)))
            if rng.random() < 0.2:
                host.lookout.ring()

    saying = [threading.Thread(target=say, args=(i,), daemon=True) for i in range(3)]
    for thread in [*ranks, *saying]:
        thread.start()
    host.wait_for(all_heard)
    host.lookout.ring()  # one of them may wait for what has been heard by a reading thread
    for rank in ranks:
        rank.join(30)
        host.lookout.ring()
    assert not any(rank.is_alive() for rank in ranks)
    assert [host.heard[f"peer{i}"] for i in range(3)] == [list(range(total))] * 3
    for link in host.links:
        link.close()
    assert host.listener.wait_for_farewells({"peer0", "peer1", "peer2"}, 30) and not host.broken
    host.listener.close()


def test_a_peer_that_breaks_off_while_a_rank_listens_is_told(host: Host) -> None:
    with listening(host, lambda: bool(host.broken)):
        host.links[0].send(("a", 1))
        host.wait_for(lambda: host.heard["a"] == [1])
        host.links[0]._socket.close()
        host.wait_for(lambda: host.broken == ["peer0"])


class Polled:
    """In place of the kernel: something comes at every third question, or after a long wait. Notes how it was asked, and moves the clock."""

    def __init__(self, question_ns: int, wait_ns: int) -> None:
        self.timeouts: list[int] = []
        self.now, self._question_ns, self._wait_ns = 0, question_ns, wait_ns

    def poll(self, timeout: int, _most: int) -> list[tuple[int, int]]:
        self.timeouts.append(timeout)
        self.now += self._wait_ns if timeout else self._question_ns
        return [(-5, 1)] if timeout or len(self.timeouts) % 3 == 0 else []


@pytest.mark.parametrize(
    ("has_core", "question_ns", "asked"),
    [
        (True, 1_000, [0, 0, 0, 0, 0, 0]),  # it comes soon
        (False, 1_000, [-1, -1]),
        (True, 2 * AWAKE_NS // 3, [0, 0, -1, -1]),  # it does not, and the next time nobody stays awake
    ],
)
def test_who_waits_shortly_on_a_core_of_its_own_stays_awake(has_core: bool, question_ns: int, asked: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    lookout, polled = Lookout(lambda: has_core), Polled(question_ns, 100_000_000)
    monkeypatch.setattr(lookout, "_poll", polled)
    monkeypatch.setattr("rlinf_lab.runtime.threads.lookout.time", SimpleNamespace(perf_counter_ns=lambda: polled.now))  # the clock of nobody else
    for _ in range(2):
        assert lookout._news() == [(-5, 1)]
    assert polled.timeouts == asked


# --- gates ---
@pytest.fixture(params=["file", "no file", "no more files"])
def gate(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Gate:
    """``file``: whatever gates other tests have left in this process."""

    def refuse(*_: int) -> int:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(gates, "MOST", 0 if request.param == "no file" else 1 << 20)
    if request.param != "file":
        monkeypatch.setattr(gates, "_FREE", [])
        monkeypatch.setattr(os, "eventfd", refuse)
    made = Gate()
    assert (made._counter >= 0) == (request.param == "file")
    return made


def test_however_often_it_is_opened_it_is_passed_once(gate: Gate) -> None:
    assert not gate.wait(0.0), "closed at first"
    for times in (1, 2):
        for _ in range(times):
            gate.open()
        assert gate.wait() and not gate.wait(0.0)


def test_whoever_waits_passes_when_others_open_at_once(gate: Gate) -> None:
    passed, failed = list[bool](), list[BaseException]()
    waiting = threading.Thread(target=lambda: passed.extend(gate.wait(30.0) for _ in range(20)), daemon=True)

    def open_often() -> None:
        try:
            while waiting.is_alive():
                gate.open()
        except BaseException as error:
            failed.append(error)

    waiting.start()
    opening = [threading.Thread(target=open_often) for _ in range(3)]
    for thread in opening:
        thread.start()
    for thread in (waiting, *opening):
        thread.join(60)
    assert passed == [True] * 20 and not failed


def test_counters_are_used_again_and_never_more_than_a_few_are_made() -> None:
    many = [Gate() for _ in range(gates.MOST + 20)]
    assert Gate._made == gates.MOST and many[-1]._counter < 0
    many[0].open()
    counters = {gate._counter for gate in many} - {-1}
    assert 0 < len(counters) <= gates.MOST
    del many
    gc.collect()
    again = [Gate() for _ in counters]
    assert all(gate._counter >= 0 for gate in again) and Gate._made == gates.MOST >= len(gates._USED), "no new ones"
    assert not any(gate.wait(0.0) for gate in again)  # what was open before is not open now


FORKED = """
import gc, os
from rlinf_lab.runtime.threads.gate import Gate

mine = Gate()
counter = mine._counter
child = os.fork()
if not child:  # its copy of ``mine`` goes, and it makes gates of its own
    del mine
    gc.collect()
    made = [Gate() for _ in range(3)]
    os._exit(int(any(gate._counter == counter for gate in made) or not made[0]._counter >= 0))
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert not mine.wait(0.0)
"""

COLLECTED = """
import gc, os, threading
from rlinf_lab.runtime.session.session import _frame_of

class Closes:
    def __init__(self):  # in a cycle: the collector ends it
        self.me, self.file = self, os.dup(0)

    def __del__(self):
        os.close(self.file)

over = threading.Event()

def come_and_go():
    while not over.is_set():
        thread = threading.Thread(target=lambda: None)
        thread.start()
        thread.join()

coming = [threading.Thread(target=come_and_go) for _ in range(3)]
for thread in coming:
    thread.start()
gc.set_threshold(1)
for _ in range(1000):
    Closes()
    assert _frame_of(threading.get_ident()) is not None
assert gc.isenabled() and _frame_of(0) is None
over.set()
for thread in coming:
    thread.join()
"""


def test_a_forked_child_leaves_the_counters_of_its_parent_alone_and_the_interpreter_outlives_a_look_at_threads_that_end() -> None:
    """The garbage collector comes in between, and ends things whose ends let other threads run."""
    # In a process of their own: collecting what other tests have left of torch's process groups, whose threads no fork has, is a segmentation fault.
    for script in (FORKED, COLLECTED):
        subprocess.run([sys.executable, "-c", script], check=True, timeout=60, stdin=subprocess.DEVNULL)
