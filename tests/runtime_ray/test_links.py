"""Links without Ray: order, no waiting for each other, what cannot travel or be read, the death of a peer."""

from __future__ import annotations

import dataclasses
import pickle
import socket
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from rlinf_lab.errors import ChannelBroken, WorkflowError
from rlinf_lab.runtime.transport.links import Link
from rlinf_lab.runtime.transport.listener import Listener
from rlinf_lab.runtime.transport.pickling import Packed

BIG = bytes(4_000_000)  # more than any socket buffer


class Peer:
    """One end: what it heard, what went wrong, and a link to the other end."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.heard: list[tuple] = []
        self.broken: list[str] = []
        self.errors: list[BaseException] = []
        self.answer: Callable[[tuple], Any] = lambda message: None
        self.changed = threading.Condition()
        self.listener = Listener(name, self._on_message, self._on_broken, self._on_error)
        self.link: Link | None = None

    def _on_message(self, message: tuple) -> None:
        self.answer(message)
        with self.changed:
            self.heard.append(message)
            self.changed.notify_all()

    def _on_broken(self, host: str) -> None:
        with self.changed:
            self.broken.append(host)
            self.changed.notify_all()

    def _on_error(self, host: str, error: BaseException) -> None:
        with self.changed:
            self.errors.append(error)
            self.changed.notify_all()

    def wait_for(self, condition: Callable[[], bool]) -> None:
        with self.changed:
            assert self.changed.wait_for(condition, 30), (self.heard[-3:], self.broken, self.errors)


@pytest.fixture
def peers() -> Iterator[tuple[Peer, Peer]]:
    a, b = Peer("a"), Peer("b")
    a.link, b.link = Link(b.listener.address, "a"), Link(a.listener.address, "b")
    yield a, b
    for peer in (a, b):
        assert peer.link is not None
        peer.link.close()
    for peer in (a, b):
        peer.listener.close()


def test_messages_arrive_in_order_small_and_large(peers: tuple[Peer, Peer]) -> None:
    a, b = peers
    for i in range(300):
        a.link.send(("put", i, np.full(200_000 if i % 50 == 0 else 2, i)))
    b.wait_for(lambda: len(b.heard) == 300)
    assert [m[1] for m in b.heard] == list(range(300))
    assert all(m[2][-1] == m[1] for m in b.heard)


def test_answering_from_the_reading_thread_with_full_sockets_does_not_deadlock(peers: tuple[Peer, Peer]) -> None:
    for me in peers:
        me.answer = lambda message, me=me: me.link.send(("answer", BIG)) if message[0] == "ask" else None
    asking = [threading.Thread(target=lambda me=me: [me.link.send(("ask", BIG)) for _ in range(8)], daemon=True) for me in peers]
    for thread in asking:
        thread.start()
    for me in peers:
        me.wait_for(lambda me=me: sum(m[0] == "answer" for m in me.heard) == 8)


def test_what_was_sent_before_the_farewell_is_heard(peers: tuple[Peer, Peer]) -> None:
    a, b = peers
    for _ in range(5):
        a.link.send(("put", BIG))
    a.link.close()
    assert b.listener.wait_for_farewells({"a"}, 30) and len(b.heard) == 5 and not b.broken


def test_a_message_that_does_not_pickle_is_refused_and_the_link_lives_on(peers: tuple[Peer, Peer]) -> None:
    a, b = peers
    with pytest.raises(WorkflowError, match=r"'put' message that holds lock cannot be sent.*Next:"):
        a.link.send(("put", threading.Lock()))
    a.link.send(("put", 1))
    b.wait_for(lambda: b.heard == [("put", 1)])


class Unreadable:
    def __reduce__(self) -> tuple:
        return refuse, ()


def refuse() -> None:
    raise ModuleNotFoundError("No module named 'elsewhere'", name="elsewhere")


def test_a_message_that_cannot_be_read_is_reported_and_the_next_one_is_heard(peers: tuple[Peer, Peer]) -> None:
    a, b = peers
    a.link.send(("put", Unreadable()))
    a.link.send(("put", 2))
    b.wait_for(lambda: b.heard == [("put", 2)])
    assert [type(e) for e in b.errors] == [ModuleNotFoundError]


def test_arrays_are_rebuilt_on_the_received_buffers(peers: tuple[Peer, Peer]) -> None:
    a, b = peers
    a.link.send(("put", Packed.of({"x": np.arange(1000.0)})))
    b.wait_for(lambda: len(b.heard) == 1)
    x = b.heard[0][1].open()["x"]
    assert x.sum() == 499_500 and not x.flags.owndata


def test_the_death_of_a_process_is_noticed_on_both_directions() -> None:
    me = Peer("me")
    script = textwrap.dedent("""
        import pickle, sys, time
        from rlinf_lab.runtime.transport.links import Link
        from rlinf_lab.runtime.transport.listener import Listener
        listener = Listener("child", lambda m: None, lambda h: None, lambda h, e: None)
        link = Link(pickle.loads(bytes.fromhex(sys.argv[1])), "child")
        link.send(("address", listener.address))
        time.sleep(60)
    """)
    child = subprocess.Popen([sys.executable, "-c", script, pickle.dumps(me.listener.address).hex()])
    try:
        me.wait_for(lambda: len(me.heard) == 1)
        link = Link(me.heard[0][1], "me")
        child.kill()
        child.wait()  # its end of one direction may be closed before that of the other
        me.wait_for(lambda: me.broken == ["child"])
        with pytest.raises(ChannelBroken, match="Host 'child' is gone"):
            for _ in range(3):
                link.send(("put", BIG))
        link.close()
    finally:
        child.kill()
        child.wait()
        me.listener.close()


class Leaves:
    """Ends the thread that unpickles it, if that lets it."""

    def __reduce__(self) -> tuple:
        return sys.exit, ("as it was asked to",)


def test_what_exits_when_it_is_unpickled_is_reported_and_the_next_is_heard(peers: tuple[Peer, Peer]) -> None:
    a, b = peers
    assert a.link is not None
    a.link.send(("put", Leaves()))
    a.link.send(("put", 1))
    b.wait_for(lambda: b.heard == [("put", 1)])
    assert [type(e) for e in b.errors] == [SystemExit]


def test_the_way_to_another_node_tells_when_that_is_silent(peers: tuple[Peer, Peer]) -> None:
    """`test_hosts_apart` pulls a cable. The reading end matters: where something was sent and not confirmed, no probe is."""
    _, b = peers
    link = Link(dataclasses.replace(b.listener.address, node="another"), "a")
    assert link.transport == "tcp"
    taken = [s for s in b.listener._sockets if s.family == socket.AF_INET and not s.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)]
    assert len(taken) == 1
    for each in (link._socket, *taken):
        assert each.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        idle, between, count = (each.getsockopt(socket.IPPROTO_TCP, o) for o in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT))
        assert 5 <= idle + between * count <= 30  # neither a hiccup nor for ever
    link.close()


def test_a_host_that_no_connection_can_be_opened_to_is_named() -> None:
    listener = Listener("there", lambda _: None, lambda _: None, lambda *_: None)
    elsewhere = dataclasses.replace(listener.address, node="elsewhere", tcp=("127.0.0.1", 1))
    with pytest.raises(ChannelBroken, match=r"Host 'there' cannot be reached at 127\.0\.0\.1:1 .*Next: let TCP through between the nodes"):
        Link(elsewhere, "here")
    listener.close()
