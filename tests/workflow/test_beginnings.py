"""Whether a method needs its devices before its input is there: what it does first is read from its source, not its first line alone."""

from __future__ import annotations

import collections
import contextlib
import time
from collections import defaultdict, deque
from typing import Any

import pytest
import torch

import rlinf_lab as lab
from rlinf_lab.workflow.beginning import computes_first


class Reads(lab.Worker):
    """Nothing but idle statements stands before the first get."""

    def at_once(self, inbox: lab.Inbox) -> None:
        for _ in inbox:
            self.work()

    def with_an_empty_list(self, inbox: lab.Inbox) -> list[int]:
        """A text."""
        sizes = []
        for batch in inbox:
            sizes.append(len(batch))
        return sizes

    def with_containers(self, inbox: lab.Inbox) -> None:
        import math  # noqa: F401

        a, (b, self.c), d = 0, ({}, set()), deque(maxlen=8)
        seen: dict[str, list[int]] = defaultdict(list)
        counts, start, far = collections.Counter(), time.perf_counter(), float("inf")
        limit, half = self.limit, -1 / 2

        def inner(x: int) -> int:
            return x

        batch = inbox.get()
        self.work(a, b, d, seen, counts, start, far, limit, half, inner, batch)

    def in_a_loop(self, inbox: lab.Inbox) -> None:
        n = 0
        while True:
            if not (batch := inbox.get(4)):
                break
            n += len(batch)
            self.work()
        self.work()

    def while_there_is_some(self, inbox: lab.Inbox) -> None:
        while batch := inbox.get():
            self.work(batch)

    def counted(self, inbox: lab.Inbox) -> None:
        for _ in range(self.steps):
            inbox.take()

    def numbered(self, inbox: lab.Inbox, other: lab.Inbox) -> None:
        for _ in enumerate(zip(inbox, other, strict=False), 1):
            self.work()

    def all_of_it(self, inbox: lab.Inbox) -> None:
        batches = sorted(inbox)
        self.work(batches)

    def in_arguments(self, inbox: lab.Inbox) -> Any:
        return self.work([item for batch in inbox for item in batch])

    def sliced(self, inbox: lab.Inbox) -> Any:
        return inbox.get_all()[0].x

    def under_a_block(self, inbox: lab.Inbox) -> None:
        with contextlib.nullcontext(), contextlib.suppress(KeyError):
            try:
                self.work(inbox.get_weight(100))
            finally:
                self.work()

    def in_one_case(self, inbox: lab.Inbox, more: bool = True) -> None:
        assert inbox is not None
        if more and self.limit is None:
            inbox.get()

    def in_either_case(self, inbox: lab.Inbox, more: bool = True) -> None:
        if more:
            inbox.get()
        else:
            inbox.get(3)
        self.work()


class Works(lab.Worker):
    """Something is done, or might be, before the first get; or there is none."""

    def a_call(self, inbox: lab.Inbox) -> None:
        self.work()
        inbox.get()

    def after_an_empty_list(self, inbox: lab.Inbox) -> None:
        sizes = []
        sizes.append(self.work())
        inbox.get()

    def a_value(self, inbox: lab.Inbox) -> None:
        weights = self.model()
        inbox.get(weights)

    def arithmetic(self, inbox: lab.Inbox) -> None:
        scaled = self.weights * 2
        inbox.get(scaled)

    def into_a_buffer(self, inbox: lab.Inbox) -> None:
        self.buffer[0] = 0
        inbox.get()

    def from_a_tensor(self, inbox: lab.Inbox) -> None:
        n = int(self.count)
        inbox.get(n)

    def an_argument_of_the_get(self, inbox: lab.Inbox) -> None:
        inbox.get(self.how_many())

    def another_loop(self, inbox: lab.Inbox) -> None:
        for _ in self.loader:
            inbox.get()

    def beside_the_inbox(self, inbox: lab.Inbox) -> None:
        for _ in zip(inbox, self.steps(), strict=False):
            pass

    def a_block_of_its_own(self, inbox: lab.Inbox) -> None:
        with self.lock:
            inbox.get()

    def in_one_case(self, inbox: lab.Inbox, first: bool = True) -> None:
        if first:
            self.work()
        inbox.get()

    def perhaps_no_get(self, inbox: lab.Inbox) -> None:
        for _ in range(self.steps):
            inbox.get()
        self.work()

    def out_before_the_get(self, inbox: lab.Inbox) -> None:
        while True:
            if self.limit:
                break
            inbox.get()
        self.work()

    def a_put(self, inbox: lab.Inbox, out: lab.Outbox) -> None:
        out.put(0)
        inbox.get()

    def only_a_question(self, inbox: lab.Inbox) -> None:
        inbox.__repr__()
        inbox.get()

    def a_name_of_its_own(self, inbox: lab.Inbox, deque: Any) -> None:
        found = deque()
        inbox.get(found)

    def nothing_at_all(self, inbox: lab.Inbox) -> None:
        """A text."""

    def no_inbox(self, out: lab.Outbox) -> None:
        count = 0
        out.put(count)


@pytest.mark.parametrize("name", [n for n in vars(Reads) if not n.startswith("_")])
def test_what_reads_first_needs_no_device_yet(name: str) -> None:
    assert not computes_first(getattr(Reads, name))


@pytest.mark.parametrize("name", [n for n in vars(Works) if not n.startswith("_")])
def test_what_might_compute_first_gets_its_device(name: str) -> None:
    assert computes_first(getattr(Works, name))


def test_without_a_source_the_answer_is_the_safe_one() -> None:
    scope: dict[str, Any] = {"lab": lab}
    exec("def go(self, inbox: lab.Inbox):\n    inbox.get()", scope)
    assert computes_first(scope["go"])


def test_torch_without_gradients_is_no_work() -> None:
    assert not computes_first(quietly)


def quietly(self: Any, inbox: lab.Inbox) -> None:
    with torch.no_grad(), torch.inference_mode():
        for batch in inbox:
            self.work(batch)
