"""A thread that does for the main thread what must not be torn apart.

An interrupt (Ctrl-C, the kernel's stop button) is raised in the main thread between any two lines; in the middle of the
scheduler's bookkeeping it would leave threads that wait for ever. So the user's own code runs on the main thread, and
what it asks of the runtime is done here, whole, while the main thread waits. Other threads are never interrupted and do
it themselves. (The other ways: a signal handler of our own, which a notebook's kernel would have to share with us; or
the user's code in another thread, without its debugger and thread-local settings.)
"""

from __future__ import annotations

import queue
import threading
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


class Task:
    """One piece of work, and how it ended."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self._work = work
        self._open = threading.Lock()
        self._open.acquire()
        self._value: Any = None
        self._error: BaseException | None = None

    def perform(self) -> None:
        try:
            self._value = self._work()
        except BaseException as error:  # it belongs to whoever waits
            self._error = error
        self._open.release()

    def result(self) -> Any:
        self._open.acquire()
        if self._error is not None:
            try:
                raise self._error
            finally:
                self._error = None  # it holds this frame
        return self._value


class Servant:
    """Does one thing after another. Its thread ends with it."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._tasks: queue.SimpleQueue[Task | None] = queue.SimpleQueue()
        self._turn = threading.Lock()
        self._thread: threading.Thread | None = None
        weakref.finalize(self, self._tasks.put, None).atexit = False

    def do(self, work: Callable[[], T]) -> T:
        """What ``work`` returns or raises. An interrupt of the waiting main thread does not end it."""
        if threading.current_thread() is not threading.main_thread():
            return work()
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=_serve, args=(self._tasks, self._turn), name=self._name, daemon=True)
            self._thread.start()
        task = Task(work)
        self._tasks.put(task)
        return task.result()


def aside(work: Callable[[], T]) -> T:
    """Do the same in a thread of its own. It is for what ends something that a servant still does."""
    if threading.current_thread() is not threading.main_thread():
        return work()
    task = Task(work)
    threading.Thread(target=task.perform, name="aside", daemon=True).start()
    return task.result()


def _serve(tasks: queue.SimpleQueue[Task | None], turn: threading.Lock) -> None:
    while True:
        with turn:  # an interrupt in the middle of starting a thread leaves one that nobody knows, beside the next
            task = tasks.get()
            if task is None:
                tasks.put(None)
                return
            task.perform()
            del task  # what it has returned is its caller's
