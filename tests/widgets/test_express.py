"""Messages on the short way are those that ipykernel would send: read by Jupyter's own reader, with a signature that holds."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest
import zmq
from ipykernel.iostream import IOPubThread
from jupyter_client.session import Session

from rlinf_lab.widgets import Dashboard, TimelineView, express
from rlinf_lab.widgets.pushed import PushedWidget


class Socket:
    def __init__(self) -> None:
        self.sent: list[tuple[list[bytes], bool]] = []

    def send_multipart(self, frames: list[bytes], copy: bool) -> None:
        self.sent.append((frames, copy))


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Any:
    made = SimpleNamespace(session=Session(key=b"a secret", username='somebody "else"'), iopub_socket=Socket())
    monkeypatch.setattr(express, "kernel", lambda: made)
    return made


def comm_of(name: str = "c-1") -> Any:
    return SimpleNamespace(comm_id=name, topic=f"comm-{name}".encode(), _reply_subshell_id="the cell's")


def read(session: Session, frames: list[bytes]) -> tuple[list[bytes], dict[str, Any]]:
    """As a front end does. Raises for a signature that is wrong, and for a message that came before."""
    topics, parts = session.feed_identities(frames)
    return topics, Session(key=session.key).deserialize(parts)


def test_jupyters_reader_finds_what_was_said(kernel: Any) -> None:
    comm, content = comm_of(), {"type": "delta", "seq": 1, "parts": ["spans"], "text": 'ä 😀 "quoted"', "numbers": [1.5, None, True]}
    way = express.Express.of(comm)
    assert way is not None and way.carries(comm) and not way.carries(comm_of())
    for _ in range(2):
        way.send(content, [b"\0\1", b"x" * 100_000])
    (frames, copied), (others, _) = kernel.iopub_socket.sent
    topics, found = read(kernel.session, frames)
    assert topics == [b"comm-c-1"] and not copied and not hasattr(comm, "_reply_subshell_id")
    assert found["content"] == {"comm_id": "c-1", "data": {"method": "custom", "content": content}}
    assert found["parent_header"] == found["metadata"] == {} and [bytes(b) for b in found["buffers"]] == [b"\0\1", b"x" * 100_000]
    usual = kernel.session.msg("comm_msg")["header"]
    assert found["header"].keys() == usual.keys() and type(found["header"]["date"]) is type(usual["date"])
    same = ("msg_type", "username", "session", "version")
    assert [found["header"][key] for key in same] == [usual[key] for key in same]
    assert read(kernel.session, others)[1]["header"]["msg_id"] != found["header"]["msg_id"]
    assert abs((usual["date"] - found["header"]["date"]).total_seconds()) < 60
    kernel.session = Session(key=b"")
    way = express.Express.of(comm_of())
    assert way is not None and way.frames({})[2] == b"", "without a key there is no signature"


@pytest.mark.parametrize("why", ["no kernel", "no topic", "another packer", "an older protocol", "a fork"])
def test_where_something_is_unusual_the_usual_way_is_taken(kernel: Any, monkeypatch: pytest.MonkeyPatch, why: str) -> None:
    comm = comm_of()
    if why == "no kernel":
        monkeypatch.setattr(express, "kernel", lambda: None)
    elif why == "no topic":
        comm = SimpleNamespace(comm_id="dummy")
    elif why == "another packer":
        kernel.session = Session(key=b"", packer="pickle")
    elif why == "an older protocol":
        kernel.session.adapt_version = 4
    else:
        made = express.Express.of(comm)
        monkeypatch.setattr(os, "getpid", lambda: -1)
        assert made is not None and not made.carries(comm)
    assert express.Express.of(comm) is None


@pytest.fixture
def iopub() -> Any:
    """ipykernel's own thread that sends, and a front end's socket at its other end."""
    context = zmq.Context()
    sends, hears = context.socket(zmq.PUB), context.socket(zmq.SUB)
    port = sends.bind_to_random_port("tcp://127.0.0.1")
    hears.connect(f"tcp://127.0.0.1:{port}")
    hears.subscribe(b"")
    thread = IOPubThread(sends)
    thread.start()
    while not hears.poll(20):  # the subscription has arrived when something does
        thread.send_multipart([b"?"])
    while hears.poll(200):
        hears.recv_multipart()
    yield SimpleNamespace(thread=thread, hears=hears)
    if thread.thread.is_alive():
        cancelled = threading.Event()
        thread.io_loop.add_callback(lambda: (thread._event_pipe_gc_task.cancel(), thread.io_loop.call_later(0.01, cancelled.set)))
        cancelled.wait(5)  # else its loop is closed over a task, which asyncio complains of
        thread.stop()
    thread.close()
    hears.close()
    context.term()


@pytest.mark.parametrize("found", [True, False])
def test_a_message_has_the_same_parts_with_and_without_the_function_of_libzmq(kernel: Any, iopub: Any, monkeypatch: pytest.MonkeyPatch, found: bool) -> None:
    assert express._zmq_send() is not None, "this pyzmq is linked with libzmq"
    if not found:
        monkeypatch.setattr(express, "_zmq_send", lambda: None)
    kernel.iopub_socket, through_pyzmq = iopub.thread.background_socket, []
    really = iopub.thread._really_send
    monkeypatch.setattr(iopub.thread, "_really_send", lambda *args: (through_pyzmq.append(args[2]), really(*args)))
    way = express.Express.of(comm_of())
    assert way is not None
    parts = [b"", b"\0\1\0", bytearray(b"abc"), memoryview(b"defg"), b"x" * 1000]
    for more in ([], [b"y" * (1 << 16)]):
        way.send({"text": "ä"}, [*parts, *more])  # type: ignore[list-item]
        assert iopub.hears.poll(10_000)
        topics, said = read(kernel.session, iopub.hears.recv_multipart())
        assert topics == [b"comm-c-1"] and said["content"]["data"]["content"] == {"text": "ä"}
        assert [bytes(b) for b in said["buffers"]] == [bytes(p) for p in [*parts, *more]]
    assert through_pyzmq == ([False] if found else [True, False]), "what is large is not copied"


def test_messages_come_in_order_after_the_one_that_opens_the_comm_and_soon_without_the_pipe(kernel: Any, iopub: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel.iopub_socket, piped, schedule, gate = iopub.thread.background_socket, [], iopub.thread.schedule, threading.Event()
    way = express.Express.of(comm_of())
    assert way is not None
    schedule(gate.wait)
    kernel.iopub_socket.send_multipart([b"comm_open"])  # it stays in the pipe until the gate is opened
    monkeypatch.setattr(iopub.thread, "schedule", lambda event: (piped.append(event), schedule(event)))
    for number in range(40):
        if number == 20:
            gate.set()
            while way._through < way._piped:
                time.sleep(0.001)
        way.send({"number": number}, [b"x" * number * 5_000])
    assert iopub.hears.poll(10_000) and iopub.hears.recv_multipart() == [b"comm_open"]
    for number in range(40):
        assert iopub.hears.poll(10_000)
        topics, said = read(kernel.session, iopub.hears.recv_multipart())
        assert topics == [b"comm-c-1"] and said["content"]["data"]["content"] == {"number": number} and len(said["buffers"][0]) == number * 5_000
    assert len(piped) == 20


def test_what_the_thread_that_sends_does_itself_leaves_at_once_and_in_order(kernel: Any, iopub: Any) -> None:
    """Messages of two threads, numbered under a lock as widgets do."""
    kernel.iopub_socket, lock, number, beats = iopub.thread.background_socket, threading.Lock(), iter(range(10_000)), list[float]()
    way = express.Express.of(comm_of())
    assert way is not None and way.every(0.01, lambda: True) is None, "not before the page knows of the comm"

    def say() -> None:
        with lock:
            way.send({"number": next(number)}, [])

    def beat() -> bool:
        beats.append(time.monotonic())
        assert threading.current_thread() is iopub.thread.thread
        say()
        return len(beats) < 30

    say()
    while way._through < 1:
        time.sleep(0.001)
    made = way.every(0.02, beat)
    assert made is not None and made.goes_on()
    while made.goes_on():
        say()
        time.sleep(0.0005)
    assert made.problem is None and len(beats) == 30 and beats[-1] - beats[0] > 0.02 * 29 * 0.9
    for expected in range(next(number)):
        assert iopub.hears.poll(10_000)
        assert read(kernel.session, iopub.hears.recv_multipart())[1]["content"]["data"]["content"] == {"number": expected}


@pytest.mark.parametrize("how", ["it raises", "it is stopped", "its loop is busy", "its loop is closed"])
def test_a_beat_that_has_stopped_is_not_relied_on(how: str) -> None:
    loop, calls = asyncio.new_event_loop(), list[int]()
    if how == "its loop is closed":
        loop.close()
        assert not express.Beat(loop, 0.01, lambda: True).goes_on()
        return
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    def work() -> bool:
        calls.append(1)
        if how == "it raises":
            raise ValueError("no")
        if how == "its loop is busy":
            time.sleep(1.5)
        return True

    made = express.Beat(loop, 0.01, work)
    deadline = time.monotonic() + 20
    while not calls:
        time.sleep(0.001)
    if how == "it is stopped":
        made.stop()
    while made.goes_on():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert (str(made.problem) == "no") == (how == "it raises")
    made.stop()
    time.sleep(1.6 if how == "its loop is busy" else 0.1)
    came = len(calls)
    time.sleep(0.1)
    assert len(calls) == came
    loop.call_soon_threadsafe(loop.stop)
    thread.join(5)
    loop.close()


def test_where_its_loop_is_closed_the_pipe_is_asked_and_without_the_thread_the_socket(kernel: Any, iopub: Any) -> None:
    kernel.iopub_socket = iopub.thread.background_socket
    way = express.Express.of(comm_of())
    assert way is not None
    closed = asyncio.new_event_loop()
    closed.close()
    way._loop, way._piped, way._through = closed, 1, 1
    way.send({}, [])
    assert iopub.hears.poll(10_000)
    iopub.hears.recv_multipart()
    iopub.thread.stop()
    way.send({}, [])  # from here, as ipykernel does then
    assert iopub.hears.poll(10_000)


def test_a_widget_takes_it_where_there_is_one(kernel: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from widget_samples import SampleRun

    sample, usual = SampleRun(steps=2), []
    view = TimelineView(sample.timeline)
    monkeypatch.setattr(view, "send", lambda content, buffers=None: usual.append(content))
    monkeypatch.setattr(PushedWidget, "comm", comm_of())
    kernel.iopub_socket.sent.clear()
    sample.step()
    view.update()
    frames, copied = kernel.iopub_socket.sent[-1]
    said = read(kernel.session, frames)[1]["content"]["data"]["content"]
    assert copied and said["type"] == "delta" and said["layout"]["count"] > 0 and not usual
    monkeypatch.setattr(express, "kernel", lambda: None)
    monkeypatch.setattr(PushedWidget, "comm", SimpleNamespace())
    sample.step()
    view.update()
    assert [content["seq"] for content in usual] == [said["seq"] + 1]


def test_spans_alone_are_written_as_all_else_is(kernel: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from widget_samples import LiveRun

    sample, board = LiveRun(steps=2), Dashboard()
    monkeypatch.setattr(PushedWidget, "comm", comm_of())
    sample.step()
    board.push({"state": "running"}, timeline=sample.timeline)
    for number, state in ((2, "running"), (3, "paused"), (4, "paused")):
        sample.step()
        new = sample.timeline.so_far() - board._feed.told_spans
        board.push_spans(sample.timeline, wait=False, state=state)
        found = read(kernel.session, kernel.iopub_socket.sent[-1][0])[1]
        said = found["content"]["data"]["content"]
        assert said.pop("state", {}).get("state") == ("paused" if number == 3 else None)
        layout = {"count": new, "origin": str(board._feed.origin_ns)}
        assert new > 0 and said == {"type": "delta", "seq": number, "parts": ["spans"], "layout": layout}
        assert [len(bytes(buffer)) for buffer in found["buffers"]] == [56 * new]
