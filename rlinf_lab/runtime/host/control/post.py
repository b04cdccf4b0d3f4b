"""The way out of a host, and what is done about messages that come in. Each part registers its handlers here."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from rlinf_lab.runtime.host.state.host_state import HostState
from rlinf_lab.runtime.host.state.messages import Failed, Failure, Message, Remarked, encoded

M = TypeVar("M", bound=Message)


class Post:
    """See `state.parts.Post` for what parts use of it.

    ``send(host, message)``: how to reach the others, the message as it travels; ``sent()``: those are all for now.
    Neither is called under the mutex.
    """

    def __init__(
        self, state: HostState, send: Callable[[str, tuple], None] | None, sent: Callable[[], None] | None
    ) -> None:
        self._state, self._send, self._sent = state, send, sent
        self._handlers: dict[type[Message], Callable[[Any], None]] = {}
        self._on_failure: Callable[[str, Message, Exception], None] | None = None
        self.unsent: deque[tuple[str, Message]] = deque()  # decided, and not handed to the links yet
        self.said = self.heard = 0  # counted messages
        self._sending = threading.RLock()  # what a failure makes us say is said from within
        self._postman: threading.Thread | None = None
        self._post_waits = threading.Event()

    # --- handlers ----------------------------------------------------------------------------------------
    def on(self, kind: type[M], handler: Callable[[M], None]) -> None:
        self._handlers[kind] = handler

    def on_failure(self, handler: Callable[[str, Message, Exception], None]) -> None:
        """What is done about a message that cannot be sent, without the mutex. May raise."""
        self._on_failure = handler

    def handle(self, message: Message) -> None:
        """Under the mutex: do what a message says."""
        self._handlers[type(message)](message)

    # --- saying, under the mutex -------------------------------------------------------------------------
    def say(self, host: str, message: Message, urgent: bool = False) -> None:
        if message.counted:
            self.said += 1
        if urgent:
            self.unsent.appendleft((host, message))
        else:
            self.unsent.append((host, message))

    def tell(self, host: str, message: Message, urgent: bool = False) -> None:
        if host == self._state.name:
            self.handle(message)
        else:
            self.say(host, message, urgent)

    def tell_driver(self, message: Message, urgent: bool = False) -> None:
        self.tell(self._state.driver, message, urgent)

    def not_said(self, message: Message) -> None:
        """It could not be sent; what is sent in its place is counted."""
        with self._state.mutex:
            self.said -= message.counted

    # --- what the driver hears ---------------------------------------------------------------------------
    def fail(self, error: Failure) -> None:
        with self._state.mutex:
            self._state.failure = self._state.failure or error
            if self._state.is_driver:
                self.handle(Failed(error))

    def report(self, error: Failure) -> None:
        with self._state.mutex:
            if self._state.is_driver:
                self.fail(error)
            else:
                self.say(self._state.driver, Failed(error), urgent=True)

    def remark(self, about: str, text: str, at_once: bool = False) -> None:
        self.tell_driver(Remarked(about, text, at_once))

    # --- sending, without the mutex ----------------------------------------------------------------------
    def flush(self) -> None:
        if self.unsent:
            self.send_all()

    def flush_soon(self) -> None:
        if not self.unsent or self._post_waits.is_set():
            return
        if self._postman is None:
            with self._sending:
                if self._postman is None:
                    name = f"postman of {self._state.name}"
                    self._postman = threading.Thread(target=self._deliver, name=name, daemon=True)
                    self._postman.start()
        self._post_waits.set()

    def _deliver(self) -> None:
        while not self._state.stopping:
            self._post_waits.wait()
            self._post_waits.clear()
            self.flush()

    def stop(self) -> None:
        """Its thread ends, for the host does."""
        self._post_waits.set()

    def send_all(self) -> None:
        """Everything decided before is pickled and handed to the links, by whichever thread."""
        state, unsent, send = self._state, self.unsent, self._send
        with self._sending:
            while unsent:
                host, message = unsent.popleft()
                assert send is not None
                if host not in state.dead:
                    try:
                        send(host, encoded(message))
                    except Exception as error:  # it does not pickle, mostly
                        assert self._on_failure is not None
                        self._on_failure(host, message, error)
            if self._sent is not None:
                self._sent()
