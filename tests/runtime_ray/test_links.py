"""Links without Ray: order, no waiting for each other, what cannot travel or be read, the death of a peer."""

from __future__ import annotations

import dataclasses
import pickle
import queue
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "runtime"))
from ends import Ends
from sessions import until

from rlinf_lab.errors import ChannelBroken, WorkflowError
from rlinf_lab.runtime.transport.links import Link
from rlinf_lab.runtime.transport.listener import Listener

BIG = bytes(4_000_000)  # more than any socket buffer


@pytest.fixture
def ends() -> Iterator[Ends]:
    made = Ends()
    yield made
    made.close()


def test_messages_arrive_in_order_small_and_large(ends: Ends) -> None:
    for i in range(300):
        ends.link.send(("value", (i, np.full(200_000 if i % 50 == 0 else 1000, i))))
    for i in range(300):
        number, array = ends.next()
        assert number == i and array[-1] == i and not array.flags.owndata, "it is rebuilt on the buffer that was received"


def test_answering_from_the_reading_thread_with_full_sockets_does_not_deadlock() -> None:
    answers, links = {"a": queue.Queue[bytes](), "b": queue.Queue[bytes]()}, dict[str, Link]()

    def listens(me: str) -> Listener:
        hear = lambda message: links[me].send(("answer", BIG)) if message[0] == "ask" else answers[me].put(message[1])  # noqa: E731
        return Listener(me, hear, lambda _: None, lambda *_: None)

    listeners = {me: listens(me) for me in "ab"}
    links |= {"a": Link(listeners["b"].address, "a"), "b": Link(listeners["a"].address, "b")}
    for link in links.values():
        threading.Thread(target=lambda link=link: [link.send(("ask", BIG)) for _ in range(8)], daemon=True).start()
    assert all(answers[me].get(timeout=60) == BIG for me in "ab" for _ in range(8))
    for end in (*links.values(), *listeners.values()):
        end.close()


def test_what_was_sent_before_the_farewell_is_heard(ends: Ends) -> None:
    for _ in range(5):
        ends.link.send(("value", BIG))
    ends.link.close()
    ends.link.close()  # which changes nothing
    assert ends.listener.wait_for_farewells({"here"}, 60) and ends.values == [BIG] * 5 and not ends.broken
    until(lambda: ends.link._writer is None or not ends.link._writer.is_alive())


class Unreadable:
    """``leaves``: ends the thread that unpickles it, if that lets it."""

    def __init__(self, leaves: bool) -> None:
        self.leaves = leaves

    def __reduce__(self) -> tuple[Any, ...]:
        return (sys.exit, ("as it was asked to",)) if self.leaves else (refuse, ())


def refuse() -> None:
    raise ModuleNotFoundError("No module named 'elsewhere'", name="elsewhere")


def test_what_cannot_be_sent_is_refused_what_cannot_be_read_is_reported_and_the_link_lives_on(ends: Ends) -> None:
    with pytest.raises(WorkflowError, match=r"'put' message that holds lock cannot be sent.*Next:"):
        ends.link.send(("put", threading.Lock()))
    for leaves in (False, True):
        ends.link.send(("value", Unreadable(leaves)))
        assert ends.send(leaves) is leaves
    assert [kind for kind, _ in ends.errors] == [ModuleNotFoundError, SystemExit]


CHILD = """
import pickle, sys, time
from rlinf_lab.runtime.transport.links import Link
from rlinf_lab.runtime.transport.listener import Listener
listener = Listener("child", lambda m: None, lambda h: None, lambda h, e: None)
link = Link(pickle.loads(bytes.fromhex(sys.argv[1])), "child")
link.send(("address", listener.address))
time.sleep(600)
"""


def test_the_death_of_a_process_is_noticed_on_both_directions(ends: Ends) -> None:
    child = subprocess.Popen([sys.executable, "-c", CHILD, pickle.dumps(ends.listener.address).hex()])
    link = Link(ends.next(), "me")
    child.kill()
    child.wait()  # its end of one direction may be closed before that of the other
    until(lambda: ends.broken == ["child"])
    with pytest.raises(ChannelBroken, match="Host 'child' is gone"):
        for _ in range(3):
            link.send(("put", BIG))
    link.close()


def test_the_way_to_another_node_tells_when_that_is_silent() -> None:
    """`test_hosts_apart` pulls a cable. The reading end matters: where something was sent and not confirmed, no probe is."""
    ends = Ends(node="another")
    assert ends.link.transport == "tcp" and ends.send(BIG) == BIG
    taken = [s for s in ends.listener._sockets if s.family == socket.AF_INET and not s.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)]
    assert len(taken) == 1
    for each in (ends.link._socket, *taken):
        assert each.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        idle, between, count = (each.getsockopt(socket.IPPROTO_TCP, o) for o in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT))
        assert 5 <= idle + between * count <= 30  # neither a hiccup nor for ever
    elsewhere = dataclasses.replace(ends.listener.address, node="elsewhere", tcp=("127.0.0.1", 1))
    with pytest.raises(ChannelBroken, match=r"Host 'there' cannot be reached at 127\.0\.0\.1:1 .*Next: let TCP through between the nodes"):
        Link(elsewhere, "here")
    ends.close()
